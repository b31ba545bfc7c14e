"""Calls: groups of ops that are alike in all but their size, with their costs, kept once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from simreduce.computing.arrays import AnyInts, Bools, Floats, Ints, blocks, ranges, row_starts
from simreduce.engine.disturbance import Disturbance, scatter
from simreduce.engine.runtime import Runtime
from simreduce.plan import Executor, Kind, Plan
from simreduce.plan.ops import count_blocks
from simreduce.plan.plan import IN_PLACE, NO_STREAM
from simreduce.plan.residues import number_distinct
from simreduce.topology import Node


class Signatures(NamedTuple):
    """Columns over calls: ops with the same signature belong to one call.

    Ops that cost nothing belong to the first call. `source` and `target` are devices of the plan,
    or past them devices of another machine. `channel` is -1 without a stream, and -2 - it for steps
    of kernels, whose channels have no rate of their own. `passes` is how many times its own size an
    op moves: a sum of n values reads n and writes one, a join reads and writes every byte once, and
    a view (see `views`) moves nothing.
    `away` is the number of machines from the source to the target, if the machines are folded and
    something may queue for it. `starts` is 1 where a kernel starts once the op is done (see
    `Runtime.kernels`). `slice` is the bytes of a slice that a block of NCCL's Simple sends, else 0:
    its rate depends on them. `parts` and `messages` are what a host issues for an op besides, where
    hosts issue ops (see `issuing`).
    """

    executor: AnyInts
    kind: AnyInts
    source: AnyInts
    target: AnyInts
    channel: AnyInts
    passes: AnyInts
    away: AnyInts
    starts: AnyInts
    slice: AnyInts
    parts: AnyInts
    messages: AnyInts


_ALIGNED = 64
"""Bytes: the alignment of TensorFlow's tensors."""

_ONE: Ints = np.array([-1], dtype=np.int64)
"""A column that is the same for all ops."""
_FREE = Signatures(
    *np.array(
        [[Executor.TF], [Kind.INPUT], [0], [0], [-1], [0], [0], [0], [0], [0], [0]], dtype=np.int64
    )
)


def group_ops(
    plan: Plan,
    runtime: Runtime,
    nodes: Sequence[Node],
    *,
    cores: bool = False,
    issued: tuple[AnyInts, AnyInts] | None = None,
) -> tuple[AnyInts, Signatures]:
    """The call of every op, and the signatures of the calls in ascending order.

    `nodes` are the nodes of the plan's devices. `cores` says whether the cores of CPU devices are
    known, so that it matters there what is a view (see `views`). `issued` are, by op, the columns
    `parts` and `messages`.
    """
    queues = runtime.queues or bool(plan.executor.any())
    call = np.zeros(len(plan), dtype=np.int32)
    if queues or runtime.local or runtime.dispatch:
        ops = np.flatnonzero((plan.kind != Kind.CONCAT) | (plan.arg != IN_PLACE)).astype(np.int32)
        source = plan.source[ops]
    else:
        ops = np.flatnonzero(plan.kind == Kind.COPY).astype(np.int32)
        source = plan.device[plan.operands[plan.operand_start[ops]]]
    if not len(ops):
        return call, _FREE
    # A folded plan has one copy for each copy to another machine and one for each copy from
    # another. They are as many and as large, so the first kind represents both: the sender's way
    # out, then the receiver's way in.
    away = np.where(plan.kind[ops] == Kind.COPY, plan.arg[ops], 0) if plan.machines > 1 else _ONE
    executor, starts = plan.executor[ops], _ONE
    channel: AnyInts = _ONE
    if queues:
        channel = np.where(plan.stream == NO_STREAM, -1, plan.stream // len(plan.devices))[ops]
    if runtime.kernels:
        steps = steps_of_kernels(plan, nodes)
        starts = _starts(plan, steps)[ops].astype(np.int64)
        executor = np.where(steps[ops], np.int8(Executor.NCCL), executor)
        channel = np.where(steps[ops], -2 - channel, channel)
    parts: AnyInts = _ONE
    messages: AnyInts = _ONE
    if issued:
        parts, messages = (column[ops] for column in issued)
    heads = Signatures(
        executor=executor,
        kind=plan.kind[ops],
        source=source,
        target=plan.device[ops] + len(plan.devices) * (away > 0).astype(np.int32),
        channel=channel,
        passes=_passes(plan, nodes if cores else ())[ops] if runtime.local else _ONE,
        away=away if queues else _ONE,
        starts=starts,
        slice=_ONE,
        parts=parts,
        messages=messages,
    )
    known, (number,) = number_distinct([_slices(plan, heads, ops)])
    which, distinct = _distinct(heads._replace(slice=number))
    distinct = distinct._replace(slice=known[distinct.slice])
    call[ops] = which + 1
    return call, Signatures(*(np.concatenate(pair) for pair in zip(_FREE, distinct, strict=True)))


def _slices(plan: Plan, heads: Signatures, ops: AnyInts) -> Ints:
    """The column `slice`; one number if no op has any."""
    mine = (heads.executor == Executor.NCCL) & (heads.kind == Kind.COPY) & (heads.channel >= 0)
    if not mine.any():
        return np.zeros(1, dtype=np.int64)
    return np.where(mine, plan.sizes(ops) // count_blocks(heads.channel), 0)


def steps_of_kernels(plan: Plan, nodes: Sequence[Node]) -> Bools:
    """Copies between GPUs and switches that sum, and their sums, unless they are NCCL's own."""
    joins = np.array([node.kind != "cpu" for node in nodes], dtype=np.bool_)
    copies = (plan.kind == Kind.COPY) & joins[plan.source]
    copies |= plan.kind == Kind.ADD
    steps: Bools = copies & joins[plan.device] & (plan.executor == Executor.TF)
    return steps


def _starts(plan: Plan, steps: Bools) -> Bools:
    """The ops after which a kernel starts: a kernel reads their value, and none has made it.

    Of a buffer that was filled in place, these are the ops that filled it.
    """
    reader = np.repeat(np.arange(len(plan)), np.diff(plan.operand_start))
    after = np.zeros(len(plan), dtype=np.bool_)
    after[reader[steps[plan.operands]]] = True
    found: Bools = np.zeros(len(plan), dtype=np.bool_)
    found[plan.operands[steps[reader]]] = True
    in_place = (plan.kind == Kind.CONCAT) & (plan.arg == IN_PLACE)
    found[plan.operands[(found & in_place)[reader]]] = True
    found &= ~in_place & ~steps & ~after & (plan.executor == Executor.TF)
    return found


def _passes(plan: Plan, nodes: Sequence[Node]) -> Ints:
    """`passes` of every op; those of views if there are `nodes`."""
    passes = np.where(plan.kind == Kind.COPY, 1, plan.operand_count + 1)
    passes[plan.kind == Kind.CONCAT] = 2
    if nodes:
        passes[views(plan, nodes)] = 0
    return passes


def views(plan: Plan, nodes: Sequence[Node]) -> Bools:
    """The SLICEs on CPU devices that share the memory of their operand: all of it, or a part that
    begins at a multiple of 64 bytes of it and has a multiple of 64 bytes. TensorFlow copies the
    others (tensorflow/core/kernels/slice_op.cc). On GPUs, plans have SLICEs for copies.

    `nodes` are the nodes of the plan's devices.
    """
    cpu = np.array([node.kind == "cpu" for node in nodes], dtype=np.bool_)
    found: Bools = (plan.kind == Kind.SLICE) & cpu[plan.device]
    which = np.flatnonzero(found)
    operand = plan.operands[plan.operand_start[which]]
    count = plan.hi[which] - plan.lo[which]
    nbytes = plan.sizes(which)
    begin = (plan.lo[which] - plan.lo[operand]) * (nbytes // np.maximum(count, 1))
    aligned = (begin % _ALIGNED == 0) & (nbytes % _ALIGNED == 0)
    found[which] = aligned | (count == plan.hi[operand] - plan.lo[operand])
    return found


def _distinct(rows: Signatures) -> tuple[AnyInts, Signatures]:
    """Return the place of each row among the distinct rows, and these in ascending order.

    A column may hold one number for all rows.
    """
    low = [int(column.min()) for column in rows]
    size = [int(column.max()) - least + 1 for column, least in zip(rows, low, strict=True)]
    narrow = math.prod(size) <= np.iinfo(np.int32).max
    length = max(len(column) for column in rows)
    key: AnyInts = np.zeros(length, dtype=np.int32 if narrow else np.int64)
    for column, least, many in zip(rows, low, size, strict=True):
        if many > 1:
            key *= many
            for some in blocks(length):
                part = column[some] if len(column) == length else column
                key[some] += (part - least).astype(key.dtype, copy=False)
    which: AnyInts
    if math.prod(size) > 4 * len(key) + (1 << 20):
        distinct, (which,) = number_distinct([key])
    else:
        which = np.zeros(math.prod(size), dtype=np.int32)
        which[key] = 1
        distinct = np.flatnonzero(which)
        which[distinct] = np.arange(len(distinct), dtype=np.int32)
        for some in blocks(length):
            key[some] = which[key[some]]
        which = key
    columns = []
    for least, many in zip(low[::-1], size[::-1], strict=True):
        columns.append(distinct % many + least)
        distinct = distinct // many
    return which, Signatures(*columns[::-1])


@dataclass(frozen=True, slots=True)
class Calls:
    """The costs that the ops of a call share; lanes and uses are CSR rows."""

    overhead: Floats
    work: Floats  # s of a core, part of its flow whatever its size
    latency: Floats
    holds: Bools
    cap: Floats
    paced: Bools  # the cap is what blocks get of a link, between pauses; it follows the link's rate
    lane_start: Ints
    early: Ints  # how many of its lanes come before its pipes
    lanes: Ints
    use_start: Ints
    uses: Ints
    weight: Floats

    @property
    def piped(self) -> Bools:
        """Whether a call has pipes."""
        return np.diff(self.lane_start) > self.early

    @property
    def is_pipe(self) -> Bools:
        """Whether it is a pipe, for each entry of `lanes`."""
        count = np.diff(self.lane_start)
        within = np.arange(len(self.lanes)) - np.repeat(self.lane_start[:-1], count)
        return np.asarray(within >= np.repeat(self.early, count))

    def select(self, which: AnyInts) -> Calls:
        """These calls, in that order."""
        lanes, uses = np.diff(self.lane_start)[which], np.diff(self.use_start)[which]
        lane, use = ranges(self.lane_start[which], lanes), ranges(self.use_start[which], uses)
        return Calls(
            overhead=self.overhead[which],
            work=self.work[which],
            latency=self.latency[which],
            holds=self.holds[which],
            cap=self.cap[which],
            paced=self.paced[which],
            lane_start=row_starts(lanes),
            early=self.early[which],
            lanes=self.lanes[lane],
            use_start=row_starts(uses),
            uses=self.uses[use],
            weight=self.weight[use],
        )

    def drop_uses(self, which: Bools) -> Calls:
        """The same calls, but `which` use only the last resource of their row."""
        count = np.diff(self.use_start)
        kept = ~np.repeat(which, count)
        kept[self.use_start[1:] - 1] = True
        return replace(
            self,
            use_start=row_starts(np.where(which, 1, count)),
            uses=self.uses[kept],
            weight=self.weight[kept],
        )

    def append(self, others: Calls) -> Calls:
        """These calls, and then others."""
        columns = {}
        for name in self.__slots__:
            mine, theirs = getattr(self, name), getattr(others, name)
            if name.endswith("_start"):
                theirs = theirs[1:] + mine[-1]
            columns[name] = np.concatenate([mine, theirs])
        return Calls(**columns)


def scatter_costs(call: AnyInts, calls: Calls, disturbance: Disturbance) -> tuple[AnyInts, Calls]:
    """Scatter overhead and latency.

    Every op that pays either has a call of its own, after all others.
    """
    paying = np.flatnonzero(((calls.overhead > 0.0) | (calls.latency > 0.0))[call])
    overhead, latency = (
        u[paying] * disturbance.jitter + 1.0 for u in scatter(disturbance.seed, len(call))
    )
    own = calls.select(call[paying])
    own = replace(own, overhead=own.overhead * overhead, latency=own.latency * latency)
    return give_own_calls(call, paying, np.arange(len(paying)), calls, own)


def give_own_calls(
    call: AnyInts, ops: AnyInts, which: AnyInts, calls: Calls, own: Calls
) -> tuple[AnyInts, Calls]:
    """Gives `ops` the calls `which` of `own`, which come after all others."""
    call = call.copy()
    call[ops] = len(calls.cap) + which
    return call, calls.append(own)
