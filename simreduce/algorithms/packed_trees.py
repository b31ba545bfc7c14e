"""Trees packed into the graph at hand (Blink, Wang et al. 2020; ForestColl, Zhao et al. 2024).

Every tree has a share of the tensor, cut into the same number of chunks on all of them: one, or as many as
`options.chunk` asks for. Chunks are summed up the tree and handed out down again, pipelined (see `pipelined_trees`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simreduce.algorithms.multi_ring import over_rings
from simreduce.algorithms.pipelined_trees import Load, carry, chunks, loads
from simreduce.algorithms.planner import Options, Results, Tensors
from simreduce.layouts import Layout
from simreduce.plan import PlanBuilder, Value, Values
from simreduce.synthesis import rings, trees
from simreduce.synthesis.trees import Tree

Shares = Sequence[tuple[Tree, float]]


def all_reduce(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """Every tree sums its share at its root and hands it out.

    Where rings come as close to the best rate as filling the pipeline lets trees come, what is sent in chunks goes over
    the rings: the reduce-scatter and all-gather of a ring are 2n paths, each rank the root of two, that never idle.
    """
    packing, circles = trees.all_reduce_trees(layout.network()), rings.ring_packing(layout.network())
    hops = max(tree.hops for tree, _ in packing.patterns)
    results: Results = []
    for own in map(Values.of, tensors):
        cut = loads(packing.patterns, int(own.lo[0]), int(own.hi[0]))
        k = chunks(cut, options.chunk, own.dtype)
        filled = packing.rate * k / max(1, k + hops - 1)
        if layout.n == 1:
            results.append(own)
        elif k > 1 and rings.all_reduce_rate(layout.n, circles.rate) >= filled:
            results.append(over_rings(b, circles.patterns, own))
        else:
            results.append(b.joins(carry(b, own, cut, k).swapaxes(0, 1).reshape(layout.n, -1)))
    return results


def broadcast(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """Every tree hands out its share from the root."""
    shares = trees.broadcast_trees(layout.network(), options.root).patterns
    root = slice(options.root, options.root + 1)
    return [_handed_out(b, own, own[root], shares, options) for own in map(Values.of, tensors)]


def all_gather(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """The part of every rank goes over trees of its own."""
    shares = trees.all_gather_trees(layout.network()).patterns
    return [_handed_out(b, own, own, shares, options) for own in map(Values.of, tensors)]


def reduce(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """Every tree sums its share at the root."""
    shares = trees.reduce_trees(layout.network(), options.root).patterns
    return [_summed_up(b, own, own[:1], shares, options) for own in map(Values.of, tensors)]


def reduce_scatter(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """The part of every rank is summed over trees of its own."""
    shares = trees.reduce_scatter_trees(layout.network()).patterns
    return [_summed_up(b, own, own.cut(layout.n)[0, :], shares, options) for own in map(Values.of, tensors)]


def _handed_out(b: PlanBuilder, own: Values, parts: Values, shares: Shares, options: Options) -> list[Value]:
    """On every rank part i, which the i-th root has."""
    results = list(parts)
    for root, made in _carried(b, own, parts, shares, options):
        results += b.joins(made[np.arange(len(own)) != root])
    return results


def _summed_up(b: PlanBuilder, own: Values, parts: Values, shares: Shares, options: Options) -> list[Value]:
    """On the i-th root the sum of part i."""
    if len(own) == 1:
        return list(parts)
    return [b.joins(made[np.array([root])])[0] for root, made in _carried(b, own, parts, shares, options)]


def _carried(
    b: PlanBuilder, own: Values, parts: Values, shares: Shares, options: Options
) -> list[tuple[int, Values]]:
    """By root, what every rank has of its part, in pieces."""
    cut: list[list[Load]] = []
    for root, part in zip(sorted({tree.root for tree, _ in shares}), parts, strict=True):
        cut.append(loads([each for each in shares if each[0].root == root], part.lo, part.hi))
    flat = [load for some in cut for load in some]
    made = carry(b, own, flat, chunks(flat, options.chunk, own.dtype))
    ends = np.cumsum([len(some) for some in cut])
    return [
        (some[0].tree.root, made[end - len(some) : end].swapaxes(0, 1).reshape(len(own), -1))
        for some, end in zip(cut, ends.tolist(), strict=True)
    ]
