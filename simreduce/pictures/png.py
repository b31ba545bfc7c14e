"""A drawing as PNG, painted by Pillow (the extra `simreduce[png]`) in the font that comes with it."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from simreduce.errors import InputError
from simreduce.pictures.shapes import (
    WHITE,
    Circle,
    Drawing,
    Line,
    Point,
    Polygon,
    Rect,
    Shape,
    Text,
    flat,
    polyline,
)

_SCALE = 2
"""Pixels of the PNG for one of the drawing: for screens and print."""
_FINER = 2
"""Each of these is painted as so many squared, then averaged: edges become smooth."""
_MOST = 100_000_000
"""Pixels that are painted at most; larger drawings get a smaller scale."""


def check_png() -> None:
    """InputError if Pillow is not installed, with what to type."""
    try:
        import_module("PIL.ImageDraw")
    except ImportError:
        raise InputError(
            "PNG needs Pillow, install it with: pip install 'simreduce[png]'; SVG needs nothing"
        ) from None


def to_png(drawing: Drawing) -> bytes:
    """The same bytes for the same drawing and version of Pillow. InputError if there is none."""
    check_png()
    from PIL import Image, ImageDraw  # noqa: PLC0415 - only who wants a PNG needs it

    finest = math.sqrt(_MOST / (drawing.width * drawing.height))
    scale = min(float(_SCALE * _FINER), finest)
    size = math.ceil(drawing.width * scale / _FINER), math.ceil(drawing.height * scale / _FINER)
    image = Image.new("RGB", (size[0] * _FINER, size[1] * _FINER), WHITE)
    _paint(ImageDraw.Draw(image), flat(drawing.shapes), scale)
    buffer = io.BytesIO()
    image.reduce(_FINER).save(buffer, "PNG", optimize=False)
    return buffer.getvalue()


def _paint(canvas: Any, shapes: Iterable[Shape], scale: float) -> None:
    for shape in shapes:
        match shape:
            case Rect():
                corner = (shape.x + shape.width) * scale, (shape.y + shape.height) * scale
                canvas.rounded_rectangle(
                    (shape.x * scale, shape.y * scale, *corner),
                    shape.radius * scale,
                    fill=shape.fill or None,
                    outline=shape.stroke or None,
                    width=max(1, round(shape.stroke_width * scale)),
                )
            case Circle():
                x, y, r = shape.x * scale, shape.y * scale, shape.radius * scale
                canvas.ellipse(
                    (x - r, y - r, x + r, y + r),
                    fill=shape.fill,
                    outline=shape.stroke,
                    width=round(scale),
                )
            case Line():
                points = [(x * scale, y * scale) for x, y in polyline(shape.points)]
                for piece in _dashed(points, [length * scale for length in shape.dashes]):
                    canvas.polygon(_ribbon(piece, max(shape.width * scale, 1.0)), fill=shape.stroke)
            case Polygon():
                canvas.polygon([(x * scale, y * scale) for x, y in shape.points], fill=shape.fill)
            case Text():
                anchor = {"start": "ls", "middle": "ms", "end": "rs"}[shape.anchor]
                canvas.text(
                    (shape.x * scale, shape.y * scale),
                    shape.text,
                    fill=shape.fill,
                    font=_font(shape.size * scale),
                    anchor=anchor,
                    stroke_width=round(scale * 0.25) if shape.bold else 0,
                )


def _ribbon(points: Sequence[Point], width: float) -> list[Point]:
    """The outline of a line of that width: there on its left, back on its right."""
    left: list[Point] = []
    right: list[Point] = []
    for i, (x, y) in enumerate(points):
        (ax, ay), (bx, by) = points[max(i - 1, 0)], points[min(i + 1, len(points) - 1)]
        length = math.hypot(bx - ax, by - ay) or 1.0
        dx, dy = (by - ay) / length * width / 2, (ax - bx) / length * width / 2
        left.append((x + dx, y + dy))
        right.append((x - dx, y - dy))
    return left + right[::-1]


@cache
def _font(size: float) -> Any:
    from PIL import ImageFont  # noqa: PLC0415 - see above

    return ImageFont.load_default(size)


def _dashed(points: Sequence[Point], dashes: Sequence[float]) -> list[list[Point]]:
    """The pieces of a polyline that are inked, for lengths of ink and gap by turns; all of it
    without `dashes`.
    """
    if not dashes:
        return [list(points)]
    pieces: list[list[Point]] = [[points[0]]]
    turns = itertools.cycle(dashes)
    left, ink = next(turns), True
    for a, b in itertools.pairwise(points):
        length = math.dist(a, b)
        done = 0.0
        while length - done > left:
            done += left
            place = a[0] + (b[0] - a[0]) * done / length, a[1] + (b[1] - a[1]) * done / length
            if ink:
                pieces[-1].append(place)
            else:
                pieces.append([place])
            left, ink = next(turns), not ink
        left -= length - done
        if ink:
            pieces[-1].append(b)
    return pieces if len(pieces[-1]) > 1 else pieces[:-1]
