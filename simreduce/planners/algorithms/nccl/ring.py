"""NCCL's rings: every channel sends chunks, one for each rank, round all GPUs on its own way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simreduce.computing.arrays import Ints
from simreduce.plan import PlanBuilder, Values
from simreduce.plan.channels import LAST
from simreduce.planners.algorithms.family import Connect, Knobs, everyones, parts
from simreduce.planners.algorithms.nccl.lanes import (
    Lane,
    join,
    lanes,
    lanes_of,
    pieces,
    step_bytes,
)
from simreduce.planners.algorithms.nccl.stream import connect, on_all_machines, part_count
from simreduce.planners.algorithms.ring import all_gather_pieces, reduce_scatter_pieces
from simreduce.planners.layouts import Decision

_CHUNK_STEPS = 4
"""Steps of a chunk by Simple."""

_PARTS, _OPS = 4, 24_000
"""Parts of a chunk that follow one another, and copies of one collective, about."""


def all_reduce(
    b: PlanBuilder,
    given: Values,
    ways: Sequence[Sequence[int]],
    how: Decision,
    after: Sequence[int],
    machine: Ints,
) -> Values:
    """The sum on every rank; `given` by rank, of one of equal machines."""
    whole: Values = parts(given[None], Knobs(machines=b.machines))[0, ...]
    made = []
    for way, lane in lanes_of(how, ways, len(ways)):
        order = np.array(way)
        own, pull = _cut(lane, whole, how, 3 * b.machines, machine[order])
        own, last = own[:, order], lane.channel + LAST
        sums = reduce_scatter_pieces(b, own, lane.channel, after, connect=pull)
        found = all_gather_pieces(b, sums, own[:, 0], lane.channel, last=last, connect=pull)
        made.append(found[:, np.argsort(order)])
    return join(b, made)


def reduce_scatter(
    b: PlanBuilder,
    given: Values,
    ways: Sequence[Sequence[int]],
    how: Decision,
    after: Sequence[int],
    machine: Ints,
) -> Values:
    """Part r of the sum on rank r; `given` by rank, of one of equal machines."""
    whole: Values = parts(given[None], Knobs(machines=b.machines))[0, ...]
    made = []
    for way, lane in lanes(ways, how.channels):
        order = np.array(way)
        own, pull = _cut(lane, whole, how, 2 * b.machines, machine[order])
        own, last = own[:, order][:, :, on_all_machines(order, b.machines)], lane.channel + LAST
        sums = reduce_scatter_pieces(b, own, lane.channel, after, last=last, connect=pull)
        made.append(sums[:, np.argsort(order), None])
    return join(b, made)


def all_gather(
    b: PlanBuilder,
    given: Values,
    ways: Sequence[Sequence[int]],
    how: Decision,
    after: Sequence[int],
    machine: Ints,
) -> Values:
    """The whole on every rank, which gave its part; `given` by rank, of one of equal machines."""
    n, made = len(given) * b.machines, []
    every = everyones(given[None], Knobs(machines=b.machines))[0, :, None]
    for way, lane in lanes(ways, how.channels):
        order = np.array(way)
        everyone, last = on_all_machines(order, b.machines), lane.channel + LAST
        own, pull = _cut(lane, given[:, None], how, n * b.machines, machine[order])
        # As many copies as there, so that it is cut into as many parts.
        chunks, _ = _cut(lane, every, how, n, machine[order])
        own, chunks = b.slices(own[:, order, 0]), chunks[:, everyone, 0]
        found = all_gather_pieces(b, own, chunks, lane.channel, after, last=last, connect=pull)
        made.append(found[:, np.argsort(order)][:, :, np.argsort(everyone)])
    return join(b, made)


def _cut(
    lane: Lane, whole: Values, how: Decision, copies: int, machine: Ints
) -> tuple[Values, Connect]:
    """The lane's share of every chunk, by part, rank and chunk; a chunk makes so many copies. And
    how parts go from rank to rank, which are on these machines in the order of the ring.
    """
    ops = copies * whole.lo.size * min(lane.of, 8)
    slices = how.slices if how.protocol == "simple" else 1
    steps = _CHUNK_STEPS // how.slices if how.protocol == "simple" else 2
    chunks = pieces(whole, lane.of, steps * step_bytes(how), ops, slices)
    count = part_count(whole, how, chunks, max(min(_PARTS, _OPS // (ops * chunks)), 1))
    own = lane.share(whole).cut(chunks).cut(count).reshape(*whole.shape, -1)
    beyond = bool(machine[0] >= 0)
    return own.swapaxes(1, 2).swapaxes(0, 1), connect(
        count, machine != np.roll(machine, 1), beyond=beyond
    )
