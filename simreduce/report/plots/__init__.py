"""Charts of plain data, declared as a `Plot` and drawn as SVG and PNG.

Plots as values, and the one way to draw them: facets with two axes and series of points.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from simreduce.errors import cut, escape
from simreduce.report.drawing import (
    FAINT,
    INK,
    WHITE,
    Area,
    Circle,
    Drawing,
    Line,
    Mark,
    Polygon,
    Rect,
    Shape,
    Text,
    dashes,
    overlap,
    shift,
    stack,
    text_width,
    to_png,
    to_svg,
    wrap,
)
from simreduce.report.plots.axes import Axis, Scale

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b07d00", "#56b4e9", INK)
"""Okabe and Ito's, without the yellow, which white hides, and with a darker orange."""
_CORNERS = ((0, 0.0), (4, 45.0), (3, -90.0), (4, 0.0), (3, 90.0))
"""Corners of marks and the angle of the first: discs, squares, triangles, and so on."""
_GREY = "#9a9a9a"
_ROLES = {"best": _COLOURS[0], "today": _COLOURS[1], "others": "#b8bfc8", "ink": INK}
"""Colours of roles; pages have their own for light and dark."""
_MOST_SERIES = 12
"""Series with a look of their own; the others are grey."""
_DASHES = {"solid": (), "dashed": (6.0, 3.0), "dotted": (1.5, 3.0)}
_NAME = 44
"""Characters of a name."""
_MARGIN, _GAP = 16.0, 10.0
_SMALL = 10.0
"""The size of texts beside axes and in legends."""
_GRID = "#e2e2e2"
_TURN = -30.0
"""Degrees by which names below an axis are turned if they need more room."""
_MOST_BARS, _MOST_LABELS = 40, 60


class PlotPoint(NamedTuple):
    """A place in the units of the axes, the ends of an interval around it (None without one), and a
    label. Marks are hollow where `meets` is false.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""
    meets: bool = True


@dataclass(frozen=True, slots=True)
class PlotSeries:
    """Points with one look, and the name of that in the legend, which names each once.

    A line joins them in their order. A `bar` goes from `low`, by default 0, to x; a `tick` stands
    across the bar of its row; an `area`, of pages, stands on those before it. The `colour` is a
    code or a role (`best`, `today`, `others`, `ink`); without it the name has one of its own.
    Intervals are those of x (`across`) or of y.
    """

    name: str
    points: Sequence[PlotPoint] = ()
    line: Literal["solid", "dashed", "dotted", ""] = "solid"
    mark: Literal["dot", "ring", "bar", "cell", "tick", "area", ""] = "dot"
    colour: str = ""
    interval: Literal["band", "across", "up"] = "band"


@dataclass(frozen=True, slots=True)
class Facet:
    """Series on two axes; names on the y axis stand from the top down. The height, in pixels, is
    that between the ends of the y axis. `empty` stands in place of points.
    """

    x: Axis
    y: Axis
    series: Sequence[PlotSeries]
    title: str = ""
    height: float = 300.0
    empty: str = "nothing to draw"

    @property
    def names(self) -> list[str]:
        """The names of the legend."""
        return list(dict.fromkeys(each.name for each in self.series if each.name))


@dataclass(frozen=True, slots=True)
class Plot:
    """Facets side by side in `columns`, under a title; notebooks show it.

    Facets with equal names share a legend. The width is in pixels; lines of `notes` stand below.
    """

    title: str
    subtitle: str
    facets: Sequence[Facet]
    columns: int = 1
    width: float = 760.0
    notes: Sequence[str] = ()

    def svg(self) -> str:
        """The plot as SVG: the same text for the same data."""
        return to_svg(self.drawing())

    def png(self) -> bytes:
        """The plot as PNG, which needs the extra `simreduce[png]`."""
        return to_png(self.drawing())

    _repr_svg_ = svg

    def drawing(self) -> Drawing:
        """The shapes of the plot."""
        inner = self.width - 2 * _MARGIN
        wide = (inner - _GAP * (self.columns - 1)) / self.columns
        shared = all(facet.names == self.facets[0].names for facet in self.facets)
        drawn = [_draw_facet(facet, wide, legend=not shared) for facet in self.facets]
        rows = [drawn[k : k + self.columns] for k in range(0, len(drawn), self.columns)]
        parts = [
            stack(
                [*_lines(self.title, 15, inner, bold=True), *_lines(self.subtitle, 12, inner)], 5
            ),
            *(_beside(row, wide + _GAP) for row in rows),
            *([_draw_legend(self.facets[0], inner)] if shared else []),
            stack([line for note in self.notes for line in _lines(note, _SMALL, inner)], 4),
        ]
        page = stack([part for part in parts if part.shapes], 14.0)
        shapes = tuple(shift(shape, _MARGIN, _MARGIN) for shape in page.shapes)
        return Drawing(self.width, page.height + 2 * _MARGIN, shapes)


def _short(text: str) -> str:
    """On one line, as it is drawn, and cut where it is long."""
    return cut(" ".join(escape(text).split()), _NAME)


def _wide(text: str) -> float:
    """The width of a small text."""
    return text_width(_short(text), _SMALL)


def _deep(text: str) -> float:
    """The height of a small text that is turned."""
    return 0.42 * _wide(text)


def _lines(text: str, size: float, width: float, *, bold: bool = False) -> Iterator[Drawing]:
    """A text on lines that are at most about `width` pixels long."""
    for line in wrap(text, width, size):
        shape = Text(0, size, line, size, fill=INK if bold else FAINT, bold=bold)
        yield Drawing(width, size, (shape,))


def _beside(drawings: Sequence[Drawing], step: float) -> Drawing:
    """Drawings side by side."""
    shapes = [shift(s, k * step, 0) for k, each in enumerate(drawings) for s in each.shapes]
    return Drawing(step * len(drawings), max(each.height for each in drawings), tuple(shapes))


_Tick: TypeAlias = tuple[float, str]
"""A pixel of an axis and the text beside it."""


class _Look(NamedTuple):
    colour: str
    corners: tuple[int, float] = _CORNERS[0]
    radius: float = 3.4
    dashes: tuple[float, ...] = ()


def _own_look(series: PlotSeries) -> _Look:
    return _Look(_ROLES.get(series.colour, series.colour))


def _looks(facet: Facet) -> dict[str, _Look]:
    """The look of each name, in the order of the first `_MOST_SERIES`. Those of one colour differ
    in their marks and in their dashes.
    """
    given = {each.name: _own_look(each) for each in facet.series if each.colour}
    taken = {look.colour for look in given.values()}
    colours = [colour for colour in _COLOURS if colour not in taken]
    free = [name for name in facet.names if name not in given]
    places = (divmod(i, len(colours)) for i in range(_MOST_SERIES))
    own = {
        name: _Look(colours[k], _CORNERS[(k + again) % len(_CORNERS)], dashes=dashes(again))
        for name, (again, k) in zip(free, places, strict=False)
    }
    return dict.fromkeys(free, _Look(_GREY, radius=2.2)) | own | given


def _draw_facet(facet: Facet, width: float, *, legend: bool) -> Drawing:
    """A facet with its axes, and its own `legend` if it has one."""
    points = [(series, point) for series in facet.series for point in series.points]
    top = 20.0 * bool(facet.title) + 18.0 * bool(facet.y.label) + 4.0
    ends = (top, top + facet.height) if facet.y.names else (top + facet.height, top)
    up = facet.y.scale(
        end for s, p in points for end in (p.y, *(_interval(p) if s.interval != "across" else ()))
    )._replace(begin=ends[0], end=ends[1])
    bars = [_wide(point.label) for series, point in points if series.mark == "bar"]
    across = facet.x.scale(
        end for s, p in points for end in (p.x, *(_interval(p) if s.interval == "across" else ()))
    )._replace(end=width - max(bars, default=0.0) - 12)
    shapes: list[Shape] = []
    if facet.title:
        shapes.append(Text(0, 12, _short(facet.title), 12, bold=True))
    if points:
        beside = up.ticks(max(int(facet.height / (13 if facet.y.names else 30)), 2))
        across = across._replace(begin=max((_wide(text) for _, text in beside), default=0.0) + 10)
        below, turn = _ticks_below(across)
        if turn and (beyond := max(_wide(text) * 0.75 - x for x, text in below)) > 0:
            across = across._replace(begin=across.begin + beyond)
            below, turn = _ticks_below(across)
        shapes += _draw_axes(up, across, beside, below, turn)
    else:
        shapes.append(Text(width / 2, sum(ends) / 2, facet.empty, 12, "middle", FAINT))
    looks = _looks(facet)
    given_first = sorted(facet.series, key=lambda each: not each.colour)
    for draw in (_draw_intervals, _draw_series):
        for s in given_first:
            look = _own_look(s) if s.colour else looks[s.name]
            shapes.append(Mark(tuple(draw(s, look, across, up)), _short(s.name), "series"))
    shapes += _labels([p for s, p in points if s.mark == "dot"], across, up)
    texts = [each for each in shapes if isinstance(each, Text)]
    lowest = max([*ends, *(each.y + bool(each.turn) * _deep(each.text) for each in texts)])
    whole = Drawing(width, lowest + 4, tuple(shapes))
    return stack([whole, _draw_legend(facet, width)], _GAP) if legend else whole


def _draw_axes(
    up: Scale, across: Scale, beside: Sequence[_Tick], below: Sequence[_Tick], turn: float
) -> Iterator[Shape]:
    """The lines, the values and the names of both axes."""
    (left, right), (bottom, top) = across[-2:], (max(up[-2:]), min(up[-2:]))
    for y, text in beside:
        if not up.axis.names:
            yield Line(((left, y), (right, y)), _GRID, 1)
        yield Text(left - 6, y + 3.5, _short(text), _SMALL, "end", FAINT)
    for x, text in below:
        if not across.axis.names:
            yield Line(((x, top), (x, bottom)), _GRID, 1)
        anchor = "end" if turn else "middle"
        yield Text(x, bottom + 16, _short(text), _SMALL, anchor, FAINT, turn=turn)
    yield Line(((left, top), (left, bottom), (right, bottom)), _GREY, 1)
    lower = bottom + 34 + bool(turn) * max((_deep(text) for _, text in below), default=0.0)
    if across.axis.label:
        yield Text((left + right) / 2, lower, _short(across.axis.label), 11, "middle", FAINT)
    if up.axis.label:
        yield Text(0, top - 10, _short(up.axis.label), 11, fill=FAINT)


def _interval(point: PlotPoint) -> list[float]:
    return [end for end in (point.low, point.high) if end is not None]


def _ticks_below(across: Scale) -> tuple[list[_Tick], float]:
    """The ticks of an x axis, as many as stand side by side, and by how much they are turned."""
    width = across.end - across.begin
    if across.axis.names:
        ticks = across.ticks(max(int(width / 14), 1))
        return ticks, 0.0 if _fit(ticks) else _TURN
    found = (across.ticks(most) for most in range(max(int(width / 60), 2), 1, -1))
    return next(filter(_fit, found), across.ticks(2)), 0.0


def _fit(ticks: Sequence[_Tick]) -> bool:
    halves = [(x, _wide(text) / 2) for x, text in ticks]
    return all(b - a >= one + other for (a, one), (b, other) in itertools.pairwise(halves))


def _draw_intervals(series: PlotSeries, look: _Look, across: Scale, up: Scale) -> Iterator[Shape]:
    """The intervals of a series: a band, or a bar for each."""
    ranges = [
        (across.at(p.x), up.at(p.y), p.low, p.high)
        for p in series.points
        if p.low is not None and p.high is not None
    ]
    if series.mark == "bar":
        return
    if series.interval == "band":
        edge = [(x, up.at(low)) for x, _, low, _ in ranges]
        edge += [(x, up.at(high)) for x, _, _, high in reversed(ranges)]
        yield Polygon(tuple(edge), look.colour, opacity=0.15)
        return
    for x, y, low, high in ranges:
        area = (across.at(low), y - 2, across.at(high), y + 2)
        area = area if series.interval == "across" else (x - 2, up.at(low), x + 2, up.at(high))
        yield _area(area, look.colour, 0.3)


def _draw_series(series: PlotSeries, look: _Look, across: Scale, up: Scale) -> Iterator[Shape]:
    """The line and the marks of a series."""
    at = [(across.at(p.x), up.at(p.y)) for p in series.points]
    if series.line and len(at) > 1:
        width = 0.9 if look.colour == _GREY else 1.7
        how = _DASHES[series.line] or look.dashes
        yield Line(tuple(at), look.colour, width, how, corners=True)
    for p, (x, y) in zip(series.points, at, strict=True):
        if series.mark in ("bar", "cell"):
            yield from _box(series, p, look, across, up)
        elif series.mark == "tick":
            yield Line(((x, y - 8), (x, y + 8)), look.colour, 2)
        elif series.mark:
            yield _dot(x, y, look, hollow=not p.meets, ring=series.mark == "ring")


def _box(
    series: PlotSeries, p: PlotPoint, look: _Look, across: Scale, up: Scale
) -> Iterator[Shape]:
    """A bar with its label beside it, or a cell with its label inside."""
    bar = series.mark == "bar"
    ends = (p.low or 0.0, p.x) if bar else (p.x - 0.5, p.x + 0.5)
    half = 0.36 if bar else 0.5
    (left, right), tops = map(across.at, ends), [up.at(p.y - half), up.at(p.y + half)]
    wide, high = right - left + 0.3, abs(tops[1] - tops[0])  # so that neighbours leave no seam
    yield Rect(left, min(tops), wide, high, look.colour, "", 0)
    middle = sum(tops) / 2 + 3.5
    if bar and p.label:
        yield Text(right + 4, middle, p.label, _SMALL)
    elif p.label and text_width(p.label, 8) <= wide and high >= 11:
        dark = sum(int(look.colour[k : k + 2], 16) for k in (1, 3, 5)) < 3 * 120
        yield Text((left + right) / 2, middle, p.label, 9, "middle", WHITE if dark else INK)


def _dot(x: float, y: float, look: _Look, *, hollow: bool = False, ring: bool = False) -> Shape:
    if ring:
        return Circle(x, y, 8.0, "", look.colour)
    count, first = look.corners
    fill, edge = (WHITE, look.colour) if hollow else (look.colour, WHITE)
    if not count:
        return Circle(x, y, look.radius, fill, edge)
    angles = [math.radians(first + 360.0 * k / count) for k in range(count)]
    far = look.radius * (1.45 if count == 3 else 1.3)
    corners = [(x + far * math.cos(a), y + far * math.sin(a)) for a in angles]
    return Polygon(tuple(corners), fill, edge)


def _labels(points: Sequence[PlotPoint], across: Scale, up: Scale) -> Iterator[Shape]:
    """Labels near their points, where each has room."""
    marks = [(across.at(p.x), up.at(p.y)) for p in points]
    taken = [(x - 3, y - 3, x + 3, y + 3) for x, y in marks]
    for p in [p for p in points if p.label][:_MOST_LABELS]:
        x, y, text = across.at(p.x), up.at(p.y), _short(p.label)
        half = text_width(text, 9) / 2
        places = [(dx, dy) for dy in (-7, 15) for dx in (0, half - 6, 6 - half)]
        for dx, dy in (*places, (half + 8, 3), (-half - 8, 3)):
            box = (x + dx - half, y + dy - 9, x + dx + half, y + dy + 2)
            inside = across.begin <= box[0] and box[2] <= across.end + 12
            if inside and not any(overlap(box, other) for other in taken):
                taken.append(box)
                yield _area(box, WHITE, 0.75)
                yield Text(x + dx, y + dy, text, 9, "middle")
                break


def _area(area: Area, colour: str, opacity: float) -> Shape:
    left, top, right, bottom = area
    corners = ((left, top), (right, top), (right, bottom), (left, bottom))
    return Polygon(corners, colour, opacity=opacity)


def _draw_legend(facet: Facet, width: float) -> Drawing:
    """Samples of the looks and their names, in columns."""
    looks = _looks(facet)
    first = {each.name: each for each in reversed(facet.series)}
    grey = [name for name in facet.names if looks[name].radius < 3]
    entries = [(looks[name], first[name], _short(name)) for name in facet.names if name not in grey]
    if grey:
        entries.append((looks[grey[0]], first[grey[0]], f"{len(grey):,} more, in grey"))
    column = max((text_width(text, _SMALL) for *_, text in entries), default=0.0) + 42
    columns = max(int(width // column), 1)
    shapes: list[Shape] = []
    for k, (look, series, text) in enumerate(entries):
        x, y = k % columns * column, k // columns * 17.0
        if series.mark in ("bar", "cell"):
            shapes.append(Rect(x + 6, y + 2, 16, 10, look.colour, "", 0))
        elif series.line:
            how, ends = _DASHES[series.line] or look.dashes, ((x, y + 7), (x + 28, y + 7))
            shapes.append(Line(ends, look.colour, 1.7, how))
        if series.mark in ("dot", "ring"):
            shapes.append(_dot(x + 14, y + 7, look, ring=series.mark == "ring"))
        shapes.append(Text(x + 34, y + 11, text, _SMALL))
    return Drawing(width, 17.0 * -(-len(entries) // columns), tuple(shapes))


def bar_facet(
    axis: Axis,
    bars: Sequence[tuple[str, float]],
    marks: Sequence[int] = (),
    floors: Sequence[float] = (),
    labels: Sequence[str] = (),
) -> Facet:
    """A bar for each name and value, the first on top. Its mark is 1 for the best, which all are
    without `marks`, 2 for what runs today, 3 for both, or 0; its floor is a lower bound of its
    value. Its label is its value by default.
    """
    points: dict[str, list[PlotPoint]] = {}
    for k, (_, value) in enumerate(bars):
        role = ("others", "best", "today", "best")[marks[k] if marks else 1]
        label = labels[k] if labels else axis.show(value)
        points.setdefault(role, []).append(PlotPoint(value, k, label=label))
    series = [PlotSeries("", some, "", "bar", role, "across") for role, some in points.items()]
    if floors:
        ticks = [PlotPoint(floor, k) for k, floor in enumerate(floors)]
        series.append(PlotSeries("lower bound", ticks, "", "tick", "ink"))
    return Facet(axis, Axis(names=[name for name, _ in bars]), series, height=20 * len(bars) + 20)


def bar_plot(
    bars: Sequence[tuple[str, float]], title: str, subtitle: str = "", factor: str = ""
) -> Plot:
    """A bar for each name and time in seconds; or how many times as long something takes, if that
    has a name as `factor`.
    """
    axis = Axis(factor or "time", "times" if factor else "seconds", log=False)
    shown = bars[:_MOST_BARS]
    more = f" (the first {len(shown)} of {len(bars):,})" if len(shown) < len(bars) else ""
    return Plot(title + more, subtitle, [bar_facet(axis, shown)])
