"""The textbook ring (Patarasuk and Yuan 2009): reduce-scatter, then all-gather, one chunk per rank.

2(n-1) steps of S/n: 2(n-1)(a + S/(nB)) when n divides the elements. Nothing is padded or copied
locally: the library works in place.

Other rings are made for the graph at hand: several that share it, or the one best order. The tensor
is shared out over the rings as they share the links; on every ring, with a channel of
its own, a share is reduce-scattered and all-gathered as in `ring`. If the direct links hold no ring
at all, the rings go along the routes between all pairs. More than `MOST_RANKS` GPUs of equal
machines take the rings of a few machines, continued (`synthesis.rings`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import TypeAlias, TypeVar

import numpy as np

from simreduce.computing.arrays import Ints
from simreduce.errors import StrategyError
from simreduce.plan import PlanBuilder, Values
from simreduce.planners.algorithms.planner import (
    Connect,
    Knobs,
    Options,
    Pull,
    Results,
    Tensors,
    everyones,
    parts,
    plan_together,
    puller,
    size,
)
from simreduce.planners.layouts import Layout
from simreduce.planners.synthesis import MOST_RANKS, Network
from simreduce.planners.synthesis.rings import (
    Ring,
    best_order,
    continue_ring,
    ring_packing,
    sample_size,
)

T = TypeVar("T")


def all_reduce(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """Every chunk goes round to be summed, then goes round once more as it is."""
    return b.joins(_all_reduce(b, parts(values, knobs), knobs.channel))


def _all_reduce(b: PlanBuilder, own: Values, channel: int) -> Values:
    """By group, position and chunk: the sum over the positions of the group."""
    return all_gather_pieces(b, reduce_scatter_pieces(b, own, channel), own[:, 0], channel)


def reduce_scatter(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """Chunk c starts at position c+1 and is summed on its way to position c."""
    return reduce_scatter_pieces(b, parts(values, knobs), knobs.channel)


def all_gather(b: PlanBuilder, shards: Values, knobs: Knobs) -> Values:
    """Every shard goes round once."""
    return b.joins(all_gather_pieces(b, shards, everyones(shards, knobs), knobs.channel))


def reduce_scatter_pieces(
    b: PlanBuilder, own: Values, channel: int, after: Sequence[int] = (),
    way: int = 1, last: int | None = None, connect: Connect = puller,
) -> Values:  # fmt: skip
    """By group and position, the sum of the chunk of that number.

    `own` is by group, position and chunk. The chunks of a position are of one value, and all
    positions of a group have the same intervals. The sums go round upwards, or with `way` -1
    downwards. The last step may have a channel of its own.
    """
    position = np.arange(own.shape[1])
    hops = _hops(b, own[:, :, 0], own[:, 0], 1, channel, way, last, connect)
    held = own[:, position, (position - way) % own.shape[2]]
    # Step by step, as each rank's port sends one chunk after another in program order.
    for step, (send, target) in enumerate(hops):
        held = b.adds([send(held, target, () if step else after), target])
    return held


def _hops(
    b: PlanBuilder, held: Values, chunks: Values, behind: int, channel: int, way: int,
    last: int | None, connect: Connect,
) -> Iterator[tuple[Pull, Values]]:  # fmt: skip
    """By step, how each position hears from the one before it, and the interval of `chunks` that it
    then holds: the one as many places before its own as there were steps, and `behind` more.
    """
    n, position = chunks.shape[1], np.arange(held.shape[1])
    send = connect(b, held.device, (position - way) % n, channel=channel)
    for step in range(1, n):
        if step == n - 1 and last is not None:
            send = connect(b, held.device, (position - way) % n, channel=last)
        place = (position - way * (step + behind)) % n
        yield send, held.view(chunks.lo[:, place], chunks.hi[:, place])


def all_gather_pieces(
    b: PlanBuilder, shards: Values, chunks: Values, channel: int, after: Sequence[int] = (),
    way: int = 1, last: int | None = None, connect: Connect = puller,
) -> Values:  # fmt: skip
    """By group, position and chunk, the shards of all positions, which have the intervals of
    `chunks`. The first sends wait for the ops `after`. The last step may have a channel of its own.
    """
    held, made = shards, [shards.op]
    for send, target in _hops(b, shards, chunks, 0, channel, way, last, connect):
        held = send(held, target, () if len(made) > 1 else after)
        made.append(held.op)
    # Chunk c gets to position p in step p - c.
    n, at = chunks.shape[1], np.arange(shards.shape[1])[:, None]
    op = np.stack(made, axis=1)[:, way * (at - np.arange(n)) % n, at]
    return chunks[:, None].on(shards.device[..., None]).with_ops(op)


BIDIRECTIONAL_CHANNELS = 2
"""One for each way round."""


def bidirectional_all_reduce(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """Both rounds without putting the halves together in between.

    One half of every chunk goes one way round, the other half the other way; both halves of a step
    leave together. Where the two neighbours have a link each, 2(n-1)(a + S/(2nB)), half the ring's
    bandwidth time (n = 2 has one neighbour only); where they share one port, each half gets half
    its rate and the ring's time is left: 2(n-1)(a + S/(nB)) (the bidirectional buckets of Jain and
    Sabharwal 2010). Any n; reduce-scatter and all-gather are a half each.
    """
    n = size(values, knobs)
    if n == 1:
        return values
    own = parts(values, knobs).cut(2)
    halves = _all_gather(b, _reduce_scatter(b, own, knobs.channel), own[:, 0], knobs.channel)
    return b.joins(halves.reshape(*values.shape, 2 * n))


def bidirectional_reduce_scatter(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """Both halves of chunk c end at position c."""
    if size(values, knobs) == 1:
        return values
    return b.joins(_reduce_scatter(b, parts(values, knobs).cut(2), knobs.channel))


def bidirectional_all_gather(b: PlanBuilder, shards: Values, knobs: Knobs) -> Values:
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
    there = reduce_scatter_pieces(b, own[..., 0], channel)
    back = reduce_scatter_pieces(b, own[..., 1], channel + 1, way=-1)
    return Values.stack([there, back], axis=-1)


def _all_gather(b: PlanBuilder, halves: Values, chunks: Values, channel: int) -> Values:
    """By group, position, chunk and half; all positions have the intervals of `chunks`."""
    there = all_gather_pieces(b, halves[..., 0], chunks[..., 0], channel)
    back = all_gather_pieces(b, halves[..., 1], chunks[..., 1], channel + 1, way=-1)
    return Values.stack([there, back], axis=-1)


def divide(shares: Sequence[tuple[T, float]], lo: int, hi: int) -> list[tuple[T, int, int]]:
    """The elements [lo, hi) by shares; only those that get some, but one at least."""
    cut = divide_all(shares, np.array([lo]), np.array([hi]))
    return [(one, int(first[0]), int(end[0])) for one, first, end in cut]


def divide_all(shares: Sequence[tuple[T, float]], lo: Ints, hi: Ints) -> list[tuple[T, Ints, Ints]]:
    """`divide` of several tensors of which the same get some: the elements from and up to, by
    tensor.
    """
    upto = np.array(list(accumulate((share for _, share in shares), initial=0.0)))
    edges = lo[:, None] + np.rint((hi - lo)[:, None] * upto / upto[-1]).astype(np.int64)
    some = np.flatnonzero(edges[0, 1:] > edges[0, :-1]).tolist() or [0]
    return [(shares[i][0], edges[:, i], edges[:, i + 1]) for i in some]


Shares: TypeAlias = Sequence[tuple[Ring, float]]


def multi_ring(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """All-reduce over the rings that together have the best rate."""
    return _over(b, layout, tensors, lambda network: ring_packing(network).patterns)


def best_ring(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """The textbook ring, in the order in which its slowest hop is fastest."""

    def alone(network: Network) -> Shares:
        ring = best_order(network)
        return [] if ring is None else [(ring, 1.0)]

    return _over(b, layout, tensors, alone)


def _over(
    b: PlanBuilder, layout: Layout, tensors: Tensors, search: Callable[[Network], Shares]
) -> Results:
    rings = search_rings(layout, search)

    def takers(tensor: Values) -> Hashable:
        return tuple(ring for ring, _, _ in divide(rings, 0, int(tensor.elements[0])))

    return plan_together(b, tensors, partial(over_rings, rings=rings), shape=takers)


def search_rings(layout: Layout, search: Callable[[Network], Shares]) -> Shares:
    """Return the rings that `search` finds on the links, else on the routes between all pairs.

    Raises StrategyError if there is no ring.
    """
    few = sample(layout)
    for routed in (False, True):
        found = search(few.network(routed=routed))
        if few is not layout:
            longer = [(continue_ring(ring, layout.tasks, few.task_count), x) for ring, x in found]
            found = [(ring, share) for ring, share in longer if ring is not None]
        if found:
            return found
    raise StrategyError("no ring over these GPUs was found on the links and routes between them")


def sample(layout: Layout) -> Layout:
    """The layout to search: a few of the machines, if they are equal and GPUs are too many."""
    each = len(layout.tasks[0])
    few = sample_size(each)
    if layout.n <= MOST_RANKS or layout.machines > 1 or few >= len(layout.tasks):
        return layout
    if few * each > MOST_RANKS or len({_inside(layout, task) for task in layout.tasks}) > 1:
        return layout
    return layout.only([rank for task in layout.tasks[:few] for rank in task])


def _inside(layout: Layout, task: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The lanes in a machine, and the NICs of its GPUs."""
    lanes = tuple(tuple(layout.links[a][b] for b in task) for a in task)
    return (*lanes, tuple(layout.nics[a] for a in task) if layout.nics else ())


def over_rings(b: PlanBuilder, tensors: Values, rings: Shares) -> Values:
    """The sum by tensor and rank, of tensors with the same takers; every ring carries its share."""
    pieces = []
    cut = divide_all(rings, tensors.lo[:, 0], tensors.hi[:, 0])
    for channel, (ring, lo, hi) in enumerate(cut):
        share = tensors.view(lo[:, None], hi[:, None])[:, np.array(ring)]
        pieces.append(_all_reduce(b, share.cut(len(ring)), channel)[:, np.argsort(ring)])
    return b.joins(Values.concatenate(pieces, axis=2))
