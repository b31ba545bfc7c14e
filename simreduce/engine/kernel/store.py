"""The kernel's tables of one fabric: lists while little is in flight, arrays for the compiled
kernel once it pays.

The kernel as machine code: the same source, the same bits.

The tables of one submission to an idle machine, the usual case, are made at once instead of column
by column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simreduce.computing import workers
from simreduce.computing.arrays import AnyInts, Bools, Floats, row_starts
from simreduce.computing.loops import Known, Native, native
from simreduce.engine.kernel import advance
from simreduce.engine.kernel.flows import mark_dirty
from simreduce.engine.kernel.tables import (
    CROWDS,
    DIRTY_COUNT,
    DTYPE,
    FREE_CROWD,
    FREE_SLOT,
    INFINITY,
    NONE,
    PATIENCE,
    RESOURCES,
    SCALARS,
    SLOTS,
    SUBMISSIONS,
    USED,
    WAITING,
    WORK,
    Flows,
    Heap,
    Ops,
    Queues,
    State,
    as_arrays,
)
from simreduce.engine.lowering.calls import Calls
from simreduce.errors import InternalError

if TYPE_CHECKING:
    from simreduce.engine.lowering.resources import Congestion


WORTH = 60_000
"""Ops that take about as long interpreted as it takes to compile the kernel."""

SMALL = 64
"""Fewer ops are quicker interpreted although the compiled kernel is there."""

MOST_INTERPRETED = 2_000_000
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


def compiling_pays(ops: int, *, again: bool = False) -> bool:
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
    scalar[RESOURCES], scalar[PATIENCE] = resources, MOST_INTERPRETED
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


_BY_CROWD = "begin end flying bottleneck rate head tail next_crowd moved moved_from most"
_CONGESTED = "first limit limit_hop offer least fresh holding slowed behind"

_SPARE = 4
"""What has grown may grow by a fourth before it is copied."""


def _state(columns: dict[str, Any]) -> State:
    """The tables of the columns by their names."""
    queues = Queues(**{name: columns[name] for name in Queues._fields})
    flows = Flows(**{name: columns[name] for name in Flows._fields})
    rest = {name: columns[name] for name in State._fields if name not in ("queues", "flows")}
    return State(**rest, queues=queues, flows=flows)


class KernelStore:
    """The tables, and which kernel runs them."""

    def __init__(
        self,
        capacity: list[float],
        clock: float = 0.0,
        tolerance: float = 0.0,
        congestion: Congestion | None = None,
    ) -> None:
        self.compiled = False
        self._congestion = congestion
        self._known: Known = {}
        self._time = np.zeros(1)
        self._spare: dict[str, npt.NDArray[Any]] = {}  # the memory of columns that have grown
        count = len(capacity)
        self._need = np.zeros(count, dtype=np.int64)  # uses of each resource
        calendar, solver = (
            Heap(key=[0.0] * count, item=[0] * count, at=[NONE] * count, size=[0]) for _ in range(2)
        )
        filled: list[tuple[int, float, str]] = [
            (1, 0, "successor_start submission_start lane_start use_start released"),
            (1, INFINITY, "release_time"),
            (count, 0.0, "load own width served anchor"),
            (count, 0, "dirty is_dirty members taken on_count"),
            (count, float(NONE), "known was soonest"),
            (count, INFINITY, "level"),
            (count + 1, 0, "on_start"),
            (SCALARS, 0, "scalar"),
        ]
        if congestion:
            filled += [
                (count, INFINITY, "equal passes lower"),
                (count, 0.0, "top most_sent"),
                (count, 0, "through is_stale stale front touched stops"),
                (count, NONE, "queue"),
            ]
        columns: dict[str, Any] = {
            **{name: [] for table in (Ops, State, Queues, Flows) for name in table._fields},
            **{name: [value] * size for size, value, names in filled for name in names.split()},
            "capacity": list(capacity),
            "entries": [0, NONE],
            "clock": [clock],
            "tolerance": [tolerance, 0.0],
            "calendar": calendar,
            "solver": solver,
            "congestion": [congestion.rule, congestion.part] if congestion else [0.0, 0.0],
            "fills": congestion.fills.astype(int).tolist() if congestion else [],
        }
        scalar = columns["scalar"]
        scalar[FREE_SLOT] = scalar[FREE_CROWD] = NONE
        scalar[RESOURCES], scalar[PATIENCE] = count, MOST_INTERPRETED
        self.ops = Ops(**{name: columns[name] for name in Ops._fields})
        self.state = _state(columns)

    def advance(self, now: float, horizon: float) -> tuple[bool, float]:
        """See the function `advance`. Compiles the kernel when its patience is at an end; compiled,
        it works slice by slice, and says in between how much is done.
        """
        if not self.compiled:
            done, time = advance(self.ops, self.state, float(now), float(horizon))
            scalar = self.state.flows.scalar
            if done or scalar[WORK] < scalar[PATIENCE]:
                return bool(done), float(time)
            self.compile()
        scalar = self.state.flows.scalar
        arguments = self.ops, self.state, float(now), float(horizon)
        while True:
            scalar[PATIENCE] = scalar[WORK] + SLICE
            completed = kernel()(*arguments, self._time, known=self._known)
            if completed or scalar[WORK] < scalar[PATIENCE]:
                return bool(completed), float(self._time[0])
            # Here an interrupt ends the work.
            share = 1.0 - float(self.state.pending.sum()) / len(self.ops.call)
            for listener in workers.simulating:
                listener(share)

    def set_capacity(self, resource: int, capacity: float) -> None:
        """A resource gives as much from now on."""
        self.state.flows.capacity[resource] = capacity
        mark_dirty(resource, self.state.flows)

    def compile(self) -> None:
        """Go on with arrays, and the compiled kernel."""
        if not self.compiled:
            self.compiled = True
            self.ops, self.state = as_arrays(self.ops), as_arrays(self.state)

    def append(
        self,
        calls: Calls,
        call: AnyInts,
        amount: Floats,
        waits: AnyInts,
        successor_start: AnyInts,
        successors: AnyInts,
        release_op: AnyInts,
        release_time: Floats,
        lanes: int,
        *,
        submissions: int = 1,
    ) -> int:
        """Add a submission, or so many of equal size; the number of the first. `waits` counts what
        each op waits for: predecessors, and a release if it is among `release_op`; it is the
        store's from now on. There are `lanes` lanes by now.
        """
        first, number = len(self.ops.call), len(self.state.pending)
        pays = compiling_pays(first + len(call))
        self._need += np.bincount(calls.uses, minlength=len(self._need))
        if pays and not (self.compiled or number or self.state.flows.scalar[DIRTY_COUNT]):
            self.compiled = True
            self.ops, self.state = fresh_tables(
                self.state, calls, call, amount, waits, successor_start, successors, release_op,
                release_time, lanes, submissions, self._hops(calls),
            )  # fmt: skip
            return 0
        if pays:
            self.compile()
        free = free_calls(calls)
        size = len(call) // submissions
        ends = first + size * np.arange(1, submissions + 1)
        self._append_ops(calls, call, amount, successor_start, successors, ends, free)
        old = self._append_state(calls, call, waits, lanes)
        self._join(old, pending=_full(submissions, size))
        self._grow_slots(old, int(np.count_nonzero(~free[call])))
        self._grow_calls(old, calls)
        old["scalar"][SUBMISSIONS] = number + submissions
        self._release(old, release_op + first, release_time)
        self.state = _state(old)
        return number

    def _append_ops(
        self,
        calls: Calls,
        call: AnyInts,
        amount: Floats,
        successor_start: AnyInts,
        successors: AnyInts,
        ends: AnyInts,
        free: Bools,
    ) -> None:
        """Append to the tables that are never written."""
        ops, first = self.ops, len(self.ops.call)
        new: dict[str, Any] = {
            "call": _shifted(call, len(ops.overhead)),
            "amount": amount,
            "successor_start": _shifted(successor_start[1:], int(ops.successor_start[-1])),
            "successors": _shifted(successors, first),
            "submission_start": ends,
            "overhead": calls.overhead,
            "latency": calls.latency,
            "holds": calls.holds,
            "cap": calls.cap,
            "lane_start": calls.lane_start[1:] + ops.lane_start[-1],
            "pipe_start": calls.lane_start[:-1] + calls.early + ops.lane_start[-1],
            "lanes": calls.lanes,
            "free": free,
        }
        self.ops = Ops(
            **{name: self._joined(name, getattr(ops, name), new[name]) for name in Ops._fields}
        )

    def _append_state(
        self, calls: Calls, call: AnyInts, waits: AnyInts, lanes: int
    ) -> dict[str, Any]:
        """The columns of the state with room for ops that wait, and for `lanes` lanes in all."""
        state, queues, n = self.state, self.state.queues, len(call)
        first = len(state.phase)
        entries = int(np.diff(calls.lane_start)[call].sum()) if len(calls.lanes) else 0
        more_lanes = lanes - len(queues.lane_head)
        old: dict[str, Any] = state._asdict() | queues._asdict() | state.flows._asdict()
        self._lengthen(
            old,
            (first, n, "pipe_blame ready start begun finish"),
            (len(queues.lane_head), more_lanes, "lane_busy lane_freed"),
            (queues.entries[USED], entries, "entry_op entry_next entry_prev"),
            (0, n, "turn"),
            (0, 2 * entries, "candidates"),
            (0, max(n, 2 * entries), "spare"),
        )
        self._join(
            old,
            phase=_full(n, WAITING),
            slot=waits,
            blame=_full(n, NONE),
            lane_head=_full(more_lanes, NONE),
            lane_tail=_full(more_lanes, NONE),
            lane_last=_full(more_lanes, NONE),
        )
        return old

    def again(
        self, number: int, first: int, waits: AnyInts, release_op: AnyInts, now: float
    ) -> None:
        """Let a submission that is done, or has never begun, begin anew: its ops `release_op`, in
        ascending order, are released now.
        """
        if compiling_pays(len(waits), again=True):
            self.compile()
        state, last = self.state, first + len(waits)
        state.pending[number] = len(waits)
        state.slot[first:last] = waits if self.compiled else waits.tolist()
        for name, value in (("phase", WAITING), ("blame", NONE), ("pipe_blame", NONE)):
            column = getattr(state, name)
            column[first:last] = value if self.compiled else [value] * len(waits)
        self.release(release_op, now)

    def release(self, op: AnyInts, now: float) -> None:
        """Ops that wait for it, in ascending order, are released now."""
        state = self.state
        times, ops, done = state.release_time, state.release_op, int(state.released[0])
        if self.compiled and len(op) and (done == len(ops) or (times[-2], ops[-1]) < (now, op[0])):
            # Nothing to sort: plans are often submitted one after another at one instant.
            later = np.empty(len(ops) - done + len(op) + 1)
            later[: len(ops) - done], later[len(ops) - done :], later[-1] = (
                times[done:-1],
                now,
                INFINITY,
            )
            ops = np.concatenate([ops[done:], op.astype(np.int32, copy=False)])
            state.released[0] = 0
            self.state = state._replace(release_time=later, release_op=ops)
            return
        old: dict[str, Any] = {"release_time": times, "release_op": ops, "released": state.released}
        self._release(old, op, np.full(len(op), now))
        self.state = state._replace(**old)

    def _join(self, old: dict[str, Any], **new: Any) -> None:
        """Append to columns of `old`."""
        for name, column in new.items():
            old[name] = self._joined(name, old[name], column)

    def _lengthen(self, old: dict[str, Any], *rows: tuple[int, int, str]) -> None:
        """Make columns of `old` longer: by row, how much of them is kept, how much is added, and
        their names.
        """
        for used, more, names in rows:
            for name in names.split():
                old[name] = self._longer(name, old[name], used, more)

    def _joined(self, name: str, old: Any, new: Any) -> Any:
        """The column `old`, with `new` after it; a list is the same one, so that to append little
        costs little.
        """
        if not self.compiled:
            old.extend(new if isinstance(new, list) else new.tolist())
            return old
        new = np.asarray(new).astype(DTYPE.get(name, np.int32), copy=False)
        if not len(old):
            return new
        column = self._grown(name, old, len(old), len(new))
        column[len(old) :] = new
        return column

    def _longer(self, name: str, old: Any, used: int, more: int) -> Any:
        """The column `old`, `more` longer; only the first `used` are kept. Of an array the rest is
        not touched.
        """
        dtype = DTYPE.get(name, np.int32)
        if not self.compiled:
            old.extend([dtype(0).item()] * more)
            return old
        return self._grown(name, old, used, more)

    def _grown(self, name: str, old: npt.NDArray[Any], used: int, more: int) -> npt.NDArray[Any]:
        """The array `old` with room for `more`: in the memory that it has to spare, or with as much
        again as a quarter of it, so that to append often copies little. Of what is new nothing was
        ever written.
        """
        count = len(old) + more
        if old.base is None or old.base is not self._spare.get(name) or len(old.base) < count:
            self._spare[name] = np.zeros(count + count // _SPARE, dtype=DTYPE.get(name, np.int32))
            self._spare[name][:used] = old[:used]
        return self._spare[name][:count]

    def _grow_slots(self, old: dict[str, Any], more: int) -> None:
        """Room for more ops in flight, and as many crowds."""
        resources, used = len(old["capacity"]), int(old["scalar"][SLOTS])
        crowds = int(old["scalar"][CROWDS])
        self._lengthen(
            old,
            (used, more, "slot_op next_slot crowd goal after before opened"),
            (crowds, more, _BY_CROWD),
            (crowds, more, _CONGESTED if self._congestion else ""),
            (resources + crowds, more, "level served anchor members"),
            (0, more, "taken"),
        )
        calendar = old["calendar"]
        columns = {
            n: self._longer(n, getattr(calendar, n), resources + used, more)
            for n in ("key", "item", "at")
        }
        old["calendar"] = Heap(**columns, size=calendar.size)

    def _grow_calls(self, old: dict[str, Any], calls: Calls) -> None:
        """Room for the flows of more calls."""
        self._lengthen(old, (len(old["uses"]), len(calls.uses), "place"))
        self._join(
            old,
            crowd_of=_full(len(calls.cap), NONE),
            use_start=calls.use_start[1:] + old["use_start"][-1],
            uses=calls.uses,
            weight=calls.weight,
        )
        if self._congestion:
            self._join(old, hop=self._hops(calls))
        if len(calls.uses):
            self._spread(old)

    def _hops(self, calls: Calls) -> AnyInts:
        """The `hop` of every use; of none where congestion is isolated."""
        if self._congestion is None:
            return _full(0, NONE)
        return self._congestion.hops(calls.use_start, calls.uses)

    def _spread(self, old: dict[str, Any]) -> None:
        """Room in `on_crowd` for every use of every resource, should it have too little."""
        start = np.asarray(old["on_start"], dtype=np.int64)
        need = self._need
        if (need <= np.diff(start)).all():
            return
        wide = start[-1] > 0  # not the first time: there may be more to come
        new = row_starts(need + need // _SPARE + 1 if wide else need)
        count = np.asarray(old["on_count"])
        rows = np.repeat(np.arange(len(count)), count)
        within = np.arange(len(rows)) - row_starts(count)[rows]
        source, target = start[rows] + within, new[rows] + within
        for name in ("on_crowd", "on_use", "on_weight"):
            column = np.zeros(new[-1], dtype=DTYPE.get(name, np.int32))
            column[target] = np.asarray(old[name])[source]
            old[name] = column if self.compiled else column.tolist()
        uses = np.asarray(old["on_use"])[target]
        if self.compiled:
            old["place"][uses] = target
        else:
            for use, at in zip(uses.tolist(), target.tolist(), strict=True):
                old["place"][use] = at
        old["on_start"] = new.astype(np.int32) if self.compiled else new.tolist()
        more = max(int(np.diff(new).max()) - len(old["room_rate"]), 0)
        self._lengthen(old, (0, more, "room_rate room_weight"))

    def _release(self, old: dict[str, Any], op: AnyInts, time: Floats) -> None:
        """Sort the releases that are still to come, by time and op."""
        done = old["released"][0]
        times = np.concatenate([np.asarray(old["release_time"][done:-1], dtype=np.float64), time])
        ids = np.concatenate(
            [np.asarray(old["release_op"][done:], dtype=np.int32), op.astype(np.int32)]
        )
        order = np.lexsort((ids, times))
        old["release_time"] = self._joined("release_time", [], np.append(times[order], INFINITY))
        old["release_op"] = self._joined("release_op", [], ids[order])
        old["released"][0] = 0


def _shifted(column: AnyInts, by: int) -> AnyInts:
    return column + by if by else column


def _full(count: int, value: int) -> AnyInts:
    return np.full(count, value, dtype=np.int32)


def make_kernel() -> None:
    """Have the machine code of the kernel kept, for this process and others."""
    store = KernelStore([1.0])
    store.compile()
    store.advance(0.0, 0.0)
