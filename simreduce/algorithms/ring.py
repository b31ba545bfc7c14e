"""The textbook ring (Patarasuk and Yuan 2009): reduce-scatter, then all-gather, one chunk per rank.

2(n-1) steps of S/n: 2(n-1)(a + S/(nB)) when n divides the elements. Nothing is padded or copied locally: the
library works in place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simreduce.algorithms.family import Knobs
from simreduce.plan import PlanBuilder, Values


def all_reduce(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """Every chunk goes round to be summed, then goes round once more as it is."""
    return b.joins(all_reduce_pieces(b, values, knobs.channel))


def reduce_scatter(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """Chunk c starts at position c+1 and is summed on its way to position c."""
    return reduce_scatter_pieces(b, values.cut(values.shape[1]), knobs.channel)


def all_gather(b: PlanBuilder, shards: Values, knobs: Knobs) -> Values:
    """Every shard goes round once."""
    return b.joins(all_gather_pieces(b, shards, knobs.channel))


def all_reduce_pieces(b: PlanBuilder, values: Values, channel: int = 0, after: Sequence[int] = ()) -> Values:
    """By group, position and chunk: the sum over the positions of the group. The first sends wait for the ops `after`."""
    own = values.cut(values.shape[1])
    return all_gather_pieces(b, reduce_scatter_pieces(b, own, channel, after), channel)


def reduce_scatter_pieces(b: PlanBuilder, own: Values, channel: int, after: Sequence[int] = ()) -> Values:
    """By group and position, the sum of the chunk of that number; `own` is by group, position and chunk."""
    n = own.shape[1]
    chunk = np.arange(n)
    held = own[:, (chunk + 1) % n, chunk]
    # Step by step, as each rank's port sends one chunk after another in program order.
    for step in range(n - 1):
        target = own[:, (chunk + 2 + step) % n, chunk]
        stream = b.streams(held.device, channel)
        arrived = b.copies(held, target.device, stream=stream, after=() if step else after)
        held = b.adds([arrived, target])
    return held


def all_gather_pieces(b: PlanBuilder, shards: Values, channel: int) -> Values:
    """By group, position and chunk, the shards of all positions."""
    n = shards.shape[1]
    chunk, held, steps = np.arange(n), shards, [shards]
    for step in range(n - 1):
        target = shards.device[:, (chunk + 1 + step) % n]
        held = b.copies(held, target, stream=b.streams(held.device, channel))
        steps.append(held)
    # Chunk c is at position c + step.
    position = chunk[:, None]
    made = np.stack([held.op for held in steps], axis=1)[:, (position - chunk) % n, chunk]
    device, lo, hi = np.broadcast_arrays(shards.device[..., None], shards.lo[:, None], shards.hi[:, None])
    return Values(made, device, lo, hi, shards.dtype)
