"""Searching for the best setting: candidates, and their ranking."""

from simreduce.tune.candidates import candidates
from simreduce.tune.rank import Candidate, Ranking, rank

__all__ = ["Candidate", "Ranking", "candidates", "rank"]
