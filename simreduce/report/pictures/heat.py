"""Loads over a drawing of a machine: links and boxes in the colour of how busy they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simreduce.report.pictures.shapes import (
    FAINT,
    Drawing,
    Line,
    Mark,
    Rect,
    Shape,
    Text,
    text_width,
)

UNUSED = "#c3c8d0"
LEVELS = (
    (0.25, "#f0b95b", "up to 25%"),
    (0.5, "#e5812f", "up to 50%"),
    (0.75, "#c7421b", "up to 75%"),
    (1.0, "#7f1422", "up to 100%"),
)
"""Upper ends of load, their colours and words. Darker is busier, so a print in grey stays readable.
"""

_EDGE = 2.5
"""The width of a box's edge whose memory is used."""


def heat(load: float) -> str:
    """The colour of a load from 0 to 1."""
    if load <= 0.0:
        return UNUSED
    return next((colour for end, colour, _ in LEVELS if load <= end + 5e-4), LEVELS[-1][1])


def colour_loads(drawing: Drawing, loads: Mapping[str, float]) -> Drawing:
    """The drawing with its links and boxes coloured; titles say the loads. Busy links lie on top of
    others.
    """
    return replace(drawing, shapes=tuple(_coloured(drawing.shapes, loads)))


def _coloured(shapes: tuple[Shape, ...], loads: Mapping[str, float]) -> list[Shape]:
    found: list[Shape] = []
    lines: list[tuple[float, Shape]] = []
    for shape in shapes:
        if not isinstance(shape, Mark):
            found.append(shape)
        elif shape.kind == "link":
            load, drawn = _heated(shape, loads)
            lines.append((load, drawn))
        elif shape.kind.startswith("node"):
            found.append(_heated(shape, loads)[1])
        else:
            found.append(replace(shape, shapes=tuple(_coloured(shape.shapes, loads))))
    first = next((i for i, shape in enumerate(found) if isinstance(shape, Mark)), len(found))
    found[first:first] = [line for _, line in sorted(lines, key=lambda line: line[0])]
    return found


def _heated(mark: Mark, loads: Mapping[str, float]) -> tuple[float, Mark]:
    """The highest load of a mark's resources, and the mark in its colour.

    Its title gets the two highest loads.
    """
    mine = sorted(((loads.get(name, 0.0), name) for name in mark.resources), reverse=True)
    words = [f"{name}: busy {load:.0%}" for load, name in mine[:2] if load > 0.0]
    load = mine[0][0] if mine else 0.0
    drawn: list[Shape] = []
    for shape in mark.shapes:
        if isinstance(shape, Line):
            drawn.append(replace(shape, stroke=heat(load)))
        elif isinstance(shape, Rect) and load > 0.0:
            drawn.append(replace(shape, stroke=heat(load), stroke_width=_EDGE))
        else:
            drawn.append(shape)
    return load, replace(mark, shapes=tuple(drawn), title="\n".join([mark.title, *words]))


def draw_scale() -> Drawing:
    """The key of the colours."""
    shapes: list[Shape] = [Text(0, 11, "Busy for this part of the time:", 11, fill=FAINT)]
    x = text_width("Busy for this part of the time:", 11) + 8
    for colour, words in ((UNUSED, "never"), *((code, text) for _, code, text in LEVELS)):
        shapes += [
            Line(((x, 7), (x + 28, 7)), colour, 7),
            Text(x + 34, 11, words, 11),
        ]
        x += 34 + text_width(words, 11) + 14
    note = "A line shows the busier of its two directions, the edge of a box its memory."
    shapes.append(Text(0, 29, note, 10, fill=FAINT))
    return Drawing(max(x, text_width(note, 10)), 34, tuple(shapes))
