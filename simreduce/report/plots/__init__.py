"""Charts of plain data, declared as a `Plot` and drawn as SVG and PNG."""

from simreduce.report.plots.axes import Axis, Quantity, log_ends
from simreduce.report.plots.plot import Facet, Plot, PlotPoint, PlotSeries, bar_facet, bar_plot

__all__ = [
    "Axis",
    "Facet",
    "Plot",
    "PlotPoint",
    "PlotSeries",
    "Quantity",
    "bar_facet",
    "bar_plot",
    "log_ends",
]
