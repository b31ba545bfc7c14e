"""The ring run both ways at once: one half of every chunk goes one way round, the other half the
other way.

Both halves of a step leave together. Where the two neighbours have a link each, 2(n-1)(a +
S/(2nB)), half the ring's bandwidth time (n = 2 has one neighbour only); where they share one port,
each half gets half its rate and the ring's time is left: 2(n-1)(a + S/(nB)) (the bidirectional
buckets of Jain and Sabharwal 2010). Any n; reduce-scatter and all-gather are a half each.
"""

from __future__ import annotations

import numpy as np

from simreduce.plan import PlanBuilder, Values
from simreduce.planners.algorithms import ring
from simreduce.planners.algorithms.family import Knobs, parts, size

CHANNELS = 2
"""One for each way round."""


def all_reduce(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """Both rounds without putting the halves together in between."""
    n = size(values, knobs)
    if n == 1:
        return values
    own = parts(values, knobs).cut(2)
    halves = _all_gather(b, _reduce_scatter(b, own, knobs.channel), own[:, 0], knobs.channel)
    return b.joins(halves.reshape(*values.shape, 2 * n))


def reduce_scatter(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """Both halves of chunk c end at position c."""
    if size(values, knobs) == 1:
        return values
    return b.joins(_reduce_scatter(b, parts(values, knobs).cut(2), knobs.channel))


def all_gather(b: PlanBuilder, shards: Values, knobs: Knobs) -> Values:
    """Gather the shards in halves, both ways round; a position's own shard stays whole."""
    groups, n = shards.shape
    if n == 1:
        return shards
    mine = shards.cut(2)
    halves = _all_gather(b, mine, mine, knobs.channel).reshape(groups, n, 2 * n)
    position = np.arange(n)[:, None]
    place = np.arange(2 * n - 1)
    half = np.where(place == 2 * position, 2 * n, place + (place > 2 * position))
    return b.joins(Values.concatenate([halves, shards[..., None]], axis=-1)[:, position, half])


def _reduce_scatter(b: PlanBuilder, own: Values, channel: int) -> Values:
    """By group, position and half; `own` is by group, position, chunk and half."""
    there = ring.reduce_scatter_pieces(b, own[..., 0], channel)
    back = ring.reduce_scatter_pieces(b, own[..., 1], channel + 1, way=-1)
    return Values.stack([there, back], axis=-1)


def _all_gather(b: PlanBuilder, halves: Values, chunks: Values, channel: int) -> Values:
    """By group, position, chunk and half; all positions have the intervals of `chunks`."""
    there = ring.all_gather_pieces(b, halves[..., 0], chunks[..., 0], channel)
    back = ring.all_gather_pieces(b, halves[..., 1], chunks[..., 1], channel + 1, way=-1)
    return Values.stack([there, back], axis=-1)
