"""Trees packed into the graph at hand (Blink, Wang et al. 2020; ForestColl, Zhao et al. 2024).

Every tree carries a share of the tensor in as many chunks: one, or as `options.chunk` says. Chunks
are summed up the tree and handed out down it, pipelined (`carry`). Where a GPU sends one
copy at a time (TensorFlow), a packing may reach half its rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from simreduce import dtypes
from simreduce.computing.arrays import Ints
from simreduce.computing.lists import grouped
from simreduce.plan import Kind, PlanBuilder, Value, Values
from simreduce.plan.plan import NO_STREAM
from simreduce.planners.algorithms.multi_ring import divide, over_rings
from simreduce.planners.algorithms.planner import (
    Options,
    Planner,
    Results,
    Tensors,
    check_chunks,
    plan_each,
)
from simreduce.planners.layouts import Layout
from simreduce.planners.synthesis import rings, trees
from simreduce.planners.synthesis.relays import all_to_all_paths
from simreduce.planners.synthesis.trees import (
    MOST_STREAMS,
    ChunkHop,
    SpanningTree,
    Sum,
    assign_streams,
    mirror,
    program_order,
    timetable,
)

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

    A device sends in the order of the rounds (`timetable`), over the least loaded of a few streams.
    The order keeps trees in step: fair sharing alone would let small shares run ahead and leave
    links idle at the end. While one stream waits for a latency, the others use the link. What only
    goes up does what a broadcast down the same trees does, reversed in time: the plan, not what it
    takes, as whatever is ready starts at once.
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


FILLED = 0.98
"""Share of their rate that trees reach with the best chunk of a large tensor."""

Shares = Sequence[tuple[SpanningTree, float]]


def all_reduce(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """Every tree sums its share and hands it out; rings do, if as fast: they never idle."""
    network = layout.network()
    packing, circles = trees.all_reduce_trees(network), rings.ring_packing(network)
    ringed = rings.all_reduce_rate(layout.n, circles.rate) >= FILLED * packing.rate

    def one(tensor: Sequence[Value], _: int) -> Values:
        own = Values.of(tensor)
        cut = divide(packing.patterns, int(own.lo[0]), int(own.hi[0]))
        k = chunks(cut, options.chunk, own.dtype)
        if layout.n == 1 or (k > 1 and ringed):
            return own if layout.n == 1 else over_rings(b, circles.patterns, own[None, :])[0, :]
        return b.joins(carry(b, own, cut, k).swapaxes(0, 1).reshape(layout.n, -1))

    return plan_each(b, tensors, one)


def planner(collective: str) -> Planner:
    """The planner of a collective but all-reduce, whose trees hand out parts from their roots or
    sum them there: one part for the root, or one for each rank.
    """

    def plan(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
        shares = trees.PACKINGS[collective](layout.network(), options.root).patterns
        finish = _hand_out if collective in ("broadcast", "all_gather") else _sum_up

        def one(own: Values) -> list[Value]:
            parts = {
                "broadcast": own[options.root : options.root + 1],
                "all_gather": own,
                "reduce": own[:1],
                "reduce_scatter": own.cut(layout.n)[0, :],
            }[collective]
            return finish(b, own, parts, shares, options)

        return [one(Values.of(tensor)) for tensor in tensors]

    return plan


def _hand_out(
    b: PlanBuilder, own: Values, parts: Values, shares: Shares, options: Options
) -> list[Value]:
    """On every rank part i, which the i-th root has."""
    results = list(parts)
    for root, made in _carry(b, own, parts, shares, options):
        results += b.joins(made[np.arange(len(own)) != root])
    return results


def _sum_up(
    b: PlanBuilder, own: Values, parts: Values, shares: Shares, options: Options
) -> list[Value]:
    """On the i-th root the sum of part i."""
    if len(own) == 1:
        return list(parts)
    carried = _carry(b, own, parts, shares, options)
    return [b.joins(made[np.array([root])])[0] for root, made in carried]


def _carry(
    b: PlanBuilder, own: Values, parts: Values, shares: Shares, options: Options
) -> list[tuple[int, Values]]:
    """By root, what every rank has of its part, in pieces."""
    roots = list(dict.fromkeys(tree.root for tree, _ in shares))
    loads: list[Load] = []
    for root, part in zip(roots, parts[np.argsort(np.argsort(roots))], strict=True):
        loads += divide([each for each in shares if each[0].root == root], part.lo, part.hi)
    made = carry(b, own, loads, chunks(loads, options.chunk, own.dtype))
    root_of = np.array([tree.root for tree, _, _ in loads])
    return [(root, made[root_of == root].swapaxes(0, 1).reshape(len(own), -1)) for root in roots]


def all_to_all(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """Every rank sends every other its part, in shares, along paths over other ranks.

    It relays over other GPUs where that is faster, as store-and-forward networks do. Where some
    pairs have no link, as in a DGX-1, direct sends go through the hosts. Here the part for such a
    pair goes over GPUs that both are linked to, in shares of a best multicommodity flow
    (`synthesis.relays`), in chunks. On a DGX-1V every pair gets 3/8 of a link: 8/3 M/(nB) where B
    is the rate of one link.
    """
    shares = grouped(
        ((path.root, path.down[-1][1]), (path, share))
        for path, share in all_to_all_paths(layout.network()).patterns
    )

    def one(tensor: Sequence[Value], _: int) -> Values:
        own = Values.of(tensor)
        parts = own.cut(len(own))
        kept = parts[np.arange(len(own)), np.arange(len(own))]
        loads: list[Load] = []
        pairs: list[tuple[int, slice]] = []
        for (giver, taker), paths in shares.items():
            first, part = len(loads), parts[giver, taker]
            loads += divide(paths, int(part.lo), int(part.hi))
            pairs.append((taker, slice(first, len(loads))))
        if not loads:
            return kept
        made = carry(b, own, loads, chunks(loads, options.chunk, own.dtype))
        arrived = [
            b.joins(made[places, taker : taker + 1].swapaxes(0, 1).reshape(1, -1))
            for taker, places in pairs
        ]
        return Values.concatenate([kept, *arrived])

    return plan_each(b, tensors, one)
