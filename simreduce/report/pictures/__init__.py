"""Pictures of machines, rings and trees: pure functions to a `Drawing`, written as SVG or PNG."""

from simreduce.report.pictures.picture import heat_picture, machine_picture
from simreduce.report.pictures.ranks import RANKS_WORDS, Panel, patterns_picture, ranks_picture
from simreduce.report.pictures.scene import Drawing, Mark
from simreduce.report.pictures.svg import check_png, to_png, to_svg

__all__ = [
    "RANKS_WORDS",
    "Drawing",
    "Mark",
    "Panel",
    "check_png",
    "heat_picture",
    "machine_picture",
    "patterns_picture",
    "ranks_picture",
    "to_png",
    "to_svg",
]
