"""The kernel as machine code: the same source, the same bits.

The tables of one submission to an idle machine, the usual case, are made at once instead of column
by column.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from simreduce.computing.arrays import AnyInts, Bools, Floats, row_starts
from simreduce.computing.loops import Native, native
from simreduce.engine.kernel.advance import advance
from simreduce.engine.kernel.tables import (
    FREE_CROWD,
    FREE_SLOT,
    INFINITY,
    NONE,
    PATIENCE,
    RESOURCES,
    SCALARS,
    SUBMISSIONS,
    Flows,
    Heap,
    Ops,
    Queues,
    State,
)
from simreduce.engine.lowering.calls import Calls
from simreduce.errors import InternalError

Advance = Callable[[Any, Any, float, float], tuple[bool, float]]

WORTH = 60_000
"""Ops that take about as long interpreted as it takes to compile the kernel."""

SMALL = 64
"""Fewer ops are quicker interpreted although the compiled kernel is there."""

CROWDS = 2_000_000
"""Crowds to look at, to share resources, that take about as long interpreted as it takes to compile
the kernel.
"""

SLICE = 4_000_000
"""Ops and crowds that machine code works on before Python has a turn: some tenths of a second."""

_seen = [0]


def run(ops: Any, state: Any, now: float, horizon: float, time: Any) -> bool:
    """As `advance`; machine code returns whole numbers only, so that the time goes to `time`."""
    completed, time[0] = advance(ops, state, now, horizon)
    return completed


def pays(ops: int, *, again: bool = False) -> bool:
    """Whether so many ops in flight are worth the compiled kernel, which gives the same bits.

    A kernel that is not compiled yet is worth it once a process has had many ops. Few ops are not
    worth it, unless they are in the tables already (`again`).
    """
    if ops < SMALL and not again:
        return False
    _seen[0] += ops
    return _seen[0] >= WORTH or kernel().is_kept


def kernel() -> Native:
    """`run` as machine code."""
    return native(run, "the kernel", bare=True)


class _Room:
    """Columns of zeros of one type, cut from one piece of memory."""

    def __init__(self, dtype: type[Any], size: int) -> None:
        self._left = np.zeros(size, dtype=dtype)

    def cut(self, size: int) -> npt.NDArray[Any]:
        if size > len(self._left):
            raise InternalError("too little room for the kernel's tables")
        found, self._left = self._left[:size], self._left[size:]
        return found


def fresh_tables(
    idle: State,
    calls: Calls,
    call: AnyInts,
    amount: Floats,
    waits: AnyInts,
    successor_start: AnyInts,
    successors: AnyInts,
    release_op: AnyInts,
    release_time: Floats,
    lanes: int,
    submissions: int,
    hops: AnyInts,
) -> tuple[Ops, State]:
    """The tables after `KernelStore.append` on an `idle` machine: the same as `KernelStore` writes,
    in less time.
    """
    free = free_calls(calls)
    pending = np.full(submissions, len(call) // submissions)
    ops = Ops(
        call=_ints(call),
        amount=_floats(amount),
        successor_start=_ints(successor_start),
        successors=_ints(successors),
        submission_start=_ints(row_starts(pending)),
        overhead=_floats(calls.overhead),
        latency=_floats(calls.latency),
        holds=np.ascontiguousarray(calls.holds),
        cap=_floats(calls.cap),
        lane_start=_ints(calls.lane_start),
        pipe_start=_ints(calls.lane_start[:-1] + calls.early),
        lanes=_ints(calls.lanes),
        free=free,
    )
    release = release_op, release_time
    return ops, _fresh_state(idle, calls, call, waits, release, lanes, pending, free, hops)


def free_calls(calls: Calls) -> Bools:
    """Which calls have neither costs nor lanes nor resources."""
    free = (calls.overhead == 0.0) & (calls.latency == 0.0) & (np.diff(calls.use_start) == 0)
    return np.asarray(free & (np.diff(calls.lane_start) == 0))


def _fresh_state(
    idle: State,
    calls: Calls,
    call: AnyInts,
    waits: AnyInts,
    release: tuple[AnyInts, Floats],
    lanes: int,
    pending: AnyInts,
    free: Bools,
    hops: AnyInts,
) -> State:
    """What has happened so far: nothing."""
    capacity = np.array(idle.flows.capacity, dtype=np.float64)
    n, resources = len(call), len(capacity)
    slots = int(np.count_nonzero(~free[call]))
    entries = int(np.diff(calls.lane_start)[call].sum()) if len(calls.lanes) else 0
    groups, uses = resources + slots, len(calls.uses)
    need = np.bincount(calls.uses, minlength=resources)
    on_start, most = row_starts(need), int(need.max(initial=0))
    total = int(on_start[-1])
    op, time = release
    order = np.lexsort((op, time))
    ints = _Room(
        np.int32,
        2 * n + max(n, 2 * entries) + 5 * entries + 4 * groups + 3 * resources + 15 * slots
        + uses + 2 * total,
    )  # fmt: skip
    floats = _Room(
        np.float64, 4 * n + lanes + 4 * resources + 4 * groups + 3 * slots + total + 2 * most
    )
    minus = np.full(n + 3 * lanes + len(calls.cap), NONE, dtype=np.int32)
    unknown = np.full(3 * resources, float(NONE))
    level, at = floats.cut(groups), ints.cut(groups)
    level[:resources], at[:resources] = INFINITY, NONE
    scalar = np.zeros(SCALARS, dtype=np.int64)
    scalar[FREE_SLOT] = scalar[FREE_CROWD] = NONE
    scalar[RESOURCES], scalar[PATIENCE] = resources, CROWDS
    scalar[SUBMISSIONS] = len(pending)
    quiet, each = idle.flows, slots if len(idle.flows.fills) else 0
    count = np.zeros(3, dtype=np.int64)  # of the heaps, and of what is released
    cut = ints.cut
    flows = Flows(
        calendar=Heap(key=floats.cut(groups), item=cut(groups), at=at, size=count[:1]),
        capacity=capacity,
        load=floats.cut(resources),
        own=floats.cut(resources),
        soonest=unknown[:resources],
        on_start=on_start.astype(np.int32),
        on_count=cut(resources),
        dirty=cut(resources),
        is_dirty=np.zeros(resources, dtype=np.int8),
        known=unknown[resources : 2 * resources],
        was=unknown[2 * resources :],
        width=floats.cut(resources),
        solver=Heap(
            key=floats.cut(resources), item=cut(resources),
            at=np.full(resources, NONE, dtype=np.int32), size=count[1:2],
        ),
        level=level,
        served=floats.cut(groups),
        anchor=floats.cut(groups),
        members=cut(groups),
        use_start=_ints(calls.use_start),
        crowd_of=minus[n + 3 * lanes :],
        begin=cut(slots),
        end=cut(slots),
        flying=cut(slots),
        bottleneck=cut(slots),
        most=floats.cut(slots),
        rate=floats.cut(slots),
        head=cut(slots),
        tail=cut(slots),
        next_crowd=cut(slots),
        moved=cut(slots),
        moved_from=cut(slots),
        crowd=cut(slots),
        goal=floats.cut(slots),
        after=cut(slots),
        before=cut(slots),
        opened=cut(slots),
        uses=_ints(calls.uses),
        weight=_floats(calls.weight),
        place=cut(uses),
        congestion=np.array(quiet.congestion),
        fills=np.array(quiet.fills, dtype=np.int8),
        equal=np.array(quiet.equal),
        top=np.array(quiet.top),
        passes=np.array(quiet.passes),
        lower=np.array(quiet.lower),
        most_sent=np.array(quiet.most_sent),
        through=np.array(quiet.through, dtype=np.int8),
        stale=_ints(quiet.stale),
        is_stale=np.array(quiet.is_stale, dtype=np.int8),
        queue=_ints(quiet.queue),
        front=_ints(quiet.front),
        touched=_ints(quiet.touched),
        first=np.zeros(each, dtype=np.int32),
        limit=np.zeros(each, dtype=np.int32),
        limit_hop=np.zeros(each, dtype=np.int32),
        offer=np.zeros(each),
        least=np.zeros(each),
        fresh=np.zeros(each, dtype=np.int32),
        holding=np.zeros(each, dtype=np.int32),
        slowed=np.zeros(each, dtype=np.int32),
        behind=np.zeros(each, dtype=np.int32),
        stops=_ints(quiet.stops),
        hop=_ints(hops),
        on_crowd=cut(total),
        on_use=cut(total),
        on_weight=floats.cut(total),
        room_rate=floats.cut(most),
        room_weight=floats.cut(most),
        scalar=scalar,
    )  # fmt: skip
    queues = Queues(
        lane_head=minus[n : n + lanes],
        lane_tail=minus[n + lanes : n + 2 * lanes],
        lane_busy=np.zeros(lanes, dtype=np.bool_),
        lane_last=minus[n + 2 * lanes : n + 3 * lanes],
        lane_freed=floats.cut(lanes),
        entry_op=cut(entries),
        entry_next=cut(entries),
        entry_prev=cut(entries),
        entries=np.array([0, NONE]),
    )
    return State(
        phase=np.zeros(n, dtype=np.int8),
        slot=_ints(waits),
        ready=floats.cut(n),
        start=floats.cut(n),
        begun=floats.cut(n),
        finish=floats.cut(n),
        blame=minus[:n],
        pipe_blame=cut(n),
        release_time=np.append(time[order], INFINITY),
        release_op=_ints(op[order]),
        released=count[2:],
        pending=_ints(pending),
        queues=queues,
        flows=flows,
        slot_op=cut(slots),
        next_slot=cut(slots),
        turn=cut(n),
        candidates=cut(2 * entries),
        taken=cut(groups),
        spare=cut(max(n, 2 * entries)),
        clock=np.array(idle.clock),
        tolerance=np.array(idle.tolerance),
    )


def _ints(column: AnyInts) -> npt.NDArray[np.int32]:
    return np.ascontiguousarray(column, dtype=np.int32)


def _floats(column: Floats) -> Floats:
    return np.ascontiguousarray(column, dtype=np.float64)
