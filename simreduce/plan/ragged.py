"""Ragged rows as flat arrays (CSR): the few operations that verification and the engine share."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Column = npt.NDArray[np.integer]


def starts(count: Column) -> Ints:
    """Where rows of these lengths begin, and where the last ends."""
    start = np.zeros(len(count) + 1, dtype=np.int64)
    np.cumsum(count, out=start[1:])
    return start


def ranges(start: Column, count: Column) -> Ints:
    """start[0], start[0]+1, ... (count[0] of them), then start[1], ..."""
    ends = np.cumsum(count, dtype=np.int64)
    if not len(ends):
        return ends
    flat = np.repeat(start - ends + count, count)
    flat += np.arange(len(flat))
    return flat


AT_ONCE = 1 << 18
"""Entries of long columns that are worked out at once: more would only take more memory."""


def blocks(count: int) -> Iterator[slice]:
    """All of `count` entries, `AT_ONCE` at a time."""
    for first in range(0, count, AT_ONCE):
        yield slice(first, min(first + AT_ONCE, count))


def distinct(numbers: Column) -> Ints:
    """Each number once, ascending: np.unique, which takes ten times as long where most numbers
    differ.
    """
    ordered = np.sort(numbers).astype(np.int64, copy=False)
    first = np.empty(len(ordered), dtype=np.bool_)
    first[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def invert(start: Column, items: Column, size: int) -> tuple[Ints, Column]:
    """The transposed rows: for each value v < size, the rows that hold v, ascending. Returns
    (start, rows).
    """
    rows = np.repeat(np.arange(len(start) - 1, dtype=np.int32), np.diff(start))
    order = np.argsort(items, kind="stable")
    return starts(np.bincount(items, minlength=size)), rows[order]


def levels(start: Column, predecessors: Column) -> Iterator[Ints]:
    """Ops by depth: each array holds the ops whose predecessors are all in earlier arrays,
    ascending.

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
        level = distinct(reached[left[reached] == 0])
