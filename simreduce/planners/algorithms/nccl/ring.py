"""NCCL's collectives along rings: of chunks that go round, or of pieces from or to a root.

Every channel sends chunks, one for each rank, round all GPUs on its own way. In a broadcast or a
reduce pieces follow one another along each ring, from the root or to it.

A piece is what a block passes on before it looks for more: a step of Simple, 512 KiB. With LL and
LL128 flags travel with the data, so a block passes on parts of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from simreduce.computing.arrays import Ints
from simreduce.plan import PlanBuilder, Values
from simreduce.plan.ops import LAST, count_blocks, halve_threads
from simreduce.planners.algorithms.nccl.paths import (
    FEW_WARPS,
    Lane,
    connect,
    join,
    lanes,
    lanes_of,
    nbytes,
    on_all_machines,
    part_count,
    pieces,
    send,
    step_bytes,
)
from simreduce.planners.algorithms.planner import Connect, Knobs, everyones, parts
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


_CHAIN_PARTS = 16
"""Upper limit of the parts of a chunk that follow one another between GPUs."""

_CHAIN_OPS = {"simple": 200_000, "ll": 48_000, "ll128": 200_000}
"""Copies of one collective, about: a chain is filled piece by piece, so few would be too slow. Over
many machines pieces of LL of NCCL's own size would be too fast.
"""


def broadcast(
    b: PlanBuilder,
    given: Values,
    ways: Sequence[Sequence[int]],
    how: Decision,
    after: Sequence[int],
    machine: Ints,
    root: int,
) -> Values:
    """The root's value on every rank."""
    made = []
    for channel, held, chain in _chains(given, ways, how, machine, root):
        seen = [b.slices(held[:, :, root, None])]
        for before, rank in pairwise(chain):
            far, to = machine[[before]] != machine[rank], held.device[:, :, rank, None]
            seen.append(send(b, seen[-1], to, channel, far, after if before == root else ()))
        whole = Values.concatenate(seen, axis=2)[:, :, np.argsort(chain), None]
        made.append(whole.reshape(-1, *whole.shape[2:]))
    return join(b, made)


def reduce(
    b: PlanBuilder,
    given: Values,
    ways: Sequence[Sequence[int]],
    how: Decision,
    after: Sequence[int],
    machine: Ints,
    root: int,
) -> Values:
    """The sum on the root."""
    made = []
    for channel, held, chain in _chains(given, ways, how, machine, root):
        total = held[:, :, chain[1], None]
        for before, rank in pairwise((*chain[1:], root)):
            far, own = machine[[before]] != machine[rank], held[:, :, rank, None]
            waits = after if before == chain[1] else ()
            total = b.adds([send(b, total, own.device, channel, far, waits), own])
        made.append(total.reshape(-1, 1, 1))
    return join(b, made)


def _chains(
    given: Values, ways: Sequence[Sequence[int]], how: Decision, machine: Ints, root: int
) -> Iterator[tuple[int, Values, Sequence[int]]]:
    """By lane: its channel, its share of every rank's value, by chunk, part and rank, and the ring
    from the root on.

    By LL, the threads of a block are halved until each has 8 bytes for every rank, although a chain
    has no use for a share per rank. A NIC sends what waits for it one chunk of LL128 after another,
    so over a network every channel of a lane has pieces of its own.
    """
    size, halvings, each = nbytes(given), 0, len(given) * how.channels
    while how.protocol == "ll" and halvings < 3 and size < each * (how.rules.ll.hold >> halvings):
        halvings += 1
    most = _CHAIN_OPS[how.protocol]
    for way, lane in lanes(ways, how.channels):
        copies, start = len(given) * min(lane.of, 8), way.index(root)
        count = pieces(given, lane.of, step_bytes(how), copies, most=most)
        if how.protocol == "ll128" and np.ptp(machine):
            count *= count_blocks(lane.channel)
        fitting = max(min(_CHAIN_PARTS, most // (copies * count)), 1)
        parts = part_count(given, how, count, fitting, FEW_WARPS)
        held = lane.share(given).cut(count).cut(parts).swapaxes(0, 1).swapaxes(1, 2)
        yield halve_threads(lane.channel, halvings), held, (*way[start:], *way[:start])
