"""Chunks that go up and down trees in rounds: how a packing of trees becomes copies and sums.

What one device sends another, for whichever trees, goes in the order of the rounds (see
`synthesis.timetable`) over a few streams, always the one that has had least to send. The order
keeps the trees in step: fair sharing alone would let those of small shares run ahead at the expense
of the others, and leave links idle at the end. Several streams rather than one, so that while one
waits for the latency of its next transfer the others have the link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from simreduce import dtypes
from simreduce.algorithms.family import check_chunks
from simreduce.plan import PlanBuilder, Values
from simreduce.plan.values import Ints
from simreduce.synthesis.timetable import MOST_STREAMS, streams, timetable
from simreduce.synthesis.trees import SpanningTree

Load: TypeAlias = tuple[SpanningTree, int, int]
"""A tree and the elements [lo, hi) that it carries."""


def chunks(loads: Sequence[Load], most: int, dtype: int) -> int:
    """How many chunks all loads are cut into, so that none has more than `most` bytes (0: no limit)
    and none is empty.
    """
    sizes = [hi - lo for _, lo, hi in loads]
    elements = max(1, most // dtypes.SIZES[dtype]) if most else max(*sizes, 1)
    return max(1, min(-(-max(sizes) // elements), (min(sizes) + 1) // 2))


def carry(b: PlanBuilder, own: Values, loads: Sequence[Load], chunks: int) -> Values:
    """Send `chunks` chunks of every load up and down its tree; `own[r]` is what rank r gives.

    The result has shape (trees, ranks, chunks): what each rank has in the end. Where a tree leaves
    nothing new on a rank, that is what the rank gave.
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
    totals = [
        np.array([(*s[:3], *s.children) for s in sums if len(s.children) == k])
        for k in sorted(arities)
    ]

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
            moved = b.copies(
                ready, own.device[target], stream=b.streams(own.device[source], channel)
            ).op
            came[tree[up], source[up], chunk[up]] = moved[up]
            held[tree[~up], target[~up], chunk[~up]] = moved[~up]
    grid = np.indices(held.shape)
    return values(held, grid[0], grid[1], grid[2])


def _due(rows: Ints, now: int, chunks: int) -> Ints:
    """The columns of those rows, the round of chunk 0 first, that have a chunk in round `now`."""
    return rows[(rows[:, 0] <= now) & (now < rows[:, 0] + chunks)].T


def _cut(lo: int, hi: int, chunks: int) -> Ints:
    """Edges of chunks that are alike but for the first, half as large: the streams of a link never
    all wait at once.
    """
    half = np.maximum(2 * np.arange(chunks + 1) - 1, 0)
    return lo + (hi - lo) * half // (2 * chunks - 1)


def _turns(
    sent: Mapping[tuple[int, int], list[int]], source: Ints, target: Ints, elements: Ints
) -> Ints:
    """The stream of every transfer: of its pair's streams the one that has had least to send, which
    `sent` counts.
    """
    turn = np.empty_like(source)
    for i, (u, v, size) in enumerate(
        zip(source.tolist(), target.tolist(), elements.tolist(), strict=True)
    ):
        had = sent[u, v]
        turn[i] = least = had.index(min(had))
        had[least] += size
    return turn
