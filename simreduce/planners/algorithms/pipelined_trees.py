"""Chunks that go up and down trees in rounds: how a packing of trees becomes copies and sums.

A device sends in the order of the rounds (`synthesis.timetable`), over the least loaded of a few
streams. The order keeps trees in step: fair sharing alone would let small shares run ahead and
leave links idle at the end. While one stream waits for a latency, the others use the link. What
only goes up does what a broadcast down the same trees does, reversed in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from simreduce import dtypes
from simreduce.computing.arrays import Ints
from simreduce.plan import PlanBuilder, Values
from simreduce.planners.algorithms.family import check_chunks
from simreduce.planners.synthesis.timetable import MOST_STREAMS, assign_streams, mirror, timetable
from simreduce.planners.synthesis.trees import SpanningTree

Load: TypeAlias = tuple[SpanningTree, int, int]
"""A tree and the elements [lo, hi) that it carries."""


def chunks(loads: Sequence[Load], most: int, dtype: int) -> int:
    """How many chunks to cut loads into: none over `most` bytes (0: no limit), none empty."""
    sizes = [hi - lo for _, lo, hi in loads]
    elements = max(1, most // dtypes.SIZES[dtype]) if most else max(*sizes, 1)
    return max(1, min(-(-max(sizes) // elements), (min(sizes) + 1) // 2))


def carry(b: PlanBuilder, own: Values, loads: Sequence[Load], chunks: int) -> Values:
    """Send `chunks` chunks of every load up and down its tree; rank r gives `own[r]`.

    By tree, rank and chunk, what the rank has in the end: by default what it gave.
    """
    n = len(own)
    check_chunks(chunks, n * len(loads))
    bounds = np.array([_cut(lo, hi, chunks) for _, lo, hi in loads])
    held = np.broadcast_to(own.op[:, None], (len(loads), n, chunks)).copy()
    came = np.zeros_like(held)  # by child, what it sent its parent on the way up
    sums_only = not any(tree.down for tree, _, _ in loads)
    trees = [tree.reverse() if sums_only else tree for tree, _, _ in loads]
    sizes = np.diff(bounds)
    hops, sums = timetable(trees, sizes[:, -1].tolist())
    turns = assign_streams(trees, hops, sizes)
    if sums_only:
        hops, sums = mirror(hops)
        turns, bounds = turns[::-1, ::-1], (bounds[:, :1] + bounds[:, -1:] - bounds)[:, ::-1]
    table = np.array(hops, dtype=np.int64).reshape(-1, 5)
    arities = {len(each.children) for each in sums}
    rows_of = [
        [(*s[:3], *s.children) for s in sums if len(s.children) == k] for k in sorted(arities)
    ]
    totals = [np.array(rows) for rows in rows_of]

    def values(op: Ints, tree: Ints, rank: Ints, chunk: Ints) -> Values:
        return Values(op, own.device[rank], bounds[tree, chunk], bounds[tree, chunk + 1], own.dtype)

    last = max((int(rows[:, 0].max()) for rows in (table, *totals) if len(rows)), default=-1)
    for now in range(last + chunks):
        for rows in totals:
            start, tree, rank, *children = rows[_due(rows, now, chunks)].T
            if len(start):
                chunk = now - start
                terms = [held[tree, rank, chunk], *(came[tree, child, chunk] for child in children)]
                held[tree, rank, chunk] = b.adds([values(op, tree, rank, chunk) for op in terms]).op
        due = _due(table, now, chunks)
        start, tree, source, target, upwards = table[due].T
        if len(start):
            chunk, up = now - start, upwards == 1
            ready = values(held[tree, source, chunk], tree, source, chunk)
            channel = target * MOST_STREAMS + turns[due, chunk]
            stream = b.streams(own.device[source], channel)
            moved = b.copies(ready, own.device[target], stream=stream).op
            came[tree[up], source[up], chunk[up]] = moved[up]
            held[tree[~up], target[~up], chunk[~up]] = moved[~up]
    grid = np.indices(held.shape)
    return values(held, grid[0], grid[1], grid[2])


def _due(rows: Ints, now: int, chunks: int) -> Ints:
    """Those of rows, the round of chunk 0 first, that have a chunk in round `now`."""
    return np.flatnonzero((rows[:, 0] <= now) & (now < rows[:, 0] + chunks))


def _cut(lo: int, hi: int, chunks: int) -> Ints:
    """Edges of equal chunks, the first half as large so that streams never all wait at once."""
    half = np.maximum(2 * np.arange(chunks + 1) - 1, 0)
    return lo + (hi - lo) * half // (2 * chunks - 1)
