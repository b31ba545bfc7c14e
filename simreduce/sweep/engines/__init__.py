"""Where cells are computed. An engine takes cells, and yields their answers in any order."""

from simreduce.sweep.engines.batches import MOST_DEATHS, Batches
from simreduce.sweep.engines.engine import Engine, EngineGone, evaluate_timed
from simreduce.sweep.engines.here import Here
from simreduce.sweep.engines.processes import Processes

__all__ = [
    "MOST_DEATHS",
    "Batches",
    "Engine",
    "EngineGone",
    "Here",
    "Processes",
    "evaluate_timed",
]
