"""Everybody sends to everybody at once, and the sends of a rank share its port: no streams.

The two-shot all-reduce gathers part p of every rank on rank p, adds, and sends the sum to all: 2a + 2 (n-1)/n M/B. Half of
it is a reduce-scatter or an all-gather, and an all-to-all takes as long: a + (n-1)/n M/B. To reduce, all send everything
to the root; to broadcast, it sends everything to all: a + (n-1) M/B. Any n. Sums are taken in rank order.
"""

from __future__ import annotations

import numpy as np

from simreduce.algorithms.family import Knobs
from simreduce.plan import PlanBuilder, Values
from simreduce.plan.values import Ints


def all_reduce(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """In two shots."""
    return all_gather(b, reduce_scatter(b, values, knobs), knobs)


def reduce_scatter(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """Every rank adds what it is sent of its part."""
    return added(b, all_to_all(b, values, knobs))


def all_gather(b: PlanBuilder, shards: Values, _: Knobs) -> Values:
    """Every rank sends its part to all."""
    return b.joins(delivered(b, shards[:, None], shards.device[..., None]))


def all_to_all(b: PlanBuilder, values: Values, _: Knobs) -> Values:
    """Every rank sends every other its part."""
    return delivered(b, values.cut(values.shape[1]).swapaxes(1, 2), values.device[..., None])


def reduce(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """All send to the root, which adds."""
    return added(b, delivered(b, values[:, None], values.device[:, knobs.root, None, None]))


def broadcast(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """The root sends to all."""
    return delivered(b, values[:, knobs.root, None], values.device)


def delivered(b: PlanBuilder, values: Values, device: Ints) -> Values:
    """Every value on the device that is given for it; `values` and `device` broadcast."""
    values = values.view(values.lo, values.hi + 0 * device)
    device = np.broadcast_to(device, values.shape)
    away = values.device != device
    op = values.op.copy()
    op[away] = b.copies(values[away], device[away]).op
    return Values(op, device, values.lo, values.hi, values.dtype)


def added(b: PlanBuilder, parts: Values) -> Values:
    """The sums along the last axis."""
    n = parts.shape[-1]
    return b.adds([parts[..., i] for i in range(n)]) if n > 1 else parts[..., 0]
