"""Ranges of sizes with one choice each, of the least total cost, by dynamic programming."""

from __future__ import annotations

import numpy as np

from simreduce.computing.arrays import Floats

MOST = 8
"""Default limit of the number of ranges."""

_SAME = 1.0 + 1e-9


def partition(costs: Floats, most: int = MOST) -> tuple[float, list[int]]:
    """The cheapest cut of the sizes, ascending, into up to `most` ranges.

    Each range has one choice. Returns the cost of the cut, and the choice of each size.

    `costs` has a row for each size and a column for each choice; infinite where a choice is
    impossible. Among equally cheap cuts, one with the fewest ranges. The cost is the sum over the
    sizes, so it is exact where calls take turns, as NCCL's do.

    >>> partition(np.array([[1.0, 5.0], [1.0, 5.0], [9.0, 5.0]]))
    (7.0, [0, 0, 1])
    """
    sizes, choices = costs.shape
    # total[r, s, c]: the cheapest cut of sizes 0 to s into r ranges where the last takes c.
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
    cost, choice, found = float(ends[ranges - 1]), int(np.argmin(total[ranges, -1])), []
    for size in reversed(range(sizes)):
        found.append(choice)
        before = int(came[ranges, size, choice])
        if before >= 0 and ranges > 1:
            choice, ranges = before, ranges - 1
    return cost, found[::-1]


def boundary(low: int, high: int) -> int:
    """The largest size of a range whose last size is `low`.

    The next range begins with `high`. It is a power of two between them if there is one, else
    `low`.
    """
    power = 1 << max(low - 1, 0).bit_length()
    return power if low <= power < high else low
