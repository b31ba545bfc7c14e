"""How a chunk of NCCL's passes from GPU to GPU and from machine to machine.

With LL and LL128 flags travel with the data, so a block passes on what its threads hold at once
while the rest still arrives. A NIC's proxy sends a chunk when it is complete; the receiver begins
with the first lines that arrive. With Simple a chunk, or a slice of one, is passed on when it is
complete.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simreduce import dtypes
from simreduce.computing.arrays import Bools, Ints
from simreduce.plan import PlanBuilder, Values
from simreduce.plan.channels import FOLLOWING
from simreduce.plan.columns import Numbers
from simreduce.planners.algorithms.climb import Send
from simreduce.planners.algorithms.family import After, Connect, Pull
from simreduce.planners.layouts import Decision, Layout

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
    nbytes = int(values.elements.max(initial=0)) * dtypes.SIZES[values.dtype]
    held = flagged.hold * warps // _WARPS * chunks * how.channels
    return max(min(nbytes // held, most), 1)


def send(
    b: PlanBuilder, held: Values, to: Ints, channel: int, far: Bools,
    after: After = (), away: Numbers = 0,
) -> Values:  # fmt: skip
    """Copies of `held`, by chunk, part and connection, to the devices `to`. Over the connections
    that are `far` a chunk waits for all of its parts.
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
