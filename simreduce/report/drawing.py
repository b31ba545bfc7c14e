"""Drawings made of shapes, as SVG and PNG: of machines by `pictures`, of charts by `plots`.

Lengths are in pixels of an SVG; y grows downwards. For PNG (the extra `simreduce[png]`), resvg
renders our SVG with the fonts of a package: a machine without fonts gets the same picture.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

from simreduce.errors import escape, load_extra

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


def wrap(text: str, width: float, size: float) -> Iterator[str]:
    """The text in lines of at most this width, broken at spaces."""
    line = ""
    for word in escape(text).split():
        longer = f"{line} {word}".strip()
        if line and text_width(longer, size) > width:
            yield line
            longer = word
        line = longer
    if line:
        yield line


def dashes(number: int) -> tuple[float, ...]:
    """The dashes of the line with this number among those of a colour; no two are alike."""
    few = (), (7.0, 3.0), (2.5, 2.5)
    return few[number] if number < len(few) else (9.0, 3.0, *(2.0, 3.0) * (number - 2))


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


_SCALE = 2.0
"""Pixels of the PNG per pixel of the drawing, for screens and print."""
_FONTS, _FAMILY = "font_source_sans_pro", "Source Sans Pro"
_MOST = 25_000_000
"""Most pixels of a PNG; larger drawings get a smaller scale."""


def to_svg(drawing: Drawing, name: Callable[[Mark], str] = lambda _: "") -> str:
    """The drawing as SVG: the same text for the same drawing. Groups for which `name` has a text
    carry it as `data-name`.
    """
    width, height = _number(drawing.width), _number(drawing.height)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif">'
    )
    page = Rect(0, 0, drawing.width, drawing.height, stroke="", radius=0)
    return "\n".join([head, *_elements([page, *drawing.shapes], name), "</svg>", ""])


def _elements(shapes: Iterable[Shape], name: Callable[[Mark], str]) -> Iterator[str]:
    from xml.sax.saxutils import quoteattr  # noqa: PLC0415 - loads urllib and http

    for shape in shapes:
        match shape:
            case Mark():
                kind = f" class={quoteattr(shape.kind)}" if shape.kind else ""
                count = f' data-count="{shape.count}"' if shape.count else ""
                named = f" data-name={quoteattr(escape(text))}" if (text := name(shape)) else ""
                yield f"<g{kind}{count}{named}>"
                if shape.title:
                    yield f"<title>{_text(shape.title)}</title>"
                yield from _elements(shape.shapes, name)
                yield "</g>"
            case Rect():
                paint = _paint(shape.fill, shape.stroke, shape.stroke_width)
                place = {"x": shape.x, "y": shape.y, "width": shape.width, "height": shape.height}
                yield _begin("rect", **place, rx=shape.radius or None, **paint) + "/>"
            case Circle():
                paint = _paint(shape.fill, shape.stroke, 1)
                yield _begin("circle", cx=shape.x, cy=shape.y, r=shape.radius, **paint) + "/>"
            case Line():
                paint = _paint("", shape.stroke, shape.width)
                dashes = " ".join(map(_number, shape.dashes)) or None
                yield _begin("path", d=_path(shape), **paint, stroke_dasharray=dashes) + "/>"
            case Polygon():
                corners = " ".join(f"{_number(x)},{_number(y)}" for x, y in shape.points)
                opacity = f"{shape.opacity:g}" if shape.opacity < 1 else None
                paint = _paint(shape.fill, shape.stroke, 1)
                yield _begin("polygon", points=corners, **paint, fill_opacity=opacity) + "/>"
            case Text():
                turn = f"rotate({_number(shape.turn)} {_number(shape.x)} {_number(shape.y)})"
                begin = _begin(
                    "text", x=shape.x, y=shape.y, font_size=shape.size,
                    text_anchor=shape.anchor.removeprefix("start") or None,
                    font_weight="bold" if shape.bold else None, fill=shape.fill,
                    transform=turn if shape.turn else None,
                )  # fmt: skip
                yield f"{begin}>{_text(shape.text)}</text>"


def _begin(tag: str, **attributes: str | float | None) -> str:
    """The beginning of an element, with the attributes that are not None."""
    texts = (
        f' {key.replace("_", "-")}="{value if isinstance(value, str) else _number(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{''.join(texts)}"


def _path(line: Line) -> str:
    places = [f"{_number(x)} {_number(y)}" for x, y in line.points]
    if line.corners or len(places) < 4:
        return "M" + "L".join(places)
    return f"M{places[0]}C{' '.join(places[1:])}"


def _paint(fill: str, stroke: str, width: float) -> dict[str, str | float]:
    edge: dict[str, str | float] = {"stroke": stroke, "stroke_width": width} if stroke else {}
    return {"fill": fill or "none", **edge}


def _number(value: float) -> str:
    """Two decimals at most, so that rounding in the last place shows nowhere."""
    return f"{round(value, 2) + 0.0:.2f}".rstrip("0").rstrip(".")


def _text(text: str) -> str:
    """As XML writes it, without characters that nobody sees."""
    return html.escape(escape(text), quote=False)


def check_png() -> None:
    """Raises InputError with the install command if the renderer or its fonts are missing."""
    for name in ("resvg_py", _FONTS):
        load_extra(name, "PNG needs resvg: pip install 'simreduce[png]'; SVG needs nothing")


def to_png(drawing: Drawing) -> bytes:
    """The drawing as PNG: the same bytes for the same drawing and versions of the extra."""
    check_png()
    import resvg_py  # noqa: PLC0415 - loads when a PNG is written

    fonts = files(_FONTS) / "files"
    image: bytes = resvg_py.svg_to_bytes(
        svg_string=to_svg(drawing),
        zoom=min(_SCALE, math.sqrt(_MOST / (drawing.width * drawing.height))),
        skip_system_fonts=True,
        font_files=[
            str(fonts / name) for name in ("SourceSansPro-Regular.ttf", "SourceSansPro-Bold.ttf")
        ],
        font_family=_FAMILY,
        sans_serif_family=_FAMILY,
    )
    return image
