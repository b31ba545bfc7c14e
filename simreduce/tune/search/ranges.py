"""Ranges of sizes, each with one choice, of the least total cost, by dynamic programming."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simreduce.arrays import Floats

MOST = 8
"""Ranges at most, unless told otherwise."""

_SAME = 1.0 + 1e-9


class Segment(NamedTuple):
    """Sizes `begin` to `end` - 1, by place, which all take `choice`."""

    begin: int
    end: int
    choice: int


def partition(costs: Floats, most: int = MOST) -> tuple[float, list[Segment]]:
    """The cheapest cut of the sizes, ascending, into up to `most` ranges with one choice for each.

    `costs` has a row for each size and a column for each choice; infinite where a choice is
    impossible. Among equally cheap cuts, one with the fewest ranges. The sum of the costs is what
    counts, so it is exact where calls take turns, as NCCL's do.

    >>> partition(np.array([[1.0, 5.0], [1.0, 5.0], [9.0, 5.0]]))
    (7.0, [Segment(begin=0, end=2, choice=0), Segment(begin=2, end=3, choice=1)])
    """
    sizes, choices = costs.shape
    # best[c]: the cheapest cut of the sizes so far whose last range takes choice c.
    total = np.full((most + 1, sizes, choices), np.inf)
    came = np.zeros((most + 1, sizes, choices), dtype=np.int64)
    for ranges in range(1, most + 1):
        for size in range(sizes):
            stay = total[ranges, size - 1] if size else np.full(choices, np.inf)
            switch, at = (0.0 if ranges == 1 else np.inf), 0
            if size and ranges > 1:
                at = int(np.argmin(total[ranges - 1, size - 1]))
                switch = float(total[ranges - 1, size - 1, at])
            elif size:
                switch = np.inf
            stays = stay <= switch
            came[ranges, size] = np.where(stays, -1, at)
            total[ranges, size] = np.where(stays, stay, switch) + costs[size]
    ends = total[1:, -1].min(axis=1)
    ranges = 1 + int(np.argmax(ends <= ends.min() * _SAME))
    return float(ends[ranges - 1]), _trace(total, came, ranges)


def _trace(
    total: Floats, came: np.ndarray[tuple[int, ...], np.dtype[np.int64]], ranges: int
) -> list[Segment]:
    sizes = total.shape[1]
    choice, end = int(np.argmin(total[ranges, -1])), sizes
    found = []
    for size in reversed(range(sizes)):
        before = int(came[ranges, size, choice])
        if before >= 0 and size and ranges > 1:
            found.append(Segment(size, end, choice))
            choice, end, ranges = before, size, ranges - 1
    found.append(Segment(0, end, choice))
    return found[::-1]


def boundaries(sizes: Sequence[int], segments: Sequence[Segment]) -> list[int]:
    """The largest size of each range but the last: a power of two between its last size and the
    next one, if there is one, else its last size.
    """
    found = []
    for segment in segments[:-1]:
        low, high = sizes[segment.end - 1], sizes[segment.end]
        power = 1 << max(low - 1, 0).bit_length()
        found.append(power if low <= power < high else low)
    return found
