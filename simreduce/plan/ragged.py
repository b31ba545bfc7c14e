"""Ragged rows as flat arrays (CSR): the few operations that verification and the engine share."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Column = npt.NDArray[np.integer]


def narrow(values: Column) -> Column:
    """The same numbers, none of them negative, in 32 bits if they fit: half the memory, and faster."""
    fits = values.dtype.itemsize > 4 and int(values.max(initial=0)) < 1 << 31
    return values.astype(np.int32) if fits else values


def starts(count: Column) -> Ints:
    """Where rows of these lengths begin, and where the last ends."""
    start = np.zeros(len(count) + 1, dtype=np.int64)
    np.cumsum(count, out=start[1:])
    return start


def ranges(start: Column, count: Column) -> Ints:
    """start[0], start[0]+1, ... (count[0] of them), then start[1], ..."""
    count = count.astype(np.int64)
    ends = np.cumsum(count)
    total = int(ends[-1]) if len(ends) else 0
    values = np.repeat(start.astype(np.int64) - (ends - count), count)
    values += np.arange(total, dtype=np.int64)
    return values


def invert(start: Column, items: Column, size: int) -> tuple[Ints, Column]:
    """The transposed rows: for each value v < size, the rows that hold v, ascending. Returns (start, rows)."""
    rows = np.repeat(np.arange(len(start) - 1, dtype=np.int32), np.diff(start))
    order = np.argsort(items, kind="stable")
    return starts(np.bincount(items, minlength=size)), rows[order]


def levels(start: Column, predecessors: Column) -> Iterator[Ints]:
    """Ops by depth: each array holds the ops whose predecessors are all in earlier arrays, ascending.

    Ops on a cycle never come.
    """
    return levels_ahead(np.diff(start), *invert(start, predecessors, len(start) - 1))


def levels_ahead(waits: Column, successor_start: Column, successors: Column) -> Iterator[Ints]:
    """`levels`, given how many predecessors each op has, and the rows of its successors."""
    left = waits.copy()
    level = np.flatnonzero(left == 0)
    while len(level):
        yield level
        count = successor_start[level + 1] - successor_start[level]
        reached = successors[ranges(successor_start[level], count)]
        np.subtract.at(left, reached, 1)
        level = np.unique(reached[left[reached] == 0]).astype(np.int64)
