"""Shapes of a drawing. Lengths are in pixels of an SVG; y grows downwards."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

Point = tuple[float, float]

INK = "#222222"
FAINT = "#555555"
WHITE = "#ffffff"


@dataclass(frozen=True, slots=True)
class Rect:
    """A box with round corners; an empty `fill` draws only the edge."""

    x: float
    y: float
    width: float
    height: float
    fill: str = WHITE
    stroke: str = INK
    radius: float = 4.0
    stroke_width: float = 1.0


@dataclass(frozen=True, slots=True)
class Circle:
    """A disc."""

    x: float
    y: float
    radius: float
    fill: str
    stroke: str


@dataclass(frozen=True, slots=True)
class Line:
    """Straight lines through fewer than four points, or through all if it has `corners`; else cubic
    Bezier curves through 3k + 1 points.
    """

    points: tuple[Point, ...]
    stroke: str
    width: float
    dashes: tuple[float, ...] = ()
    corners: bool = False


@dataclass(frozen=True, slots=True)
class Polygon:
    """A filled area, such as the tip of an arrow."""

    points: tuple[Point, ...]
    fill: str
    stroke: str = ""
    opacity: float = 1.0


@dataclass(frozen=True, slots=True)
class Text:
    """One line on the baseline `y`; `anchor` is start, middle or end. It is turned clockwise by
    `turn` degrees around its anchor.
    """

    x: float
    y: float
    text: str
    size: float = 11.0
    anchor: str = "start"
    fill: str = INK
    bold: bool = False
    turn: float = 0.0


@dataclass(frozen=True, slots=True)
class Mark:
    """Shapes of one or several nodes or links: an SVG group.

    Browsers show its `title` under the pointer. `kind` is the class of the group, `count` the
    number of nodes or links, and `resources` are their names in results: `gpu0>gpu1 nvlink2`,
    `gpu0 memory`.
    """

    shapes: tuple[Shape, ...]
    title: str = ""
    kind: str = ""
    count: int = 0
    resources: tuple[str, ...] = ()


Shape = Rect | Circle | Line | Polygon | Text | Mark


def shift(shape: Shape, dx: float, dy: float) -> Shape:
    """The same shape elsewhere."""
    match shape:
        case Mark():
            return replace(shape, shapes=tuple(shift(each, dx, dy) for each in shape.shapes))
        case Line() | Polygon():
            return replace(shape, points=tuple((x + dx, y + dy) for x, y in shape.points))
        case _:
            return replace(shape, x=shape.x + dx, y=shape.y + dy)


@dataclass(frozen=True, slots=True)
class Drawing:
    """Shapes on white from (0, 0) to (width, height); later shapes cover earlier ones."""

    width: float
    height: float
    shapes: tuple[Shape, ...]


def stack(drawings: Sequence[Drawing], gap: float, *, centred: bool = False) -> Drawing:
    """The drawings below each other, aligned on the left or `centred`."""
    shapes: list[Shape] = []
    width = max((drawing.width for drawing in drawings), default=0.0)
    y = 0.0
    for drawing in drawings:
        x = (width - drawing.width) / 2 if centred else 0.0
        shapes += [shift(shape, x, y) for shape in drawing.shapes]
        y += drawing.height + gap
    return Drawing(width, max(y - gap, 0.0), tuple(shapes))


Area = tuple[float, float, float, float]
"""Left, top, right and bottom."""


def overlap(one: Area, other: Area) -> bool:
    """Whether two areas have a part in common."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


_NARROW, _WIDE = frozenset("ijlftrI.,:;|!'()[]/- "), frozenset("mwMWGQO@%&#+=<>")


def text_width(text: str, size: float) -> float:
    """An upper bound for the usual sans-serif fonts; DejaVu Sans is the widest."""
    ems = sum(
        0.42 if c in _NARROW else 0.98 if c in "mwMW@%" else 0.84 if c in _WIDE else 0.66
        for c in text
    )
    return ems * size


def polyline(points: Sequence[Point], pieces: int = 48) -> list[Point]:
    """The points of `Line`, with curves as straight pieces."""
    if len(points) < 4:
        return list(points)
    out = [points[0]]
    for k in range(0, len(points) - 3, 3):
        a, b, c, d = points[k : k + 4]
        for step in range(1, pieces + 1):
            t = step / pieces
            weights = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3
            out.append(
                (
                    sum(w * p[0] for w, p in zip(weights, (a, b, c, d), strict=True)),
                    sum(w * p[1] for w, p in zip(weights, (a, b, c, d), strict=True)),
                )
            )
    return out


def along(points: Sequence[Point], part: float) -> Point:
    """The point at the fraction `part` (0 to 1) of the length of a polyline."""
    lengths = [
        ((bx - ax) ** 2 + (by - ay) ** 2) ** 0.5
        for (ax, ay), (bx, by) in itertools.pairwise(points)
    ]
    left = part * sum(lengths)
    for (a, b), length in zip(itertools.pairwise(points), lengths, strict=True):
        if left <= length and length > 0:
            t = left / length
            return a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1])
        left -= length
    return points[-1]
