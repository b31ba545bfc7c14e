"""Marks that tell series apart by colour and by form, so that a print in grey can be read as well."""

from __future__ import annotations

import math
from typing import NamedTuple

from simreduce.pictures.shapes import INK, WHITE, Circle, Group, Point, Polygon

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b07d00", "#56b4e9", INK)
"""Of Okabe and Ito, without the yellow, which is not seen on white, and with a darker orange."""
_GREY = "#9a9a9a"
_RADIUS = 4.4
MOST = 12
"""Series that have a look of their own."""


def _around(corners: int, radius: float, turn: float) -> tuple[Point, ...]:
    """A regular polygon; `turn` 0 has a corner on the right, 0.25 at the bottom."""
    angles = [2 * math.pi * (turn + k / corners) for k in range(corners)]
    return tuple((radius * math.cos(angle), radius * math.sin(angle)) for angle in angles)


_ARM, _HALF = 1.15, 0.38
_PLUS = tuple(
    (x * turn_x - y * turn_y, x * turn_y + y * turn_x)
    for turn_x, turn_y in ((1, 0), (0, 1), (-1, 0), (0, -1))
    for x, y in ((_ARM, -_HALF), (_ARM, _HALF), (_HALF, _HALF))
)
_FORMS: tuple[tuple[Point, ...], ...] = (
    (),  # a disc
    _around(4, 1.25, 0.125),
    _around(3, 1.4, 0.75),
    _around(4, 1.35, 0.0),
    _around(3, 1.4, 0.25),
    _PLUS,
)
"""Corners around (0, 0), for a mark of radius 1. As many as have no factor in common with the
colours.
"""


class Look(NamedTuple):
    """A colour, the number of a form, and a factor for the sizes of marks and the widths of lines."""

    colour: str
    form: int
    weight: float


def look(i: int) -> Look:
    """Of the i-th series: the first `MOST` all differ, those after them are small, grey and alike."""
    if i >= MOST:
        return Look(_GREY, 0, 0.6)
    return Look(_COLOURS[i % len(_COLOURS)], i % len(_FORMS), 1.0)


def mark(of: Look, x: float, y: float, scale: float = 1.0) -> Group:
    """A mark with its centre at (x, y), with a white rim, to be seen on others."""
    radius, corners = _RADIUS * of.weight * scale, _FORMS[of.form]
    if not corners:
        return Group((Circle(x, y, radius, of.colour, WHITE),))
    rim, body = (
        Polygon(tuple((x + a * size, y + b * size) for a, b in corners), fill)
        for size, fill in ((radius + 1, WHITE), (radius, of.colour))
    )
    return Group((rim, body))
