"""How far predictions are from published timings of NCCL."""

from simreduce.study.accuracy.assess import BANDS, Group, cells, machines, summarize
from simreduce.study.accuracy.predict import Point, predict

__all__ = [
    "BANDS",
    "Group",
    "Point",
    "cells",
    "machines",
    "predict",
    "summarize",
]
