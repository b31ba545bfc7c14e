"""Rings and trees: one panel each, the ranks in a circle, lines as wide as their share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simreduce.pictures.shapes import FAINT, Circle, Drawing, Group, Line, Polygon, Shape, Text
from simreduce.synthesis.network import Edge

_PANEL, _COLUMNS, _HEAD, _FOOT = 240, 4, 64, 24
_MARK = 15.0
_WIDEST, _THINNEST = 5.0, 1.2
_BLUE, _PALE, _LIGHT, _ROOT = "#1b4f8a", "#6f9bd1", "#e8eef5", "#f2b134"


@dataclass(frozen=True, slots=True)
class Panel:
    """One pattern: what to write above it, its directed edges, the rank to mark, if any, and its
    share.
    """

    title: str
    edges: Sequence[Edge]
    share: float
    root: int | None = None


def patterns_picture(
    title: str, subtitle: str, names: Sequence[str], panels: Sequence[Panel]
) -> Drawing:
    """The drawing; `names` are those of the ranks."""
    columns = max(1, min(_COLUMNS, len(panels)))
    width = max(columns * _PANEL, 2 * _PANEL) + 2 * _FOOT
    height = _HEAD + -(-len(panels) // columns) * (_PANEL + 16) + _FOOT
    most = max((panel.share for panel in panels), default=1.0)
    shapes: list[Shape] = [
        Text(_FOOT, 26, title, 16, bold=True),
        Text(_FOOT, 46, subtitle, 12, fill=FAINT),
    ]
    for i, panel in enumerate(panels):
        x, y = _FOOT + i % columns * _PANEL, _HEAD + i // columns * (_PANEL + 16)
        pattern = Group(tuple(_drawn(names, panel, most)), panel.title, "pattern")
        shapes.append(pattern.moved(x, y))
    return Drawing(width, height, tuple(shapes))


def _drawn(names: Sequence[str], panel: Panel, most: float) -> Iterator[Shape]:
    centre, radius = _PANEL / 2, _PANEL / 2 - 38
    turn = 2 * math.pi / max(1, len(names))
    places = [
        (centre + radius * math.sin(turn * i), centre + 14 - radius * math.cos(turn * i))
        for i in range(len(names))
    ]
    # Many ranks need small marks.
    mark = min(_MARK, 0.42 * turn * radius)
    yield Text(centre, 14, panel.title, 12, "middle")
    stroke = _THINNEST + (_WIDEST - _THINNEST) * panel.share / most
    for u, v in panel.edges:
        (ax, ay), (bx, by) = places[u], places[v]
        far = math.hypot(bx - ax, by - ay)
        dx, dy = (bx - ax) / far, (by - ay) / far
        tip = bx - dx * (mark + 1), by - dy * (mark + 1)
        back = tip[0] - dx * 10, tip[1] - dy * 10
        yield Line(((ax + dx * mark, ay + dy * mark), back), _PALE, stroke)
        yield Polygon(
            (tip, (back[0] - dy * 5, back[1] + dx * 5), (back[0] + dy * 5, back[1] - dx * 5)), _BLUE
        )
    for i, (x, y) in enumerate(places):
        yield Circle(x, y, mark, _ROOT if i == panel.root else _LIGHT, _BLUE)
        if mark >= 7:
            yield Text(x, y + 4, _short(names[i]), min(12.0, mark * 0.85), "middle")


def _short(name: str) -> str:
    """The number of a GPU, `3.5` for `n3.gpu5`."""
    digits = ["".join(c for c in part if c.isdigit()) for part in name.split(".")]
    return ".".join(digits) if all(digits) else name[:4]
