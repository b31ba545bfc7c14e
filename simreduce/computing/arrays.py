"""Numpy arrays: names of their types, rows of unequal length (CSR), and numbers from a seed.

In CSR, rows of unequal length lie end to end in one array. Row r is `items[start[r]:start[r + 1]]`,
so `start` has one entry more than there are rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
AnyInts = npt.NDArray[np.integer[Any]]
"""Integers of any width."""
Bools = npt.NDArray[np.bool_]

ULP = 2.220446049250313e-16
"""The gap between 1.0 and the next float. Relative to any other float the gap is at most this."""

BLOCK = 1 << 18
"""Entries of a long column that are computed at once: more would only take more memory."""


def row_starts(count: AnyInts | Bools) -> Ints:
    """Where rows of these lengths begin, and where the last ends."""
    start = np.zeros(len(count) + 1, dtype=np.int64)
    np.cumsum(count, out=start[1:])
    return start


def ranges(start: AnyInts, count: AnyInts) -> Ints:
    """start[0], start[0] + 1, ... (count[0] of them), then start[1], ..."""
    ends = np.cumsum(count, dtype=np.int64)
    if not len(ends):
        return ends
    flat = np.repeat(start - ends + count, count)
    flat += np.arange(len(flat))
    return flat


def blocks(count: int) -> Iterator[slice]:
    """Slices that cover `count` entries, `BLOCK` at a time."""
    for first in range(0, count, BLOCK):
        yield slice(first, min(first + BLOCK, count))


def distinct(numbers: AnyInts) -> Ints:
    """Each number once, ascending.

    Where most numbers differ, `np.unique` takes ten times as long.
    """
    ordered = np.sort(numbers).astype(np.int64, copy=False)
    first = np.empty(len(ordered), dtype=np.bool_)
    first[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def invert(start: AnyInts, items: AnyInts, size: int) -> tuple[Ints, AnyInts]:
    """The transposed rows: for each value v < size, the rows that hold v, ascending.

    Returns (start, rows).
    """
    rows = np.repeat(np.arange(len(start) - 1, dtype=np.int32), np.diff(start))
    order = np.argsort(items, kind="stable")
    return row_starts(np.bincount(items, minlength=size)), rows[order]


_SPLITMIX_STEP = np.uint64(0x9E3779B97F4A7C15)


def splitmix(
    seed: npt.NDArray[np.uint64] | np.uint64, place: npt.NDArray[np.uint64] | np.uint64
) -> npt.NDArray[np.uint64]:
    """Return the output at `place`, counted from 1, of SplitMix64 from `seed`.

    Steele, Lea and Flood 2014.
    """
    state = seed + np.atleast_1d(place) * _SPLITMIX_STEP
    bits = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def uniform(seed: int, first: int, count: int) -> Floats:
    """Return the numbers `first`, `first + 1`, ... of an endless row in [0, 1).

    They are the same on every machine.
    """
    key = splitmix(np.uint64(seed & (2**64 - 1)), np.uint64(1))
    bits = splitmix(key, np.arange(first + 1, first + count + 1, dtype=np.uint64))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
