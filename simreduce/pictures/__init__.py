"""Machines, rings, trees and measurements as pictures: pure functions to a `Drawing`, which is
written as SVG and as PNG.
"""

from simreduce.pictures.patterns import Panel, patterns_picture
from simreduce.pictures.picture import machine_picture
from simreduce.pictures.png import check_png, to_png
from simreduce.pictures.shapes import Drawing
from simreduce.pictures.svg import to_svg
from simreduce.pictures.validation import Measured, validation_picture

__all__ = [
    "Drawing",
    "Measured",
    "Panel",
    "check_png",
    "machine_picture",
    "patterns_picture",
    "to_png",
    "to_svg",
    "validation_picture",
]
