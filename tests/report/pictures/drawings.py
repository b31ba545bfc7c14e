"""Drawings as the tests look at them."""

from __future__ import annotations

from collections.abc import Iterable

from simreduce.report.drawing import Mark, Shape


def flat(shapes: Iterable[Shape]) -> Iterable[Shape]:
    """All shapes, those of marks too, without the marks."""
    for shape in shapes:
        if isinstance(shape, Mark):
            yield from flat(shape.shapes)
        else:
            yield shape
