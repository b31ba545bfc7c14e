"""Measured times beside predicted ones: how far each is from the other, and both against size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from simreduce import units
from simreduce.errors import InputError
from simreduce.pictures.axes import Axis, Tick, size_axis, size_ticks, time_axis, time_ticks
from simreduce.pictures.marks import MOST, Look, look, mark
from simreduce.pictures.shapes import (
    FAINT,
    INK,
    Drawing,
    Group,
    Line,
    Point,
    Polygon,
    Rect,
    Shape,
    Text,
    stacked,
    text_width,
)

_MARGIN, _GAP = 24.0, 16.0
_SIDE, _BETWEEN = 400.0, 44.0
"""Of a panel, and what is free between two."""
_TOP, _BOTTOM = 40.0, 38.0
"""Above a panel for its heading, and below it for its labels."""
_LABEL_GAP, _LABEL_HEIGHT = 10.0, 28.0
_ROW, _SAMPLE, _CELL_GAP = 19.0, 30.0, 22.0
_NEAR = 0.2
"""How far off a prediction in the band is at most, as a part of the measured time."""
_GRID, _BAND = "#dddddd", "#ededed"
_DASHES = (5.0, 4.0)
_MEASURED, _PREDICTED, _INTERVAL = 1.6, 1.4, 1.1
"""Widths of lines."""
_STUB = 11.5
"""Half the length of a line through one prediction: three dashes."""


class Measured(NamedTuple):
    """What one reduction took: median and 95 % interval (`low` to `high`), and what was
    `predicted`; all in seconds.
    """

    algorithm: str
    size_bytes: int
    measured: float
    low: float
    high: float
    predicted: float | None

    @property
    def words(self) -> str:
        """The row in a line of text."""
        low, median, high = map(units.format_duration, (self.low, self.measured, self.high))
        text = f"{self.algorithm}, {units.exact_size(self.size_bytes)}: measured {median} ({low} to {high})"
        if self.predicted is None:
            return f"{text}, not predicted"
        error = self.predicted / self.measured - 1
        return f"{text}, predicted {units.format_duration(self.predicted)} ({error:+.1%})"


def validation_picture(rows: Sequence[Measured], title: str, notes: Sequence[str] = ()) -> Drawing:
    """Predicted against measured times on the left, times against size on the right, `notes` below.

    Algorithms have colours in the order of their first rows; of more than a dozen the others are
    grey. Rows of one size stand side by side. InputError names every row that has no place on a
    logarithmic axis, or says that there is none.
    """
    _check(rows)
    looks = {name: look(i) for i, name in enumerate(dict.fromkeys(row.algorithm for row in rows))}
    # Grey ones lie below the others, and the first algorithm above all.
    drawn = sorted(rows, key=lambda row: list(looks).index(row.algorithm), reverse=True)
    panels = _beside(_scatter(drawn, looks), _by_size(drawn, looks))
    width = panels.width
    below = [
        _cells(_key(rows), width),
        _cells(
            [(mark(of, _SAMPLE / 2, 7), name) for name, of in list(looks.items())[:MOST]], width
        ),
        _others(list(looks)[MOST:], width),
        _paragraphs(notes, width, 11, FAINT),
    ]
    parts = [_paragraphs([title], width, 16, bold=True), panels, *below]
    inner = stacked([part for part in parts if part.shapes], _GAP)
    shapes = tuple(shape.moved(_MARGIN, _MARGIN) for shape in inner.shapes)
    return Drawing(width + 2 * _MARGIN, inner.height + 2 * _MARGIN, shapes)


def _check(rows: Sequence[Measured]) -> None:
    if not rows:
        raise InputError("nothing was measured: there is nothing to draw")
    problems = []
    for row in rows:
        times = {
            "measured": row.measured,
            "low": row.low,
            "high": row.high,
            "predicted": row.predicted,
        }
        place = f"{row.algorithm}, {row.size_bytes} B"
        if row.size_bytes <= 0:
            problems.append(f"{place}: the size must be at least 1 B")
        for key, value in times.items():
            if value is not None and not 0 < value < math.inf:
                problems.append(f"{place}: {key}: {value} s; must be more than 0 s and finite")
        if row.low > row.high:
            problems.append(f"{place}: low: {row.low} s is more than high: {row.high} s")
    if problems:
        raise InputError(problems)


def _beside(left: Drawing, right: Drawing) -> Drawing:
    aside = left.width + _BETWEEN
    shapes = (*left.shapes, *(shape.moved(aside, 0) for shape in right.shapes))
    return Drawing(aside + right.width, max(left.height, right.height), shapes)


def _scatter(rows: Sequence[Measured], looks: Mapping[str, Look]) -> Drawing:
    """The left panel: both axes are of the same times."""
    shown = [(row, row.predicted) for row in rows if row.predicted is not None]
    used = [
        time for row, predicted in shown for time in (row.low, row.measured, row.high, predicted)
    ]
    across = time_axis(used or [row.measured for row in rows], 0, _SIDE)
    up = Axis(across.low, across.high, _SIDE, 0)
    ticks = time_ticks(across, _width)
    middle = _SIDE / 2
    if not shown:
        inside: list[Shape] = [
            Text(middle, middle, "No row has a prediction.", 11, "middle", FAINT)
        ]
        below: list[Shape] = []
    else:
        below = [_band(across)]
        inside = [Group((Line(((0, _SIDE), (_SIDE, 0)), FAINT, 1),), "no error", "equality")]
        for row, predicted in shown:
            ends = tuple((across.place(x), up.place(predicted)) for x in (row.low, row.high))
            inside.append(_bar(ends, looks[row.algorithm].colour))
        for row, predicted in shown:
            of = mark(looks[row.algorithm], across.place(row.measured), up.place(predicted))
            inside.append(Group((of,), row.words, "mark"))
    levels = [(_SIDE - x, label) for x, label in ticks]
    headings = ("Predicted against measured time", "predicted time", "measured time")
    return _panel(headings, ticks, levels, below, inside)


def _band(axis: Axis) -> Polygon:
    """The band round the line on which predictions are what was measured, cut at the frame."""
    pixels = _SIDE / (axis.high - axis.low)
    above, under = (abs(math.log10(1 + error)) * pixels for error in (_NEAR, -_NEAR))
    corners = (
        (0.0, _SIDE),
        (0.0, _SIDE - above),
        (_SIDE - above, 0.0),
        (_SIDE, 0.0),
        (_SIDE, under),
        (under, _SIDE),
    )
    return Polygon(corners, _BAND)


def _by_size(rows: Sequence[Measured], looks: Mapping[str, Look]) -> Drawing:
    """The right panel. One size needs no axis: the algorithms stand side by side."""
    times = [
        time
        for row in rows
        for time in (row.low, row.measured, row.high, row.predicted or row.measured)
    ]
    up = time_axis(times, _SIDE, 0)
    sizes = sorted({row.size_bytes for row in rows})
    heading, along, ticks, stub = "Time by size", "size", [], _STUB
    if len(sizes) > 1:
        across = size_axis(sizes, 0, _SIDE)
        ticks = size_ticks(across, _width)
        place: Callable[[Measured], float] = lambda row: across.place(row.size_bytes)  # noqa: E731
    else:
        column = _SIDE / len(looks)
        stub = min(_STUB, column / 2 - 1)
        places = {name: column * (i + 0.5) for i, name in enumerate(looks)}
        place = lambda row: places[row.algorithm]  # noqa: E731
        heading = f"Time at {units.exact_size(sizes[0])}"
        along = "algorithms in the order of the legend"
    inside: list[Shape] = []
    for name in dict.fromkeys(row.algorithm for row in rows):
        own = [row for row in rows if row.algorithm == name]
        measured = sorted((place(row), up.place(row.measured)) for row in own)
        predicted = sorted(
            (place(row), up.place(row.predicted)) for row in own if row.predicted is not None
        )
        of = looks[name]
        solid, dashed = (width * of.weight for width in (_MEASURED, _PREDICTED))
        lines: list[Shape] = []
        if len(measured) > 1:
            lines.append(_broken(measured, of.colour, solid))
        if len(predicted) == 1:
            ((x, y),) = predicted
            dashes = _DASHES if stub == _STUB else ()
            lines.append(Line(((x - stub, y), (x + stub, y)), of.colour, dashed, dashes))
        elif predicted:
            lines.append(_broken(predicted, of.colour, dashed, _DASHES))
        inside.append(Group(tuple(lines), name, "curve"))
    for row in rows:
        ends = tuple((place(row), up.place(y)) for y in (row.low, row.high))
        of = looks[row.algorithm]
        point = mark(of, place(row), up.place(row.measured), 0.75)
        inside.append(Group((_bar(ends, of.colour), point), row.words, "time"))
    levels = time_ticks(up, lambda _: _LABEL_HEIGHT)
    return _panel((heading, "time", along), ticks, levels, [], inside)


def _bar(ends: tuple[Point, ...], colour: str) -> Line:
    return Line(ends, colour, _INTERVAL)


def _broken(
    points: Sequence[Point], colour: str, width: float, dashes: tuple[float, ...] = ()
) -> Line:
    """A line of straight pieces, as the curves that shapes have: one line, so that dashes run on
    over its corners.
    """
    path = [points[0]]
    for (ax, ay), (bx, by) in pairwise(points):
        path += [(ax + (bx - ax) * part, ay + (by - ay) * part) for part in (1 / 3, 2 / 3)]
        path.append((bx, by))
    return Line(tuple(path), colour, width, dashes)


def _panel(
    headings: tuple[str, str, str],
    ticks: Sequence[Tick],
    levels: Sequence[Tick],
    below: Sequence[Shape],
    inside: Sequence[Shape],
) -> Drawing:
    """A square with a heading, a name above its upright axis and one under the other. Shapes
    `below` the grid and those `inside` are placed from its upper left corner.
    """
    left = max(text_width(label, 10) for _, label in levels) + 8
    heading, upright, along = headings
    grid: list[Shape] = []
    for x, label in ticks:
        line = Line(((x, 0), (x, _SIDE)), _GRID, 0.7)
        grid.append(Group((line, Text(x, _SIDE + 15, label, 10, "middle")), label, "tick across"))
    for y, label in levels:
        line = Line(((0, y), (_SIDE, y)), _GRID, 0.7)
        grid.append(Group((line, Text(-7, y + 3.5, label, 10, "end")), label, "tick up"))
    frame = Rect(0, 0, _SIDE, _SIDE, "", INK, 0)
    name = Text(_SIDE / 2, _SIDE + 32, along, 11, "middle", FAINT)
    square = Group((*below, *grid, frame, *inside, name), heading, "panel")
    texts = (Text(left, 11, heading, 12, bold=True), Text(0, 28, upright, 11, fill=FAINT))
    return Drawing(left + _SIDE, _TOP + _SIDE + _BOTTOM, (*texts, square.moved(left, _TOP)))


def _width(label: str) -> float:
    return text_width(label, 10) + _LABEL_GAP


_Cell = tuple[Shape, str]
"""A sample, `_SAMPLE` wide and 14 high, and what it stands for."""


def _key(rows: Sequence[Measured]) -> list[_Cell]:
    """What lines stand for."""
    measured = Line(((0, 7), (_SAMPLE, 7)), FAINT, _MEASURED)
    interval = Line(((_SAMPLE / 2, 0), (_SAMPLE / 2, 14)), FAINT, _INTERVAL)
    cells: list[_Cell] = [(measured, "measured"), (interval, "95 % interval")]
    if any(row.predicted is not None for row in rows):
        equal = Line(((4, 14), (_SAMPLE - 4, 0)), FAINT, 1)
        cells += [
            (Line(((0, 7), (_SAMPLE, 7)), FAINT, _PREDICTED, _DASHES), "predicted"),
            (equal, "no error"),
            (Rect(0, 1, _SAMPLE, 12, _BAND, "", 0), f"{100 * _NEAR:g} % error or less"),
        ]
    return cells


def _cells(cells: Sequence[_Cell], width: float) -> Drawing:
    """In as many columns as there is room for; what is longer than a line is cut."""
    texts = [_cut(text, width - _SAMPLE - 8, 11) for _, text in cells]
    cell = max(text_width(text, 11) for text in texts) + _SAMPLE + 8 + _CELL_GAP
    columns = max(int((width + _CELL_GAP) / cell), 1)
    shapes: list[Shape] = []
    for i, ((sample, _), text) in enumerate(zip(cells, texts, strict=True)):
        x, y = i % columns * cell, i // columns * _ROW
        shapes += [sample.moved(x, y), Text(x + _SAMPLE + 8, y + 11, text)]
    return Drawing(width, -(-len(cells) // columns) * _ROW - 5, tuple(shapes))


def _others(names: Sequence[str], width: float) -> Drawing:
    """The algorithms that are grey, all by name."""
    if not names:
        return Drawing(width, 0, ())
    text = f"{len(names):,} more, in grey: {', '.join(names)}"
    words = _paragraphs([text], width - _SAMPLE - 8, 11)
    sample = mark(look(MOST), _SAMPLE / 2, 7)
    return Drawing(
        width, words.height, (sample, *(shape.moved(_SAMPLE + 8, 0) for shape in words.shapes))
    )


def _paragraphs(
    texts: Sequence[str], width: float, size: float, fill: str = INK, *, bold: bool = False
) -> Drawing:
    """Each on lines of its own."""
    wide = width / 1.1 if bold else width
    lines = [line for text in texts for line in _lines(text, wide, size)]
    shapes = [
        Text(0, size + k * size * 1.4, line, size, "start", fill, bold)
        for k, line in enumerate(lines)
    ]
    return Drawing(width, len(lines) * size * 1.4, tuple(shapes))


def _lines(text: str, width: float, size: float) -> Iterator[str]:
    """A text broken at spaces; a word that is longer than a line is cut."""
    line = ""
    for word in text.split():
        longer = f"{line} {word}" if line else word
        if line and text_width(longer, size) > width:
            yield line
            longer = word
        line = _cut(longer, width, size)
    if line:
        yield line


def _cut(text: str, width: float, size: float) -> str:
    """On one line, with `...` for what has no room."""
    text = " ".join(text.split())
    if text_width(text, size) <= width:
        return text
    while text and text_width(f"{text}...", size) > width:
        text = text[:-1]
    return f"{text}..."
