"""Logarithmic axes: where a value lies, and which values are written beside the axis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from simreduce import units

_MARGIN = 0.04
"""The part of an axis that stays free at either end, so that marks do not touch the frame."""
_FIVEFOLD, _FOURFOLD = math.log10(5), math.log10(4)
"""What an axis spans at least: two of 1, 2 and 5 times a power of ten lie in it, or two powers of
two.
"""

_Value = TypeVar("_Value", int, float)

Tick = tuple[float, str]
"""The pixel and its label."""


@dataclass(frozen=True, slots=True)
class Axis:
    """From the decimal logarithm `low`, at the pixel `start`, to `high` at `end`."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """The pixel of a value above 0."""
        return self.start + (math.log10(value) - self.low) / (self.high - self.low) * (
            self.end - self.start
        )

    def has(self, value: float) -> bool:
        """Whether it lies on the axis."""
        return value > 0 and self.low <= math.log10(value) <= self.high


def time_axis(seconds: Sequence[float], start: float, end: float) -> Axis:
    """An axis on which all these lie."""
    return _axis(seconds, _FIVEFOLD, start, end)


def size_axis(nbytes: Sequence[int], start: float, end: float) -> Axis:
    """An axis on which all these lie."""
    return _axis(nbytes, _FOURFOLD, start, end)


def _axis(values: Sequence[float], least: float, start: float, end: float) -> Axis:
    low, high = math.log10(min(values)), math.log10(max(values))
    lacking = max(least - (high - low), 0.0) / 2
    low, high = low - lacking, high + lacking
    margin = (high - low) * _MARGIN / (1 - 2 * _MARGIN)
    return Axis(low - margin, high + margin, start, end)


def time_ticks(axis: Axis, room: Callable[[str], float]) -> list[Tick]:
    """Round times, from 1, 1.5, 2, 3, 5, 7, 10 to every so many powers of ten: as many as have
    `room` (pixels) for their labels.
    """
    return _ticks(axis, _times(axis), units.format_duration, room)


def size_ticks(axis: Axis, room: Callable[[str], float]) -> list[Tick]:
    """Powers of two, as many as have `room` (pixels) for their labels."""
    return _ticks(axis, _sizes(axis), units.exact_size, room)


def _times(axis: Axis) -> Iterator[list[float]]:
    powers = range(math.floor(axis.low), math.ceil(axis.high) + 1)
    for digits in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5)):
        yield [float(f"{digit}e{power}") for power in powers for digit in digits]
    for step in itertools.count(1):
        yield [float(f"1e{power}") for power in powers if power % step == 0]


def _sizes(axis: Axis) -> Iterator[list[int]]:
    last = math.ceil(axis.high / math.log10(2))
    # Every fifth, as 1 KiB, 32 KiB, 1 MiB.
    for step in (1, 2, 5, *range(10, last + 20, 10)):
        yield [1 << power for power in range(0, last + 1, step)]


def _ticks(
    axis: Axis,
    choices: Iterable[Sequence[_Value]],
    label: Callable[[_Value], str],
    room: Callable[[str], float],
) -> list[Tick]:
    """The first choice of which no two labels come too near."""
    ticks: list[Tick] = []
    for values in choices:
        ticks = [(axis.place(value), label(value)) for value in values if axis.has(value)]
        if all(
            abs(a - b) >= (room(s) + room(t)) / 2 for (a, s), (b, t) in itertools.pairwise(ticks)
        ):
            break
    return ticks
