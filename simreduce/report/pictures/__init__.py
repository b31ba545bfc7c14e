"""Pictures of machines, rings and trees: pure functions to a `Drawing`, written as SVG or PNG."""

from simreduce.report.pictures.patterns import Panel, patterns_picture
from simreduce.report.pictures.picture import heat_picture, machine_picture
from simreduce.report.pictures.shapes import Drawing, Mark
from simreduce.report.pictures.svg import check_png, to_png, to_svg

__all__ = [
    "Drawing",
    "Mark",
    "Panel",
    "check_png",
    "heat_picture",
    "machine_picture",
    "patterns_picture",
    "to_png",
    "to_svg",
]
