"""Everybody sends to everybody at once, and the sends of a rank share its port: no streams.

The two-shot all-reduce gathers part p of every rank on rank p, adds, and sends the sum to all: 2a +
2 (n-1)/n M/B. Half of it is a reduce-scatter or an all-gather, and an all-to-all takes as long: a +
(n-1)/n M/B. To reduce, all send everything to the root; to broadcast, it sends everything to all: a
+ (n-1) M/B. Any n. Sums are taken in rank order.
"""

from __future__ import annotations

import numpy as np

from simreduce.computing.arrays import Ints
from simreduce.plan import PlanBuilder, Values
from simreduce.planners.algorithms.planner import Knobs, everyones, parts, pull, size


def all_reduce(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """In two shots."""
    return all_gather(b, reduce_scatter(b, values, knobs), knobs)


def reduce_scatter(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """Every rank adds what it is sent of its part."""
    return add_up(b, all_to_all(b, values, knobs))


def all_gather(b: PlanBuilder, shards: Values, knobs: Knobs) -> Values:
    """Every rank sends its part to all."""
    chunks, (n, here) = everyones(shards, knobs), (size(shards, knobs), shards.shape[1])
    return b.joins(exchange(b, shards, chunks[:, givers(here, n)]))


def all_to_all(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """Every rank sends every other its part."""
    own = parts(values, knobs)
    here, n = own.shape[1:]
    return exchange(b, values, own[:, givers(here, n) % here, np.arange(here)])


def reduce(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """All send to the root, which adds."""
    return add_up(b, deliver(b, values[:, None], values.device[:, knobs.root, None, None]))


def broadcast(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """The root sends to all."""
    return deliver(b, values[:, knobs.root, None], values.device)


def givers(here: int, n: int) -> Ints:
    """By how far they are below a position (0: itself) and position, the positions that it hears
    from.
    """
    return (np.arange(here) - np.arange(n)[:, None]) % n


def exchange(b: PlanBuilder, values: Values, wanted: Values) -> Values:
    """By position and giver, what every position has of every other's value: by group and as
    `givers`, the intervals of `wanted`. Everybody serves those next above it first, so that no rank
    is everybody's first.
    """
    n, here = wanted.shape[1:]
    wanted = wanted.on(values.device[:, None])
    own = values.view(wanted.lo[:, 0], wanted.hi[:, 0])
    arrived = pull(b, values, givers(here, n)[1:], wanted[:, 1:])
    at = np.arange(here)[:, None]
    return Values.concatenate([own[:, None], arrived], axis=1)[:, (at - np.arange(n)) % n, at]


def deliver(b: PlanBuilder, values: Values, device: Ints) -> Values:
    """Every value on the device that is given for it; `values` and `device` broadcast."""
    values = values.view(values.lo, values.hi + 0 * device)
    device = np.broadcast_to(device, values.shape)
    away = values.device != device
    op = values.op.copy()
    op[away] = b.copies(values[away], device[away]).op
    return Values(op, device, values.lo, values.hi, values.dtype)


def add_up(b: PlanBuilder, parts: Values) -> Values:
    """The sums along the last axis."""
    n = parts.shape[-1]
    return b.adds([parts[..., i] for i in range(n)]) if n > 1 else parts[..., 0]


def one_shot(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """By taker and giver, added over the givers.

    The all-reduce of small tensors (Intel MPI's and NCCL's "all-to-all" kernels, TensorRT-LLM's
    ONESHOT): every rank sends everything to all, and each adds for itself, in rank order. a + (n-1)
    M/B, and every rank adds (n-1) M. Any n.
    """
    here = values.shape[1]
    return add_up(b, exchange(b, values, values[:, givers(here, size(values, knobs)) % here]))


def pairwise(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """Step by step, one send after another from every rank.

    Thakur, Rabenseifner and Gropp 2005: in step s rank p sends rank p + s its part. (n-1)(a +
    M/(nB)). Any n; the ranks of a step form rings, where MPICH pairs p with p XOR s if n is a power
    of two, which takes as long.
    """
    n = values.shape[1]
    parts, giver = values.cut(n), np.arange(n)
    stream = b.streams(values.device, knobs.channel)
    steps = [parts[:, giver, giver]]
    for step in range(1, n):
        taker = (giver + step) % n
        steps.append(b.copies(parts[:, giver, taker], values.device[:, taker], stream=stream))
    by_step = Values.stack(steps, axis=1)  # group, step, giver
    taker = giver[:, None]
    return by_step[:, (taker - giver) % n, giver]
