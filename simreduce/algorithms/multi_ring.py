"""Rings made for the graph at hand: several that share it, or the one best order.

The tensor is shared out over the rings as they share the links; on every ring, with a channel of
its own, a share is reduce-scattered and all-gathered as in `ring`. If the direct links hold no ring
at all, the rings go along the routes between all pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from simreduce.algorithms.planner import Options, Results, Tensors
from simreduce.algorithms.ring import all_reduce_pieces
from simreduce.algorithms.shares import divide_all, takers
from simreduce.algorithms.together import plan_together
from simreduce.errors import StrategyError
from simreduce.layouts import Layout
from simreduce.plan import PlanBuilder, Values
from simreduce.synthesis.network import Network
from simreduce.synthesis.rings import Ring, best_order, ring_packing

T = TypeVar("T")


def multi_ring(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """All-reduce over the rings that together have the best rate."""
    rings = search_rings(layout, lambda network: ring_packing(network).patterns)
    return _over(b, tensors, rings)


def best_ring(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """The textbook ring, in the order in which its slowest hop is fastest."""
    ring = search_rings(layout, best_order)
    return _over(b, tensors, [(ring, 1.0)])


def _over(b: PlanBuilder, tensors: Tensors, rings: Sequence[tuple[Ring, float]]) -> Results:
    def many(b: PlanBuilder, tensors: Values) -> Values:
        return over_rings(b, rings, tensors)

    return plan_together(b, tensors, many, shape=partial(takers, rings))


def search_rings(layout: Layout, search: Callable[[Network], T | None]) -> T:
    """What `search` finds on the links, else on the routes between all pairs; StrategyError if
    there is no ring.
    """
    for routed in (False, True):
        if rings := search(layout.network(routed=routed)):
            return rings
    raise StrategyError("no ring over these GPUs was found on the links and routes between them")


def over_rings(b: PlanBuilder, rings: Sequence[tuple[Ring, float]], tensors: Values) -> Values:
    """The sum by tensor and rank, of tensors with the same takers; every ring carries its share."""
    pieces = []
    for channel, (ring, lo, hi) in enumerate(divide_all(rings, tensors)):
        share = tensors.view(lo[:, None], hi[:, None])
        made = all_reduce_pieces(b, share[:, np.array(ring)], channel)
        pieces.append(made[:, np.argsort(ring)])
    return b.joins(Values.concatenate(pieces, axis=2))
