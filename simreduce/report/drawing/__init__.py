"""Drawings made of shapes, as SVG and PNG: of machines by `pictures`, of charts by `plots`."""

from simreduce.report.drawing.shapes import Drawing, Mark
from simreduce.report.drawing.svg import check_png, to_png, to_svg

__all__ = ["Drawing", "Mark", "check_png", "to_png", "to_svg"]
