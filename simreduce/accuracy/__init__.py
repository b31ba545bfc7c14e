"""How far predictions are from published timings of NCCL."""

from simreduce.accuracy.assess import BANDS, Group, cells, machines, summarize
from simreduce.accuracy.picture import draw_points
from simreduce.accuracy.predict import Point, predict
from simreduce.accuracy.tables import accuracy_document, accuracy_lines

__all__ = [
    "BANDS",
    "Group",
    "Point",
    "accuracy_document",
    "accuracy_lines",
    "cells",
    "draw_points",
    "machines",
    "predict",
    "summarize",
]
