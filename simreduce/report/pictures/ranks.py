"""Drawings of where ranks are: nodes by the switches that they share, and a ring in each order.

Drawings of rings and trees: one panel each, the ranks in a circle, shares as line widths.

The ranks of a machine stand together, with an arc and the machine's name outside them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from simreduce.planners.synthesis.network import Edge
from simreduce.report.drawing.shapes import (
    FAINT,
    Circle,
    Drawing,
    Line,
    Mark,
    Point,
    Polygon,
    Shape,
    Text,
    shift,
    text_width,
)
from simreduce.report.pictures.blocks import common_prefix

_PANEL, _COLUMNS, _HEAD, _FOOT, _LINE = 240, 4, 48, 24, 16
_APART = 0.8
"""The gap between two machines, in distances between ranks."""
_ARC = "#c9d3de"
_MARK = 15.0
_WIDEST, _THINNEST = 5.0, 1.2
_BLUE, _PALE, _ROOT = "#1b4f8a", "#6f9bd1", "#f2b134"
_FILLS = ("#e8eef5", "#d9eeda", "#f6e2d3", "#eadcf2", "#d6eef0", "#f5dde4")
"""Of the ranks of each machine, in turn."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A pattern: its title, its directed edges, its share and the rank to mark, if any."""

    title: str
    edges: Sequence[Edge]
    share: float
    root: int | None = None


def patterns_picture(
    title: str, subtitle: str, names: Sequence[str], panels: Sequence[Panel]
) -> Drawing:
    """Draw a panel for each pattern; `names` are the ranks'."""
    columns = max(1, min(_COLUMNS, len(panels)))
    width = max(columns * _PANEL, 2 * _PANEL) + 2 * _FOOT
    below = [*_wrap(subtitle, width - 2 * _FOOT, 12)]
    head = _HEAD + _LINE * len(below)
    height = head + -(-len(panels) // columns) * (_PANEL + 16) + _FOOT
    size = min(16.0, 16 * (width - 2 * _FOOT) / (1.1 * text_width(title, 16)))
    most = max((panel.share for panel in panels), default=1.0)
    shapes: list[Shape] = [
        Text(_FOOT, 26, title, size, bold=True),
        *(Text(_FOOT, 46 + _LINE * i, text, 12, fill=FAINT) for i, text in enumerate(below)),
    ]
    for i, panel in enumerate(panels):
        x, y = _FOOT + i % columns * _PANEL, head + i // columns * (_PANEL + 16)
        pattern = Mark(tuple(_draw_panel(names, panel, most)), panel.title, "pattern")
        shapes.append(shift(pattern, x, y))
    return Drawing(width, height, tuple(shapes))


def _draw_panel(names: Sequence[str], panel: Panel, most: float) -> Iterator[Shape]:
    centre, radius = _PANEL / 2, _PANEL / 2 - 38
    machines = _group_ranks(names)
    several = len(machines) > 1
    apart = _APART if several else 0.0
    turn = 2 * math.pi / (len(names) + apart * len(machines))
    # Rank 0 is at the top, or a gap between two machines.
    start = (1 + apart) / 2 if several else 0.0
    angles = [
        turn * (start + i + apart * sum(first <= i for first, _ in machines[1:]))
        for i in range(len(names))
    ]
    places = [_around(centre, radius, angle) for angle in angles]
    # Many ranks need small marks.
    mark = min(_MARK, 0.42 * turn * radius)
    yield Text(centre, 14, panel.title, 12, "middle")
    if several:
        for first, last in machines:
            yield from _draw_machine(names[first], angles[first : last + 1], centre, radius + mark)
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
    fills = [_FILLS[m % len(_FILLS)] for m, (a, b) in enumerate(machines) for _ in range(a, b + 1)]
    for i, (x, y) in enumerate(places):
        yield Circle(x, y, mark, _ROOT if i == panel.root else fills[i], _BLUE)
        if mark >= 7:
            yield Text(x, y + 4, _gpu_number(names[i]), min(12.0, mark * 0.85), "middle")


def _wrap(text: str, width: float, size: float) -> Iterator[str]:
    """The text in lines of at most this width, broken at spaces."""
    line = ""
    for word in text.split():
        longer = f"{line} {word}".strip()
        if line and text_width(longer, size) > width:
            yield line
            longer = word
        line = longer
    if line:
        yield line


def _group_ranks(names: Sequence[str]) -> list[tuple[int, int]]:
    """The first and the last rank of each machine: of each run of ranks with one prefix."""
    found = itertools.groupby(range(len(names)), lambda i: common_prefix([names[i]]))
    ranks = [list(group) for _, group in found]
    return [(group[0], group[-1]) for group in ranks]


def _around(centre: float, radius: float, angle: float) -> Point:
    """A place on the circle; angle 0 is at the top, and angles grow clockwise."""
    return centre + radius * math.sin(angle), centre + 14 - radius * math.cos(angle)


def _draw_machine(
    name: str, angles: Sequence[float], centre: float, radius: float
) -> Iterator[Shape]:
    """An arc outside the ranks of a machine, and its name beyond the middle of it."""
    first, last = angles[0], angles[-1]
    pieces = max(1, math.ceil((last - first) * 8))
    ends = [first + (last - first) * k / pieces for k in range(pieces + 1)]
    for pair in itertools.pairwise([_around(centre, radius + 4, angle) for angle in ends]):
        yield Line(pair, _ARC, 4)
    x, y = _around(centre, radius + 14, (first + last) / 2)
    yield Text(x, y + 4, common_prefix([name]).removesuffix("."), 10, "middle", FAINT)


def _gpu_number(name: str) -> str:
    """The number of a GPU, `3.5` for `n3.gpu5`."""
    digits = ["".join(c for c in part if c.isdigit()) for part in name.split(".")]
    return ".".join(digits) if all(digits) else name[:4]


_MOST = 12
"""Panels of a picture."""
RANKS_WORDS = (
    "A.3 is node 3, below switches A; nodes on one arc share their switches."
    " Arrows go from each node to the next in the order of ranks, as a ring does; the first is"
    " yellow."
)
"""What is to be seen."""


def ranks_picture(
    switches: Sequence[Sequence[str]],
    orders: Mapping[str, Sequence[str]],
    title: str = "Where ranks are",
    subtitle: str = "",
) -> Drawing | None:
    """Draw a panel for each of the `orders` by name, of nodes in groups that share `switches`.
    None if no order has such a node.
    """
    place = {name: i for i, name in enumerate(name for group in switches for name in group)}
    names = [
        f"{_letters(i)}.{_node_number(name)}" for i, group in enumerate(switches) for name in group
    ]
    panels = []
    for heading, some in list(orders.items())[:_MOST]:
        nodes = [name for name in some if name in place]
        if not nodes:
            continue
        ring = zip(nodes, [*nodes[1:], nodes[0]], strict=True)
        edges = [(place[a], place[b]) for a, b in ring if a != b]
        panels.append(Panel(heading, edges, 1.0, place[nodes[0]]))
    return patterns_picture(title, subtitle, names, panels) if panels else None


def _letters(number: int) -> str:
    """A, B, ... Z, AA."""
    head, rest = divmod(number, 26)
    return (_letters(head - 1) if head else "") + chr(ord("A") + rest)


def _node_number(name: str) -> str:
    """The number at the end of a name, or its first letters."""
    return name[len(name.rstrip("0123456789")) :] or name[:2]
