"""Chunks that go up and down trees in rounds: how a packing of trees becomes copies and sums.

A device sends in the order of the rounds (`synthesis.timetable`), over the least loaded of a few
streams. The order keeps trees in step: fair sharing alone would let small shares run ahead and
leave links idle at the end. While one stream waits for a latency, the others use the link. What
only goes up does what a broadcast down the same trees does, reversed in time: the plan, not what it
takes, as whatever is ready starts at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from simreduce import dtypes
from simreduce.computing.arrays import Ints
from simreduce.plan import Kind, PlanBuilder, Values
from simreduce.plan.plan import NO_STREAM
from simreduce.planners.algorithms.family import check_chunks
from simreduce.planners.synthesis.timetable import (
    MOST_STREAMS,
    ChunkHop,
    Sum,
    assign_streams,
    mirror,
    program_order,
    timetable,
)
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
    sums_only = not any(tree.down for tree, _, _ in loads)
    trees = [tree.reverse() if sums_only else tree for tree, _, _ in loads]
    sizes = np.diff(bounds)
    hops, sums = timetable(trees, sizes[:, -1].tolist())
    turns = assign_streams(trees, hops, sizes)
    if sums_only:
        hops, sums = mirror(hops)
        turns, bounds = turns[::-1, ::-1], (bounds[:, :1] + bounds[:, -1:] - bounds)[:, ::-1]
    steps: list[Sum | ChunkHop] = [*sorted(sums, key=lambda s: len(s.children)), *hops]
    reads, last = _follow(steps)
    places = [(*s[:2], s.rank, s.rank) if isinstance(s, Sum) else s[:4] for s in steps]
    start, tree, giver, taker = np.array(places, dtype=np.int64).reshape(-1, 4).T[..., None]
    order = program_order(start, chunks)
    made = np.zeros((len(steps) + 1, chunks), dtype=np.int64)  # the last row is no step's
    made[:-1].reshape(-1)[order] = len(b) + np.arange(len(order))

    def ops_of(step: Ints, rank: Ints) -> Ints:
        """By chunk, the ops of steps; where it is -1, what the rank gave."""
        return np.where(step[..., None] < 0, own.op[rank][..., None], made[step])

    arity = np.array([len(each) for each in reads], dtype=np.int64)[:, None]
    width = max(map(len, reads), default=0)
    padded = np.array([[*each, *[-1] * (width - len(each))] for each in reads], dtype=np.int64)
    terms = ops_of(padded.reshape(len(steps), width), giver).swapaxes(1, 2)
    is_read = np.arange(width) < arity[order // chunks]
    stream = np.full((len(steps), chunks), NO_STREAM)
    channel = taker[len(sums) :] * MOST_STREAMS + turns
    stream[len(sums) :] = b.streams(own.device[giver[len(sums) :]], channel)
    kind = np.repeat([Kind.ADD, Kind.COPY], [len(sums), len(hops)])[:, None]
    cut = bounds[tree, :-1][:, 0], bounds[tree, 1:][:, 0]
    columns = kind, own.device[taker], *cut, own.dtype, 0, stream, b.executor, arity, 0
    b.append(
        [np.broadcast_to(each, stream.shape).reshape(-1)[order] for each in columns],
        operands=terms.reshape(len(order), width)[order][is_read],
        controls=np.zeros(0, dtype=np.int64),
    )
    tree, rank, chunk = np.indices((len(loads), n, chunks))
    ends = [[last.get((t, r), -1) for r in range(n)] for t in range(len(loads))]
    held = ops_of(np.array(ends), np.arange(n))
    return Values(held, own.device[rank], bounds[tree, chunk], bounds[tree, chunk + 1], own.dtype)


def _follow(steps: Sequence[Sum | ChunkHop]) -> tuple[list[list[int]], dict[tuple[int, int], int]]:
    """By step, those whose results it reads, and by tree and rank the one whose result it ends
    with: -1 or none where a rank has what it gave.
    """
    reads: list[list[int]] = [[] for _ in steps]
    held: dict[tuple[int, int], int] = {}
    came: dict[tuple[int, int], int] = {}  # by child, what it sent its parent on the way up
    for i in sorted(range(len(steps)), key=lambda i: steps[i].start):
        step = steps[i]
        if isinstance(step, Sum):
            below = (came[step.tree, child] for child in step.children)
            reads[i] = [held.get((step.tree, step.rank), -1), *below]
            held[step.tree, step.rank] = i
        else:
            reads[i] = [held.get((step.tree, step.source), -1)]
            if step.upwards:
                came[step.tree, step.source] = i
            else:
                held[step.tree, step.target] = i
    return reads, held


def _cut(lo: int, hi: int, chunks: int) -> Ints:
    """Edges of equal chunks, the first half as large so that streams never all wait at once."""
    half = np.maximum(2 * np.arange(chunks + 1) - 1, 0)
    return lo + (hi - lo) * half // (2 * chunks - 1)
