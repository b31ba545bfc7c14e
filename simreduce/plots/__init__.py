"""Plots of plain data: accuracy, curves over sizes, bars and timelines.

matplotlib draws them (the extra `simreduce[plot]`); it loads when a plot is drawn. No plot needs a
display.
"""

from simreduce.plots.accuracy import AccuracyPoint, draw_accuracy
from simreduce.plots.charts import (
    TimelineBar,
    draw_bars,
    draw_curves,
    draw_sensitivity,
    draw_timeline,
)
from simreduce.plots.figure import Plot, check_plot
from simreduce.plots.frontier import CostPoint, draw_frontier
from simreduce.plots.multiples import Compared, draw_multiples
from simreduce.plots.sweeps import Axis, Choice, Reading, draw_heat, draw_lines, draw_pareto

__all__ = [
    "AccuracyPoint",
    "Axis",
    "Choice",
    "Compared",
    "CostPoint",
    "Plot",
    "Reading",
    "TimelineBar",
    "check_plot",
    "draw_accuracy",
    "draw_bars",
    "draw_curves",
    "draw_frontier",
    "draw_heat",
    "draw_lines",
    "draw_multiples",
    "draw_pareto",
    "draw_sensitivity",
    "draw_timeline",
]
