"""How NCCL shares a tensor out: over channels, and in each over pieces that follow one another.

Channels that would do the same are one *lane* here, as wide as they are together: all channels of
an NVSwitch go the same way.

A chunk of a rank is sent in slices, two or more of them under way. Loops over a large tensor
are alike, and a rank starts the next before the last has come round, so what counts is how many
slices fill the connection. A piece therefore represents as many slices as it takes to keep a plan
small. In a ring every connection is busy all the time, and pieces longer than the latency cost
nothing. In a chain, a tree or a switch the first piece has to arrive before the others count: with
p pieces for s slices over h hops the time is up to (h - 1)(1/p - 1/s) of the whole too long. Trees
and switches therefore send NCCL's own chunks, unless these are very many.

NCCL lets 8 steps be under way on a connection. At its own buffer sizes that never binds: even 8
steps of LL, 256 KiB, are more than a channel moves in the two latencies of a network.

A plan may hold a *part* of a collective: what the channels of one way round the GPUs carry. By
itself it is no collective and proves nothing. Where ways are alike, one of them takes as long as
all together, if resources carry what they would carry then (`engine.symmetry`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import numpy as np

from simreduce import dtypes
from simreduce.computing.arrays import Bools, Ints
from simreduce.plan import Executor, PlanBuilder, Value, Values
from simreduce.plan.channels import FOLLOWING, merged_channel
from simreduce.plan.ops import Numbers
from simreduce.planners.algorithms.family import After, Connect, Pull
from simreduce.planners.algorithms.trees import Send
from simreduce.planners.layouts import Decision, Layout

T = TypeVar("T")

_LEAST = 1 << 15
"""Bytes of the smallest slice of Simple."""

_OPS = 6_000
"""Copies of one collective, about; more pieces would change little."""

_COPIES = 1 << 22
"""Copies of one collective over trees, about."""


class Lane(NamedTuple):
    """Channels `first` to `last` (not included) of `of`, which do the same; `channel` is theirs."""

    first: int
    last: int
    of: int
    channel: int

    def share(self, values: Values) -> Values:
        """The part of every value that these channels carry."""
        size, whole = values.elements, self.of
        each, more = size // whole, size % whole
        lo, hi = (values.lo + each * c + more * c // whole for c in (self.first, self.last))
        return values.view(lo, hi)


def lanes(ways: Sequence[T], channels: int) -> list[tuple[T, Lane]]:
    """Every way that has channels, with its lane; channel c takes the way c % len(ways)."""
    count = np.bincount(np.arange(channels) % len(ways), minlength=len(ways)).tolist()
    last = np.cumsum(count).tolist()
    return [
        (way, Lane(end - blocks, end, channels, merged_channel(number % 64, blocks)))
        for number, (way, blocks, end) in enumerate(zip(ways, count, last, strict=True))
        if blocks
    ]


def lanes_of(how: Decision, ways: Sequence[T], of: int) -> list[tuple[T, Lane]]:
    """The lanes of every way; of a part, those whose number modulo `of` is its way's."""
    made = lanes(ways, how.channels)
    return made if how.way < 0 else made[how.way :: of]


def nbytes(values: Values) -> int:
    """Bytes of the largest value."""
    return int(values.elements.max(initial=0)) * dtypes.SIZES[values.dtype]


def step_bytes(how: Decision) -> int:
    """Bytes of data in a step."""
    flagged = how.rules.flagged(how.protocol)
    return flagged.step if flagged else how.step


def pieces(
    values: Values, channels: int, step: int, copies: int, least: int = 1, most: int = _OPS
) -> int:
    """How many pieces of about `step` bytes a channel's share of every value is cut into, if one
    piece makes so many copies, of `most` in all.
    """
    share = nbytes(values) / channels
    return int(max(min(-(-share // step), most / copies), min(least, share / _LEAST), 1))


def chunk_count(size: int, chunk: int, copies: int, hops: int) -> int:
    """The number of chunks that a channel sends `size` bytes in.

    Each chunk makes `copies` copies, and the longest way has `hops` hops. Chunks are larger than
    NCCL's where copies would be too many.
    """
    return max(min(-(-size // chunk), max(_COPIES // copies, 4 * hops)), 1)


def halve(size: int, of: int, hops: float, loops: Iterable[tuple[int, int]]) -> int:
    """Bytes of a chunk, from `size` on halved while `of` bytes have fewer chunks than each of some
    `loops` asks for each hop, down to the bytes that it states (NVIDIA/nccl src/enqueue.cc).
    """
    for least_chunks, least in loops:
        while size > least and of // size < least_chunks * hops:
            size //= 2
    return size


@contextmanager
def launch(
    b: PlanBuilder, executor: Executor, values: Sequence[Value], channel: int
) -> Iterator[int]:
    """Mark the ops appended inside as those of kernels with this executor.

    Yields the op to wait for: it is done when all `values` are there and the kernels run, on the
    channels that `channel` represents (`merged_channel`).
    """
    before, b.executor = b.executor, executor
    first = values[0].device
    try:
        yield b.barrier(first, [value.op for value in values], b.stream(first, channel))
    finally:
        b.executor = before


def join(b: PlanBuilder, made: Sequence[Values]) -> Values:
    """By rank, what lanes made by piece, rank and chunk."""
    each = [values.swapaxes(0, 1).swapaxes(1, 2) for values in made]
    whole = Values.concatenate([v[:, :, None] for v in each], axis=2)
    return b.joins(whole.reshape(whole.shape[0], -1))


def fill(found: Values, given: Sequence[Value], how: Decision) -> Values:
    """The result of every rank; of a part, as if it were the whole tensor, and what a rank has
    where it gets none.
    """
    if how.way < 0:
        return found
    whole = Values.of(given)
    op = whole.op.copy()
    op[np.isin(whole.device, found.device)] = found.op
    return whole.with_ops(op)


_WARPS, FEW_WARPS = 16, 4
"""Warps of a block by LL, about; and warps that one part represents along a tree or a chain."""


def machine_of(layout: Layout, values: Values) -> Ints:
    """The number of the machine of each value's rank; -1 for each of folded GPUs in one machine,
    which no network joins.
    """
    if layout.one_task:
        return np.full(len(values), -1)
    task = {rank: number for number, ranks in enumerate(layout.tasks) for rank in ranks}
    return np.array([task[rank] for rank in values.device.tolist()])


def on_all_machines(order: Ints, machines: int) -> Ints:
    """An order of the ranks of one of equal machines, machine after machine."""
    return (np.arange(machines)[:, None] * len(order) + order).ravel()


def part_count(values: Values, how: Decision, chunks: int, most: int, warps: int = _WARPS) -> int:
    """In how many parts, `most` or fewer, each of a channel's `chunks` moves on between GPUs.

    A ring goes on with a block's next step, before which the block's warps wait for each other. A
    tree or a chain goes on with the next block, whose warps do not wait.
    """
    flagged = how.rules.flagged(how.protocol)
    if flagged is None:
        return 1
    held = flagged.hold * warps // _WARPS * chunks * how.channels
    return max(min(nbytes(values) // held, most), 1)


def send(
    b: PlanBuilder, held: Values, to: Ints, channel: int, far: Bools,
    after: After = (), away: Numbers = 0,
) -> Values:  # fmt: skip
    """Copies of `held`, by chunk, part and connection, to the devices `to`. Over the connections
    that are `far` a chunk waits for all of its parts.

    With LL and LL128 flags travel with the data, so a block passes on what its threads hold at once
    while the rest still arrives. A NIC's proxy sends a chunk when it is complete; the receiver
    begins with the first lines that arrive. With Simple a chunk, or a slice of one, is passed on
    when it is complete.
    """
    following = np.arange(held.shape[1]) > 0
    stream = b.streams(held.device, channel + FOLLOWING * following[:, None])
    beyond = held[..., far]
    if not (beyond.op == beyond.op[:, :1]).all():  # else views of one value
        op = held.op.copy()
        op[..., far] = b.joins(beyond.swapaxes(1, 2)).op[:, None]
        held = held.with_ops(op)
    return b.copies(held, to, stream=stream, after=after, away=away)


def connect(count: int, far: Bools, *, beyond: bool) -> Connect:
    """Return a replacement of `family.puller` for groups that are chunks, each in `count` parts.

    A network joins the ranks that are `far` to the ranks before them, and folded machines if it is
    `beyond` them.
    """

    def pull(b: PlanBuilder, device: Ints, source: Ints, *, channel: int) -> Pull:
        away, sender = np.divmod(source, device.shape[1])
        machines: Numbers = away if away.any() else 0
        shape = (-1, count, device.shape[1])

        def step(values: Values, wanted: Values, after: After) -> Values:
            given = wanted.with_ops(values.op[:, sender]).on(device[:, sender])
            moved = send(b, given.reshape(*shape), wanted.device.reshape(shape), channel,
                         far | (beyond & (away > 0)), after, machines)  # fmt: skip
            return moved.reshape(*wanted.shape)

        return step

    return pull


def edges(b: PlanBuilder, channel: int, machine: Ints, parent: Ints) -> Send:
    """Copies over the edges of a tree; `machine` and `parent` are by node."""

    def move(held: Values, to: Ints, node: Ints, after: Sequence[int]) -> Values:
        return send(b, held, to, channel, machine[node] != machine[parent[node]], after)

    return move
