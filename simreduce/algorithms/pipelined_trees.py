"""Chunks that go up and down trees in rounds: how a packing of trees becomes copies and sums.

A device sends in the order of the rounds (`synthesis.timetable`), over the least loaded of a few
streams. The order keeps trees in step: fair sharing alone would let small shares run ahead and
leave links idle at the end. While one stream waits for a latency, the others use the link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from simreduce import dtypes
from simreduce.algorithms.family import check_chunks
from simreduce.arrays import Ints
from simreduce.plan import PlanBuilder, Values
from simreduce.synthesis.timetable import MOST_STREAMS, streams, timetable
from simreduce.synthesis.trees import SpanningTree

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
    trees = [tree for tree, _, _ in loads]
    sent = {edge: [0] * width for edge, width in streams(trees).items()}
    hops, sums = timetable(trees, (bounds[:, -1] - bounds[:, -2]).tolist())
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
            start, tree, rank, *children = _due(rows, now, chunks)
            if len(start):
                chunk = now - start
                terms = [held[tree, rank, chunk], *(came[tree, child, chunk] for child in children)]
                held[tree, rank, chunk] = b.adds([values(op, tree, rank, chunk) for op in terms]).op
        start, tree, source, target, upwards = _due(table, now, chunks)
        if len(start):
            chunk, up = now - start, upwards == 1
            ready = values(held[tree, source, chunk], tree, source, chunk)
            channel = target * MOST_STREAMS + _turns(sent, source, target, ready.elements)
            stream = b.streams(own.device[source], channel)
            moved = b.copies(ready, own.device[target], stream=stream).op
            came[tree[up], source[up], chunk[up]] = moved[up]
            held[tree[~up], target[~up], chunk[~up]] = moved[~up]
    grid = np.indices(held.shape)
    return values(held, grid[0], grid[1], grid[2])


def _due(rows: Ints, now: int, chunks: int) -> Ints:
    """The columns of those rows, the round of chunk 0 first, that have a chunk in round `now`."""
    return rows[(rows[:, 0] <= now) & (now < rows[:, 0] + chunks)].T


def _cut(lo: int, hi: int, chunks: int) -> Ints:
    """Edges of equal chunks, the first half as large so that streams never all wait at once."""
    half = np.maximum(2 * np.arange(chunks + 1) - 1, 0)
    return lo + (hi - lo) * half // (2 * chunks - 1)


def _turns(
    sent: Mapping[tuple[int, int], list[int]], source: Ints, target: Ints, elements: Ints
) -> Ints:
    """The stream of every transfer: the one of its pair that has `sent` least."""
    turn = np.empty_like(source)
    transfers = zip(source.tolist(), target.tolist(), elements.tolist(), strict=True)
    for i, (u, v, size) in enumerate(transfers):
        had = sent[u, v]
        turn[i] = least = had.index(min(had))
        had[least] += size
    return turn
