"""NCCL's trees: double binary trees across machines, and parallel aggregated trees (PAT).

In an all-reduce a chain is in every machine and the double binary tree across them.

The first GPU of a machine's chain is beside the NIC of its channel. Half of the channels climb one
tree of machines and half the other (`algorithms.trees`), in which the inner machines of the first
are leaves, so that no NIC carries more than the tensor twice each way. A machine by itself is a
chain.

NCCL's parallel aggregated trees (PAT), for all-gather and reduce-scatter over machines with one
GPU each (Jeaugey 2025, arXiv 2506.20252; NVIDIA/nccl src/include/collectives.h).

The part of every rank has a binomial tree of its own, whose root is that rank. In the steps d =
..., 4, 2, 1 every rank that has the part of a rank 2kd below it sends it d up, so that the farthest
go first, when there is least to send. A reduce-scatter goes the other way, and adds. What a rank
sends in a step is one message as far as a step of the buffer holds it, else several:
ceil(log2 n) a + (n-1)/n M/B.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from simreduce.computing.arrays import Ints
from simreduce.errors import NotFoldable, StrategyError
from simreduce.plan import PlanBuilder, Values
from simreduce.plan.ops import FOLLOWING, JOINED
from simreduce.planners.algorithms.nccl.paths import (
    FEW_WARPS,
    Lane,
    chunk_count,
    edges,
    halve,
    join,
    lanes,
    lanes_of,
    nbytes,
    part_count,
    pieces,
    step_bytes,
)
from simreduce.planners.algorithms.planner import Knobs, parts
from simreduce.planners.algorithms.trees import Tree, down, up
from simreduce.planners.layouts import Decision, Layout
from simreduce.planners.synthesis.trees import parents, second_tree

_PARTS, _OPS = 8, 12_000
"""Parts of a chunk that follow one another, and copies of one collective, about."""

_LOOPS = {
    "simple": ((8, 1 << 17), (4, 1 << 16), (1, 1 << 15)),
    "ll128": ((64, 1 << 17), (16, 1 << 15)),
}
"""Chunks for each hop, and the bytes of a chunk that is not halved for them."""


def all_reduce(
    b: PlanBuilder,
    given: Values,
    ways: Sequence[Sequence[Sequence[int]]],
    how: Decision,
    after: Sequence[int],
    machine: Ints,
) -> Values:
    """The sum on every rank; `ways` by channel and machine."""
    n, machines = len(given), len(ways[0])
    orders = [np.arange(machines), second_tree(machines)] if machines > 1 else [np.arange(1)]
    trees = [_tree(way, order) for order in orders for way in ways]
    size, hops, used = nbytes(given), 2 * len(trees[0].levels()), min(len(trees), how.channels)
    chunk = chunk_bytes(how, size, machines, n // machines)
    chunks = chunk_count(-(-size // how.channels), chunk, 2 * (n - 1) * used, hops)
    most = max(min(_PARTS, _OPS // (2 * n * used * chunks)), 1)
    parts, made = part_count(given, how, chunks, most, FEW_WARPS), []
    for tree, lane in lanes_of(how, trees, len(ways)):
        own = lane.share(given)[tree.place].cut(chunks).cut(parts).swapaxes(0, 1).swapaxes(1, 2)
        send = edges(b, lane.channel + JOINED, machine[tree.place], tree.parent)
        sums = up(b, own, tree, 0, after, send)
        found = down(b, sums, tree, 0, send)[..., np.argsort(tree.place)]
        made.append(found.reshape(-1, n)[..., None])
    return join(b, made)


def chunk_bytes(how: Decision, total: int, machines: int, local: int) -> int:
    """Bytes of data in a chunk of NCCL's: a step of the buffer, halved while fewer chunks than the
    hops of a tree ask for would follow one another (NVIDIA/nccl src/enqueue.cc).
    """
    across = machines.bit_length() - 1
    size = step_bytes(how)
    if how.protocol == "ll":
        return size
    if how.protocol == "simple":
        flags, hops = 1.0, float(local - 1 + across)
    else:
        flags, hops = 1 / how.rules.ll128.data, (1 + across + 0.1 * local) / local
        size = round(size * flags)
    return int(halve(size, total // how.channels, hops, _LOOPS[how.protocol]) / flags)


def _tree(way: Sequence[Sequence[int]], order: Ints) -> Tree:
    """The tree of ranks in which machine `order[i]` is node i of the binary tree."""
    size = np.array([len(way[machine]) for machine in order])
    first = np.cumsum(size) - size
    parent = np.arange(size.sum()) - 1
    parent[first] = first[parents(len(order))]
    return Tree(parent, np.concatenate([way[machine] for machine in order]))


def check(layout: Layout, ranks: Sequence[int]) -> None:
    """StrategyError unless each of several ranks is on a machine of its own."""
    if layout.machines > 1:
        raise NotFoldable("machines have different places in NCCL's trees")
    if len(ranks) < 2 or any(len(task) > 1 for task in layout.among(ranks)):
        raise StrategyError("PAT runs over several machines, with one GPU each")


def all_gather(
    b: PlanBuilder,
    given: Values,
    ways: Sequence[Sequence[int]],
    how: Decision,
    after: Sequence[int],
    machine: Ints,
) -> Values:
    """The whole on every rank, which gave its part; `given` by rank."""
    n = len(given)
    return _by_lanes(b, given[:, None], how, lambda lane, own: _gather(b, own, lane, n, how, after))


def reduce_scatter(
    b: PlanBuilder,
    given: Values,
    ways: Sequence[Sequence[int]],
    how: Decision,
    after: Sequence[int],
    machine: Ints,
) -> Values:
    """Part r of the sum on rank r; `given` by rank."""
    n = len(given)
    whole: Values = parts(given[None], Knobs())[0, ...]
    return _by_lanes(b, whole, how, lambda lane, own: _scatter(b, own, lane, n, how, after))


def _by_lanes(
    b: PlanBuilder, whole: Values, how: Decision, make: Callable[[Lane, Values], Values]
) -> Values:
    """By rank, what is made of each channel's share of `whole`, by rank and part."""
    made = []
    for _, lane in lanes([()], how.channels):
        copies = len(whole) ** 2 * min(lane.of, 8)
        count = pieces(whole, lane.of, 2 * step_bytes(how), copies)
        own = lane.share(whole).cut(count)  # by rank, part and piece
        # by rank and part
        made.append(Values.stack([make(lane, own[:, :, piece]) for piece in range(count)]))
    return join(b, made)


def _messages(n: int, most: int, *, upwards: bool) -> Iterator[tuple[int, range]]:
    """What every rank sends, in order: how far, and below the sender the ranks whose parts are in
    the message; `most` parts in one. If not `upwards`, the other way
    round, and the ranks are those for whom the sums are, below the receiver.
    """
    steps = [1 << power for power in range((n - 1).bit_length())]
    for far in reversed(steps) if upwards else steps:
        for first in range(0, n - far, 2 * far * most):
            yield far, range(first, min(first + 2 * far * most, n - far), 2 * far)


def _fit(own: Values, how: Decision) -> int:
    """Parts that a step of the buffer holds, a power of two; one at least."""
    return 1 << max((step_bytes(how) // max(nbytes(own), 1)).bit_length() - 1, 0)


class _Trees:
    """The sends of a lane. A message leaves when the last that came of it is there."""

    def __init__(self, b: PlanBuilder, ranks: Ints, lane: Lane, after: Sequence[int]) -> None:
        self.b, self.ranks, self.lane = b, ranks, lane
        self.launch = np.full(len(ranks), after[0])
        self.came: dict[int, Ints] = {}
        """By part that has come, the op by which; the last one last."""

    def send(self, held: Mapping[int, Values], wanted: Sequence[int], sender: Ints) -> list[Values]:
        """Copies of the parts on every rank, which `sender` has."""
        latest = next((op for part, op in reversed(self.came.items()) if part in wanted), None)
        gate = (self.launch if latest is None else latest)[sender]
        following = np.arange(len(wanted)) > 0
        values = Values.stack([held[part] for part in wanted])[:, sender]
        stream = self.b.streams(
            self.ranks[sender], self.lane.channel + FOLLOWING * following[:, None]
        )
        gates = np.broadcast_to(gate, values.shape)
        moved = self.b.copies(
            values, np.broadcast_to(self.ranks, values.shape), stream=stream, after=gates
        )
        return [moved[i, :] for i in range(len(wanted))]

    def note(self, part: int, op: Ints) -> None:
        self.came.pop(part, None)
        self.came[part] = op


def _gather(
    b: PlanBuilder, own: Values, lane: Lane, n: int, how: Decision, after: Sequence[int]
) -> Values:
    rank, held = np.arange(n), {0: own[:, 0]}
    trees = _Trees(b, held[0].device, lane, after)
    for far, below in _messages(n, _fit(own, how), upwards=True):
        arrived = trees.send(held, below, (rank - far) % n)
        for each, values in zip(below, arrived, strict=True):
            held[each + far] = values
            trees.note(each + far, values.op)
    every = Values.stack([b.slices(held[0]), *(held[each] for each in range(1, n))], axis=1)
    # The part of rank c is r - c below rank r.
    return every[rank[:, None], (rank[:, None] - rank) % n]


def _scatter(
    b: PlanBuilder, own: Values, lane: Lane, n: int, how: Decision, after: Sequence[int]
) -> Values:
    rank = np.arange(n)
    total = {each: own[rank, (rank - each) % n] for each in range(n)}
    trees = _Trees(b, own[:, 0].device, lane, after)
    for far, below in _messages(n, _fit(own, how), upwards=False):
        arrived = trees.send(total, [each + far for each in below], (rank + far) % n)
        for each, values in zip(below, arrived, strict=True):
            total[each] = b.adds([values, total[each]])
            trees.note(each, total[each].op)
    return total[0][:, None]
