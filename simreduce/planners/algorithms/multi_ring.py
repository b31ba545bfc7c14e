"""Rings made for the graph at hand: several that share it, or the one best order.

The tensor is shared out over the rings as they share the links; on every ring, with a channel of
its own, a share is reduce-scattered and all-gathered as in `ring`. If the direct links hold no ring
at all, the rings go along the routes between all pairs. More than `MOST_RANKS` GPUs of equal
machines take the rings of a few machines, continued (`synthesis.rings`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate
from typing import TypeAlias, TypeVar

import numpy as np

from simreduce.computing.arrays import Ints
from simreduce.errors import StrategyError
from simreduce.plan import PlanBuilder, Values
from simreduce.planners.algorithms.planner import Options, Results, Tensors, plan_together
from simreduce.planners.algorithms.ring import all_reduce_pieces
from simreduce.planners.layouts import Layout
from simreduce.planners.synthesis.network import MOST_RANKS, Network
from simreduce.planners.synthesis.rings import (
    Ring,
    best_order,
    continue_ring,
    ring_packing,
    sample_size,
)

T = TypeVar("T")


def divide(shares: Sequence[tuple[T, float]], lo: int, hi: int) -> list[tuple[T, int, int]]:
    """The elements [lo, hi) by shares; only those that get some, but one at least."""
    cut = divide_all(shares, np.array([lo]), np.array([hi]))
    return [(one, int(first[0]), int(end[0])) for one, first, end in cut]


def divide_all(shares: Sequence[tuple[T, float]], lo: Ints, hi: Ints) -> list[tuple[T, Ints, Ints]]:
    """`divide` of several tensors of which the same get some: the elements from and up to, by
    tensor.
    """
    upto = np.array(list(accumulate((share for _, share in shares), initial=0.0)))
    edges = lo[:, None] + np.rint((hi - lo)[:, None] * upto / upto[-1]).astype(np.int64)
    some = np.flatnonzero(edges[0, 1:] > edges[0, :-1]).tolist() or [0]
    return [(shares[i][0], edges[:, i], edges[:, i + 1]) for i in some]


Shares: TypeAlias = Sequence[tuple[Ring, float]]


def multi_ring(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """All-reduce over the rings that together have the best rate."""
    return _over(b, layout, tensors, lambda network: ring_packing(network).patterns)


def best_ring(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """The textbook ring, in the order in which its slowest hop is fastest."""

    def alone(network: Network) -> Shares:
        ring = best_order(network)
        return [] if ring is None else [(ring, 1.0)]

    return _over(b, layout, tensors, alone)


def _over(
    b: PlanBuilder, layout: Layout, tensors: Tensors, search: Callable[[Network], Shares]
) -> Results:
    rings = search_rings(layout, search)

    def many(b: PlanBuilder, tensors: Values) -> Values:
        return over_rings(b, rings, tensors)

    def takers(tensor: Values) -> Hashable:
        return tuple(ring for ring, _, _ in divide(rings, 0, int(tensor.elements[0])))

    return plan_together(b, tensors, many, shape=takers)


def search_rings(layout: Layout, search: Callable[[Network], Shares]) -> Shares:
    """Return the rings that `search` finds on the links, else on the routes between all pairs.

    Raises StrategyError if there is no ring.
    """
    few = sample(layout)
    for routed in (False, True):
        found = search(few.network(routed=routed))
        if few is not layout:
            longer = [(continue_ring(ring, layout.tasks, few.task_count), x) for ring, x in found]
            found = [(ring, share) for ring, share in longer if ring is not None]
        if found:
            return found
    raise StrategyError("no ring over these GPUs was found on the links and routes between them")


def sample(layout: Layout) -> Layout:
    """The layout to search: a few of the machines, if they are equal and GPUs are too many."""
    each = len(layout.tasks[0])
    few = sample_size(each)
    if layout.n <= MOST_RANKS or layout.machines > 1 or few >= len(layout.tasks):
        return layout
    if few * each > MOST_RANKS or len({_inside(layout, task) for task in layout.tasks}) > 1:
        return layout
    return layout.only([rank for task in layout.tasks[:few] for rank in task])


def _inside(layout: Layout, task: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The lanes in a machine, and the NICs of its GPUs."""
    lanes = tuple(tuple(layout.links[a][b] for b in task) for a in task)
    return (*lanes, tuple(layout.nics[a] for a in task) if layout.nics else ())


def over_rings(b: PlanBuilder, rings: Shares, tensors: Values) -> Values:
    """The sum by tensor and rank, of tensors with the same takers; every ring carries its share."""
    pieces = []
    cut = divide_all(rings, tensors.lo[:, 0], tensors.hi[:, 0])
    for channel, (ring, lo, hi) in enumerate(cut):
        share = tensors.view(lo[:, None], hi[:, None])
        made = all_reduce_pieces(b, share[:, np.array(ring)], channel)
        pieces.append(made[:, np.argsort(ring)])
    return b.joins(Values.concatenate(pieces, axis=2))
