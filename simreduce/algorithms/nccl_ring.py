"""NCCL's rings: every channel sends chunks, one for each rank, round all GPUs on its own way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simreduce.algorithms.family import Knobs, parts
from simreduce.algorithms.nccl_lanes import Lane, join, lanes, pieces, step_bytes
from simreduce.algorithms.ring import all_gather_pieces, reduce_scatter_pieces
from simreduce.layouts import Decision
from simreduce.plan import PlanBuilder, Values
from simreduce.plan.plan import LAST


def all_reduce(
    b: PlanBuilder,
    given: Values,
    ways: Sequence[Sequence[int]],
    how: Decision,
    after: Sequence[int],
) -> Values:
    """The sum on every rank; `given` by rank, of one of equal machines."""
    whole: Values = parts(given[None], Knobs(machines=b.machines))[0, ...]
    made = []
    for way, lane in lanes(ways, how.channels):
        order = np.array(way)
        own = _cut(lane, whole, how, 3)[:, order]
        sums = reduce_scatter_pieces(b, own, lane.channel, after)
        found = all_gather_pieces(b, sums, own[:, 0], lane.channel, last=lane.channel + LAST)
        made.append(found[:, np.argsort(order)])
    return join(b, made)


def reduce_scatter(
    b: PlanBuilder,
    given: Values,
    ways: Sequence[Sequence[int]],
    how: Decision,
    after: Sequence[int],
) -> Values:
    """Part r of the sum on rank r."""
    whole, made = given.cut(len(given)), []
    for way, lane in lanes(ways, how.channels):
        order = np.array(way)
        own = _cut(lane, whole, how, 2)[:, order][:, :, order]
        sums = reduce_scatter_pieces(b, own, lane.channel, after, last=lane.channel + LAST)
        made.append(sums[:, np.argsort(order), None])
    return join(b, made)


def all_gather(
    b: PlanBuilder,
    given: Values,
    ways: Sequence[Sequence[int]],
    how: Decision,
    after: Sequence[int],
) -> Values:
    """The whole on every rank, which gave its part."""
    made = []
    for way, lane in lanes(ways, how.channels):
        order = np.array(way)
        own = b.slices(_cut(lane, given[:, None], how, len(given))[:, order, 0])
        found = all_gather_pieces(b, own, own, lane.channel, after, last=lane.channel + LAST)
        back = np.argsort(order)
        made.append(found[:, back][:, :, back])
    return join(b, made)


def _cut(lane: Lane, whole: Values, how: Decision, copies: int) -> Values:
    """The lane's share of every chunk, by piece, rank and chunk; a chunk makes so many copies."""
    ops = copies * whole.lo.size * min(lane.of, 8)
    slices = 2 if how.protocol == "simple" else 1
    count = pieces(whole, lane.of, 2 * step_bytes(how), ops, slices)
    return lane.share(whole).cut(count).swapaxes(1, 2).swapaxes(0, 1)
