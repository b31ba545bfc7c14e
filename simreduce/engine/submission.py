"""A plan that the fabric runs, once or again and again.

It has its place in the kernel's tables, its timeline, and what it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
import numpy.typing as npt
import simpy

from simreduce import units
from simreduce.computing.arrays import AnyInts, Bools, Floats
from simreduce.engine.kernel import tables
from simreduce.engine.kernel.store import KernelStore
from simreduce.engine.kernel.tables import State
from simreduce.engine.lowering import Lowered
from simreduce.errors import InputError, InternalError, quote
from simreduce.plan import Plan

_NAMED = 5
"""Stuck ops that a Deadlock names."""


def count_waits(plan: Plan, lowered: Lowered) -> tuple[AnyInts, AnyInts]:
    """Return how many things each op waits for, and which ops are INPUTs.

    An INPUT's release counts among them.
    """
    inputs = plan.inputs
    waits = lowered.waits.astype(np.int32)
    waits[inputs] += 1
    return waits, inputs


def read_ready(ready: float | Floats) -> Floats:
    """`ready` as an array; TypeError if it is no number of seconds and no array of them."""
    try:
        return np.asarray(ready, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(
            "ready: expected seconds, a number or an array of them"
            f", got {type(ready).__name__} {quote(ready)}"
        ) from None


def check_ready(plan: Plan, ready: float | Floats) -> Floats:
    """`ready` as an array: seconds from now, 0 or more, one or as many as the plan has INPUTs."""
    times = read_ready(ready)
    inputs = len(plan.inputs)
    if times.shape not in ((), (inputs,)):
        raise InputError(
            f"ready: one number, or {inputs}, one per INPUT; not an array of shape {times.shape}"
        )
    if not np.all(np.isfinite(times) & (times >= 0.0)):
        raise InputError("ready: every time must be a number of seconds from 0")
    return times


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each op of a plan was ready, got its lanes, and was done.

    Times are in seconds of the environment's clock.

    `blame[op]` is the op whose end `op` waited for last (-1: its release time). `begun` is when an
    op got its pipes (NaN: it has none), and `pipe_blame[op]` the op whose end it waited for then
    (-1: it did not wait). Both are None if no op has pipes.
    """

    ready: Floats
    start: Floats
    finish: Floats
    blame: npt.NDArray[np.int32]
    begun: Floats | None = None
    pipe_blame: npt.NDArray[np.int32] | None = None


@dataclass(slots=True)
class Submission:
    """A plan in the kernel's tables."""

    plan: Plan
    first: int  # id of its first op in the kernel's tables
    number: int
    laned: Bools | None  # ops that have lanes, if there are any
    piped: Bools | None  # and pipes
    done: simpy.Event
    background: bool = False
    resident: bool = False

    def timeline(self, state: State) -> Timeline:
        """The timeline of the plan, which is done."""
        first = self.first
        mine = slice(first, first + len(self.plan))
        alone = len(self.plan) == len(state.ready)
        ready, blame = np.asarray(state.ready[mine]), np.asarray(state.blame[mine], dtype=np.int32)
        start = (
            ready
            if self.laned is None
            else np.where(self.laned, np.asarray(state.start[mine]), ready)
        )
        begun = pipe_blame = None
        if self.piped is not None:
            begun = np.where(self.piped, np.asarray(state.begun[mine]), nan)
            pipe_blame = _own_ids(
                np.where(self.piped, np.asarray(state.pipe_blame[mine]), -1), first, alone
            )
        return Timeline(
            ready,
            start,
            np.asarray(state.finish[mine]),
            _own_ids(blame, first, alone),
            begun,
            pipe_blame,
        )

    def can_move(self, store: KernelStore, capacity: Sequence[float]) -> bool:
        """Whether an op has begun and can end in the present state."""
        state, ops, flows = store.state, store.ops, store.state.flows
        for op in range(self.first, self.first + len(self.plan)):
            phase = state.phase[op]
            if phase in (tables.OVERHEAD, tables.LATENCY, tables.TAIL):
                return True
            if phase == tables.FLOW:
                call = ops.call[op]
                uses = flows.uses[flows.use_start[call] : flows.use_start[call + 1]]
                if all(capacity[r] > 0.0 for r in uses):
                    return True
        return False


def _own_ids(ops: AnyInts, first: int, alone: bool) -> npt.NDArray[np.int32]:
    """Return ids in the kernel's tables as ids in the submission that begins at `first`.

    -1 for ops of other submissions; there are none if it is `alone`.
    """
    if alone:
        return ops.astype(np.int32, copy=False)
    mine = (ops >= first) & (ops < first + len(ops))
    return np.where(mine, ops - first, -1).astype(np.int32, copy=False)


def explain_deadlock(
    submissions: Iterable[Submission],
    store: KernelStore,
    capacity: Sequence[float],
    names: Sequence[str],
    lanes: Sequence[str],
) -> str:
    """Return the first ops that are stuck and what each waits for; ops without bandwidth lead.

    `names` are the names of resources, and `lanes` the names of lanes.
    """
    state, ops, flows, count = store.state, store.ops, store.state.flows, 0
    lines: list[str] = []
    for submission in submissions:
        plan, first = submission.plan, submission.first
        for op in range(len(plan)):
            phase, call = state.phase[first + op], ops.call[first + op]
            if phase == tables.DONE:
                continue
            count += 1
            text = plan.describe(op)
            if phase == tables.FLOW:
                uses = flows.uses[flows.use_start[call] : flows.use_start[call + 1]]
                dead = [names[r] for r in uses if capacity[r] == 0.0]
                lines.insert(0, f"{text}: no bandwidth on {', '.join(dead)}")
            elif phase in (tables.QUEUED, tables.AT_PIPE):
                begin, end = ops.lane_start[call], ops.pipe_start[call]
                if phase == tables.AT_PIPE:
                    begin, end = end, ops.lane_start[call + 1]
                wanted = ", ".join(lanes[lane] for lane in ops.lanes[begin:end])
                lines.append(f"{text}: waits for {wanted}")
            else:
                lines.append(
                    f"{text}: waits for {units.plural(state.slot[first + op], 'op')} before it"
                )
    rest = f"\n  and {count - _NAMED} more" if count > _NAMED else ""
    stuck = "\n  ".join(lines[:_NAMED])
    return f"{units.plural(count, 'op')} can never finish:\n  {stuck}{rest}"


class Resident:
    """A plan that is submitted again and again, but not while it is under way.

    It keeps its place in the kernel's tables, so that to submit it costs little; and its number, so
    that in ties it comes where it came the first time.

    `start` puts it to its beginning, where its ops wait for so many things, and its INPUTs release.
    """

    def __init__(
        self,
        env: simpy.Environment,
        submission: Submission,
        waits: AnyInts,
        inputs: AnyInts,
        start: Callable[[Submission, AnyInts, AnyInts], None],
    ) -> None:
        self._env, self._submission, self._start = env, submission, start
        self._waits, self._inputs = waits, inputs
        self._submission.resident = True
        self._begun = False

    @property
    def under_way(self) -> bool:
        """Whether it has been submitted and is not done."""
        return self._begun and not self._submission.done.triggered

    def submit(self) -> simpy.Event:
        """Start now, with all INPUTs ready.

        The event succeeds, without a value, when the last op is done.
        """
        if self.under_way:
            raise InternalError("a resident plan was submitted while it was under way")
        self._begun = True
        self._submission.done = self._env.event()
        self._start(self._submission, self._waits, self._inputs)
        return self._submission.done
