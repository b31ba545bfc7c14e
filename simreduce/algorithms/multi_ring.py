"""Rings made for the graph at hand: several that share it, or the one best order.

The tensor is shared out over the rings as they share the links; on every ring, with a channel of its own, a share is
reduce-scattered and all-gathered as in `ring`. If the direct links hold no ring at all, the rings go along the routes
between all pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from simreduce.algorithms.planner import Options, Results, Tensors
from simreduce.algorithms.ring import all_reduce_pieces
from simreduce.errors import StrategyError
from simreduce.layouts import Layout
from simreduce.plan import PlanBuilder, Values
from simreduce.synthesis.network import Network
from simreduce.synthesis.rings import Ring, best_order, ring_packing


def multi_ring(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """All-reduce over the rings that together have the best rate."""
    rings = ring_packing(ringed(layout)).patterns
    return [over_rings(b, rings, Values.of(tensor)) for tensor in tensors]


def best_ring(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """The textbook ring, in the order in which its slowest hop is fastest."""
    ring = best_order(ringed(layout))
    assert ring is not None  # noqa: S101 - `ringed` has seen to it
    return [over_rings(b, [(ring, 1.0)], Values.of(tensor)) for tensor in tensors]


def ringed(layout: Layout) -> Network:
    """A network of the layout in which there is a ring; StrategyError if there is none."""
    network = layout.network()
    if not ring_packing(network).patterns:
        network = layout.network(routed=True)
    if not ring_packing(network).patterns:
        raise StrategyError("no ring over these GPUs was found on the links and routes between them")
    return network


def over_rings(b: PlanBuilder, rings: Sequence[tuple[Ring, float]], whole: Values) -> Values:
    """By rank, the sum; every ring carries its share."""
    lo, size = int(whole.lo[0]), int(whole.elements[0])
    upto = list(accumulate((share for _, share in rings), initial=0.0))
    edges = [lo + round(size * part / upto[-1]) for part in upto]
    pieces = []
    for channel, ((ring, _), part) in enumerate(zip(rings, pairwise(edges), strict=True)):
        if part[0] < part[1] or not channel:
            share = whole.view(*(np.array(edge) for edge in part))
            made = all_reduce_pieces(b, share[np.array(ring)].reshape(1, -1), channel)
            pieces.append(made[0, np.argsort(ring)])
    return b.joins(Values.concatenate(pieces, axis=1))
