"""Plots of plain data: accuracy, curves over sizes, bars and timelines.

matplotlib draws them (the extra `simreduce[plot]`); it loads when a plot is drawn. No plot needs a
display.
"""

from simreduce.report.plots.charts import (
    AccuracyPoint,
    ComparedBandwidth,
    TimelineBar,
    draw_accuracy,
    draw_bars,
    draw_curves,
    draw_multiples,
    draw_sensitivity,
    draw_timeline,
)
from simreduce.report.plots.figure import Plot, check_plot
from simreduce.report.plots.sweeps import (
    Axis,
    PlotPoint,
    PlotValue,
    draw_frontier,
    draw_heat,
    draw_lines,
    draw_pareto,
)

__all__ = [
    "AccuracyPoint",
    "Axis",
    "ComparedBandwidth",
    "Plot",
    "PlotPoint",
    "PlotValue",
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
