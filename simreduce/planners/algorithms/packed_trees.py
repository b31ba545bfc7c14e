"""Trees packed into the graph at hand (Blink, Wang et al. 2020; ForestColl, Zhao et al. 2024).

Every tree carries a share of the tensor in as many chunks: one, or as `options.chunk` says. Chunks
are summed up the tree and handed out down it, pipelined (`pipelined_trees`). Where a GPU sends one
copy at a time (TensorFlow), a packing may reach half its rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simreduce.plan import PlanBuilder, Value, Values
from simreduce.planners.algorithms.alike import plan_each
from simreduce.planners.algorithms.multi_ring import over_rings
from simreduce.planners.algorithms.pipelined_trees import Load, carry, chunks
from simreduce.planners.algorithms.planner import Options, Results, Tensors
from simreduce.planners.algorithms.shares import divide
from simreduce.planners.layouts import Layout
from simreduce.planners.synthesis import rings, trees
from simreduce.planners.synthesis.trees import SpanningTree

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


def broadcast(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """Every tree hands out its share from the root."""
    shares = trees.broadcast_trees(layout.network(), options.root).patterns
    root = slice(options.root, options.root + 1)
    return [_hand_out(b, own, own[root], shares, options) for own in map(Values.of, tensors)]


def all_gather(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """The part of every rank goes over trees of its own."""
    shares = trees.all_gather_trees(layout.network()).patterns
    return [_hand_out(b, own, own, shares, options) for own in map(Values.of, tensors)]


def reduce(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """Every tree sums its share at the root."""
    shares = trees.reduce_trees(layout.network(), options.root).patterns
    return [_sum_up(b, own, own[:1], shares, options) for own in map(Values.of, tensors)]


def reduce_scatter(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """The part of every rank is summed over trees of its own."""
    shares, n = trees.reduce_scatter_trees(layout.network()).patterns, layout.n
    values = map(Values.of, tensors)
    return [_sum_up(b, own, own.cut(n)[0, :], shares, options) for own in values]


def _hand_out(b: PlanBuilder, own: Values, parts: Values, *packed: Any) -> list[Value]:
    """On every rank part i, which the i-th root has; `packed` as for `_carry`."""
    results = list(parts)
    for root, made in _carry(b, own, parts, *packed):
        results += b.joins(made[np.arange(len(own)) != root])
    return results


def _sum_up(b: PlanBuilder, own: Values, parts: Values, *packed: Any) -> list[Value]:
    """On the i-th root the sum of part i; `packed` as for `_carry`."""
    if len(own) == 1:
        return list(parts)
    return [b.joins(made[np.array([root])])[0] for root, made in _carry(b, own, parts, *packed)]


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
