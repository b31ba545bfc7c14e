"""The textbook ring (Patarasuk and Yuan 2009): reduce-scatter, then all-gather, one chunk per rank.

2(n-1) steps of S/n: 2(n-1)(a + S/(nB)) when n divides the elements. Nothing is padded or copied
locally: the library works in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from simreduce.plan import PlanBuilder, Values
from simreduce.planners.algorithms.planner import (
    Connect,
    Knobs,
    Pull,
    everyones,
    parts,
    puller,
    size,
)


def all_reduce(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """Every chunk goes round to be summed, then goes round once more as it is."""
    return b.joins(_all_reduce(b, parts(values, knobs), knobs.channel))


def reduce_scatter(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """Chunk c starts at position c+1 and is summed on its way to position c."""
    return reduce_scatter_pieces(b, parts(values, knobs), knobs.channel)


def all_gather(b: PlanBuilder, shards: Values, knobs: Knobs) -> Values:
    """Every shard goes round once."""
    return b.joins(all_gather_pieces(b, shards, everyones(shards, knobs), knobs.channel))


def all_reduce_pieces(
    b: PlanBuilder, values: Values, channel: int = 0, after: Sequence[int] = ()
) -> Values:
    """By group, position and chunk: the sum over the positions of the group. The first sends wait
    for the ops `after`.
    """
    return _all_reduce(b, values.cut(values.shape[1]), channel, after)


def _all_reduce(b: PlanBuilder, own: Values, channel: int, after: Sequence[int] = ()) -> Values:
    return all_gather_pieces(b, reduce_scatter_pieces(b, own, channel, after), own[:, 0], channel)


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
