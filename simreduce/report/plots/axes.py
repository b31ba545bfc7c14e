"""Axes of plots: what they count, where values stand on them, and round values beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from simreduce import units
from simreduce.units import format_amount

Quantity: TypeAlias = Literal["number", "seconds", "bytes", "bytes/s", "share", "times"]
_FAR = {"seconds": 1.0, "bytes": 1.0, "number": 6.0, "bytes/s": 30.0, "share": 30.0, "times": 6.0}
"""How many times the least value the largest is where an axis is logarithmic by default."""


def _size(nbytes: float) -> str:
    exact = nbytes < 1024 or nbytes % 1024 == 0
    return units.exact_size(int(nbytes)) if exact else units.format_size(nbytes)


_SHOWN: Mapping[Quantity, Callable[[float], str]] = {
    "number": format_amount,
    "seconds": lambda seconds: units.format_duration(seconds) if seconds else "0",
    "bytes": _size,
    "bytes/s": lambda rate: format_amount(float(f"{rate * 1e-9:.3g}")),
    "share": "{:.0%}".format,
    "times": "{:.2f}x".format,
}
"""The text of a value."""


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis shows.

    It is logarithmic if `log` says so, or by default where values differ much. A linear axis begins
    at 0 if `zero` is set. `names` stand at 0, 1, 2, ... instead of numbers. `ticks` are values to
    name, and `ends` the ends of the axis, both by default round and near the values.
    """

    name: str = ""
    quantity: Quantity = "number"
    log: bool | None = None
    zero: bool = True
    names: Sequence[str] = ()
    ticks: Sequence[float] = ()
    ends: tuple[float, float] | None = None

    @property
    def label(self) -> str:
        """The name with the unit, where the values beside the axis have none."""
        return self.name + {"bytes/s": " (GB/s)", "share": " (%)"}.get(self.quantity, "")

    def show(self, value: float) -> str:
        """A value as text."""
        return self.names[int(value)] if self.names else _SHOWN[self.quantity](value)

    def scale(self, values: Iterable[float]) -> Scale:
        """The axis with room for these values."""
        found = [each for each in values if math.isfinite(each)] or [0.0, 1.0]
        low, high = min(found), max(found)
        far = high >= _FAR[self.quantity] * low if self.log is None else self.log
        log = low > 0.0 and far
        if self.names:
            low, high, log = -0.5, len(self.names) - 0.5, False
        elif self.ends:
            low, high = self.ends
        elif log:
            low, high = log_ends(found)
        else:
            margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
            low, high = low - margin if low < 0.0 else max(low - margin, 0.0), high + margin
            low = min(low, 0.0) if self.zero else low
        return Scale(self, low, high, log)


def log_ends(values: Sequence[float]) -> tuple[float, float]:
    """The ends of a logarithmic axis with a margin, at least a factor of 3 apart."""
    low, high = math.log(min(values)), math.log(max(values))
    far = max(high - low, math.log(3.0))
    margin = 0.04 * far + (far - (high - low)) / 2
    return math.exp(low - margin), math.exp(high + margin)


class Scale(NamedTuple):
    """An axis from `low` to `high`, which stand at the pixels `begin` and `end`."""

    axis: Axis
    low: float
    high: float
    log: bool
    begin: float = 0.0
    end: float = 1.0

    def at(self, value: float) -> float:
        """The pixel of a value; those beyond an end stand at it."""
        found, low, high = min(max(value, self.low), self.high), self.low, self.high
        if self.log:
            found, low, high = math.log(found), math.log(low), math.log(high)
        return self.begin + (found - low) / (high - low) * (self.end - self.begin)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """The pixels and texts of at most `most` values."""
        found = [value for value in self._round(most) if self.low <= value <= self.high]
        found = found[:: -(-len(found) // most) or 1]
        return [(self.at(value), self.axis.show(value)) for value in found]

    def _round(self, most: int) -> Sequence[float]:
        """Values to choose from, the first of few."""
        if self.axis.names:
            return range(len(self.axis.names))
        if self.axis.ticks:
            return self.axis.ticks
        if self.log and self.axis.quantity == "bytes":
            powers = range(max(math.ceil(math.log2(self.low)), 0), int(math.log2(self.high)) + 1)
            return [2.0**k for k in powers]
        if not self.log or self.high < 10.0 * self.low:
            least = (self.high - self.low) / most
            decade = 10.0 ** math.floor(math.log10(least))
            step = next(step for m in (1, 2, 5, 10) if (step := m * decade) >= least * 0.999)
            first = math.ceil(self.low / step)
            return [k * step for k in range(first, math.floor(self.high / step) + 1)]
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        fine = [m * 10.0**k for k in decades for m in (1, 2, 5)]
        shown = [value for value in fine if self.low <= value <= self.high]
        return shown if len(shown) <= most else [10.0**k for k in decades]
