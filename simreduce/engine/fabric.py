"""The fabric: a SimPy component that moves the bytes of plans.

It makes one kernel call between two SimPy events.

    fabric = Fabric(env, topology)
    done = fabric.submit(plan)              # a SimPy event; its value is the plan's Timeline
    fabric.set_bandwidth("gpu0>gpu3", 0.0)  # a fault, while plans are running
    # one to come, and its end
    fabric.schedule([Fault(1e-3, "gpu0>gpu3", 0.0), Fault(2e-3, "gpu0>gpu3")])

Why running ahead is sound: the fabric runs only from its own event, whose priority is below every
other's, so all that others do at an instant is known to it; it stops before the next event of
anybody else, and after an instant at which a plan completes, so nobody can find it in the future;
and stopping changes no bit of what it computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from heapq import heappush
from math import inf
from typing import Any

import numpy as np
import simpy

from simreduce.computing.arrays import ULP, AnyInts, Floats, Ints
from simreduce.computing.workers import charge
from simreduce.engine.bounds import longest_chain
from simreduce.engine.disturbance import CALM, MOST_IN_TURN, Disturbance, Fault
from simreduce.engine.kernel.store import KernelStore
from simreduce.engine.lowering import Lowered, hold_lanes, lower
from simreduce.engine.lowering.resources import Resources, capacity_changes, measure_working_set
from simreduce.engine.runtime import NOMINAL, TENSORFLOW, Calibration, Call, Runtime
from simreduce.engine.submission import (
    Resident,
    Submission,
    Timeline,
    check_ready,
    count_waits,
    explain_deadlock,
)
from simreduce.errors import Deadlock, InputError, InternalError, NotFoldable, did_you_mean
from simreduce.plan import Contract, Executor, Kind, Plan, PlanBuilder
from simreduce.plan.plan import NO_STREAM
from simreduce.topology import Folded, Topology

NORMAL, LOW = 1, 2
"""Priorities: of one instant's events, SimPy's own are normal, and low ones come after them."""


def succeed_at(
    event: simpy.Event, at: float, priority: float = NORMAL, value: object = None
) -> None:
    """Let `event` succeed with `value` at exactly `at`.

    `env.schedule` takes a delay, and there need not be one that, added to the clock, gives `at` to
    the bit.
    """
    env = event.env
    event._ok, event._value = True, value  # noqa: SLF001 - as simpy.Timeout does
    entry: Any = (max(at, env.now), priority, next(env._eid), event)  # noqa: SLF001
    heappush(env._queue, entry)  # noqa: SLF001


class Moment(simpy.Event):
    """An event that succeeds at exactly `at`.

    No other file uses SimPy's private queue or an event's private state.
    """

    def __init__(self, env: simpy.Environment, at: float, priority: float = NORMAL) -> None:
        super().__init__(env)
        self.at = at
        succeed_at(self, at, priority)


_SAME_INSTANT = 4 * ULP
"""Flows that end within 4 ulp of now end now; the clock may be that far ahead of SimPy's."""


class _Wake(Moment):
    """Wakes the fabric, after everything else at that time."""


class Fabric:
    """The links, memories and queues of one machine. One per SimPy environment.

    `lanes` are the numbers of queues by name, for plans that were lowered with these before.
    `resources` may come from another fabric of the same machine, calibration and disturbance. On a
    `fixed` one no bandwidth can be set later, which saves links (`Resources.in_bundles`).
    """

    def __init__(
        self,
        env: simpy.Environment,
        topology: Topology | Folded,
        calibration: Calibration = NOMINAL,
        runtime: Runtime = TENSORFLOW,
        disturbance: Disturbance = CALM,
        lanes: dict[str, int] | None = None,
        resources: Resources | None = None,
        *,
        fixed: bool = False,
    ) -> None:
        if getattr(env, "_simreduce_fabric", None) is not None:
            raise InternalError(
                "this environment has a fabric already; two would not see each other's bytes"
            )
        env._simreduce_fabric = self  # type: ignore[attr-defined]  # noqa: SLF001
        self.env, self.topology, self.calibration, self.runtime = (
            env,
            topology,
            calibration,
            runtime,
        )
        self.disturbance = disturbance
        self.resources = resources or Resources.of(topology, calibration, disturbance)
        if fixed:
            self.resources = self.resources.in_bundles(topology)
        self._lanes: dict[str, int] = {} if lanes is None else lanes
        self._submissions: list[Submission] = []
        self._held: dict[simpy.Event, AnyInts] = {}  # the INPUTs of what waits for some of its own
        self._kernels: dict[str, tuple[Plan, Ints]] = {}  # the op and the lanes of each device
        self._new: list[tuple[str, float, simpy.Event]] = []  # computes not in the tables yet
        self._capacity = [float(each) for each in self.resources.capacity]
        self._wake: Moment | None = None
        self._clock = float(env.now)
        self._stands = False
        self._clear()
        self._schedule(self.resources.changes)

    def empty(self) -> Fabric:
        """Another fabric of the same machine, on which nothing is, in an environment of its own."""
        return Fabric(
            simpy.Environment(),
            self.topology,
            self.calibration,
            self.runtime,
            self.disturbance,
            resources=self.resources,
        )

    def lower(
        self, plan: Plan, number: int = 0, working_set: Mapping[str, float] | None = None
    ) -> Lowered:
        """Costs, lanes and resources of every op of `plan` on this fabric.

        Plans of other numbers get other jitter. `working_set` is that of the step that the plan is
        a part of.
        """
        disturbance = replace(self.disturbance, seed=self.disturbance.seed + number)
        return lower(
            plan,
            self.topology,
            self.runtime,
            self.calibration,
            self.resources,
            self._lanes,
            disturbance,
            working_set,
        )

    def measure_working_set(self, plan: Plan) -> Mapping[str, float]:
        """The bytes of a plan that is a whole step, as all its parts are lowered with."""
        cpu, nodes = self.calibration.cpu, self.unfolded().nodes
        return measure_working_set(plan, [nodes[name] for name in plan.devices], cpu) if cpu else {}

    def submit(
        self,
        plan: Plan,
        ready: float | Floats = 0.0,
        lowered: Lowered | None = None,
        *,
        background: bool = False,
        held: AnyInts | None = None,
    ) -> simpy.Event:
        """Start a plan now.

        Its INPUTs become ready `ready` seconds from now: one number, or one per INPUT in program
        order. The event succeeds with the plan's `Timeline` when its last op is done. INPUTs whose
        places are in `held` wait for `release` instead. `lowered` is what `lower` has given for the
        plan, for those who have it. What is stuck in the `background` is no Deadlock: nobody waits
        for it.
        """
        charge(len(plan))
        ready = check_ready(plan, ready)
        self._touch()
        done = self.env.event()
        if len(plan) == 0:
            nothing = np.zeros(0)
            return done.succeed(Timeline(nothing, nothing, nothing, nothing.astype(np.int64)))
        lowered = lowered or self.lower(plan)
        waits, inputs = count_waits(plan, lowered)
        times = np.broadcast_to(ready + self.env.now, inputs.shape)
        released = slice(None) if held is None else ~np.isin(np.arange(len(inputs)), held)
        submission = self._append(plan, lowered, waits, inputs[released], times[released], done)
        submission.background = background
        self._submissions.append(submission)
        if held is not None:
            self._held[done] = inputs + submission.first
        return done

    def release(self, done: simpy.Event, inputs: AnyInts) -> None:
        """Let INPUTs that were held become ready now.

        They are INPUTs of the plan whose event is `done`, by their places.
        """
        self._touch()
        self._append_computes()
        self._store.release(self._held[done][inputs], float(self.env.now))

    def resident(self, plan: Plan, lowered: Lowered | None = None) -> Resident:
        """A plan, of one op or more, that will be submitted often.

        While there is one, what is done is never cleared from the tables: for an environment in
        which nearly everything is a resident plan.
        """
        self._stands = True
        lowered = lowered or self.lower(plan)
        waits, inputs = count_waits(plan, lowered)
        done = self.env.event()
        submission = self._append(plan, lowered, waits.copy(), inputs[:0], np.zeros(0), done)
        return Resident(self.env, submission, waits, inputs + submission.first, self._start)

    def _append(
        self,
        plan: Plan,
        lowered: Lowered,
        waits: AnyInts,
        release: AnyInts,
        times: Floats,
        done: simpy.Event,
    ) -> Submission:
        """Put the ops of a plan into the tables.

        `release` are INPUTs, and `times` when they are ready.
        """
        self._append_computes()
        if self.disturbance.tolerance and (self._lanes or longest_chain(lowered) > MOST_IN_TURN):
            self._store.state.tolerance[0] = 0.0
        first = len(self._store.ops.call)
        number = self._store.append(
            lowered.calls,
            lowered.call,
            lowered.amount,
            waits,
            lowered.successor_start,
            lowered.successors,
            release,
            times,
            len(self._lanes),
        )
        laned, piped = (
            has[lowered.call] if has.any() else None
            for has in (lowered.calls.early > 0, lowered.calls.piped)
        )
        return Submission(plan, first, number, laned, piped, done)

    def _start(self, submission: Submission, waits: AnyInts, inputs: AnyInts) -> None:
        """A resident plan, from its beginning."""
        self._touch()
        self._append_computes()
        self._store.again(submission.number, submission.first, waits, inputs, float(self.env.now))
        self._submissions.append(submission)

    def compute_lanes(self, device: str) -> tuple[str, ...]:
        """The lanes of kernels on `device`; none where kernels do not queue."""
        node = self.unfolded().nodes[device]
        return self.runtime.lanes(Call(Executor.TF, Kind.ADD, node, node, NO_STREAM))

    def compute(self, device: str, seconds: float) -> simpy.Event:
        """Compute on `device` for so long, in the queue of its kernels.

        Sums and packs wait for it there, and it for them. The event succeeds with the `Timeline` of
        that one op.
        """
        self._touch()
        if device not in self._kernels:
            b = PlanBuilder((device,))
            b.input(0, 0, 0)
            lanes = [
                self._lanes.setdefault(name, len(self._lanes))
                for name in self.compute_lanes(device)
            ]
            plan = b.finish(Contract.of("compute", []))
            self._kernels[device] = plan, np.array(lanes, dtype=np.int64)
        done = self.env.event()
        self._new.append((device, seconds, done))
        return done

    def _append_computes(self) -> None:
        """Put the computes of this instant into the tables, all at once.

        Devices often work in step, and to append costs much more than an op.
        """
        if not self._new:
            return
        new, self._new = self._new, []
        lanes = [self._kernels[device][1] for device, _, _ in new]
        lowered = hold_lanes(lanes, [seconds for _, seconds, _ in new], tuple(self._lanes))
        first, ops = len(self._store.ops.call), np.arange(len(new))
        number = self._store.append(
            lowered.calls,
            lowered.call,
            lowered.amount,
            np.ones(len(new), dtype=np.int32),
            lowered.successor_start,
            lowered.successors,
            ops,
            np.full(len(new), float(self.env.now)),
            len(self._lanes),
            submissions=len(new),
        )
        for i, (device, _, done) in enumerate(new):
            laned = np.ones(1, dtype=np.bool_) if len(lanes[i]) else None
            plan = self._kernels[device][0]
            self._submissions.append(Submission(plan, first + i, number + i, laned, None, done))

    def set_bandwidth(self, link: str, bandwidth: float) -> None:
        """Change what a directed link carries from now on.

        `link` is its name (`gpu0>gpu3`), `bandwidth` is in bytes/s, and 0 cuts it off.

        InputError on a folded machine, whose links represent all equal machines' links.
        """
        topology = self.changeable()
        names = {each.name: each.id for each in topology.links}
        if link not in names:
            raise InputError(f"{topology.name}: no link {link!r}{did_you_mean(link, names)}")
        if not bandwidth >= 0.0:
            raise InputError(f"{link}: the bandwidth must be 0 or more, not {bandwidth}")
        self._set(names[link], bandwidth)

    def schedule(self, faults: Sequence[Fault]) -> None:
        """Let links fail, slow down and recover; times count from now."""
        topology = self.changeable()
        Disturbance(faults=tuple(faults)).check(topology)
        self._schedule(capacity_changes(topology, self.resources.capacity, faults))

    def unfolded(self) -> Topology:
        """The topology, whose machines may then become unlike; NotFoldable if it is folded."""
        if isinstance(self.topology, Folded):
            raise NotFoldable(
                f"{self.topology.name} is folded: its machines are taken to be alike, so "
                "none of their links can change; "
                "simulate them unfolded"
            )
        return self.topology

    def changeable(self) -> Topology:
        """The topology, whose links may change; InputError of a `fixed` fabric."""
        topology = self.unfolded()
        if self.resources.home is not None:
            raise InputError(f"{topology.name}: this fabric is fixed; make one that is not")
        return topology

    def _schedule(self, changes: Sequence[tuple[float, int, float]]) -> None:
        for delay, link, bandwidth in changes:
            event = Moment(self.env, self.env.now + delay)
            event.callbacks.append(partial(self._set, link, bandwidth))

    def _set(self, link: int, bandwidth: float, _: simpy.Event | None = None) -> None:
        self._touch()
        self._capacity[link] = bandwidth
        self._store.set_capacity(link, bandwidth)

    def _touch(self) -> None:
        if self.env.now < self._clock - abs(self._clock) * _SAME_INSTANT:
            raise InternalError(
                f"the fabric is at {self._clock!r} s; it was touched at {self.env.now!r} s"
            )
        if self._wake is None or self._wake.at != self.env.now:
            self._wake = self._wake_at(self.env.now)

    def _wake_at(self, at: float) -> Moment:
        wake = _Wake(self.env, at, LOW)
        wake.callbacks.append(self._run)
        return wake

    def _run(self, wake: simpy.Event) -> None:
        """Advance to the next event of anybody else, or to the next completion."""
        if wake is not self._wake:
            return
        self._wake = None
        self._append_computes()
        horizon = self.env.peek()
        completed, time = self._store.advance(max(self.env.now, self._clock), horizon)
        self._clock = max(self._clock, float(self._store.state.clock[0]))
        if completed:
            self._complete(time)
        if not self._submissions:
            return
        if not completed and time == inf and horizon == inf:
            if self._awaited():
                raise Deadlock(
                    explain_deadlock(
                        self._awaited(), self._store, self._capacity, self.resources.names,
                        list(self._lanes),
                    )
                )  # fmt: skip
            return
        self._wake = self._wake_at(time if completed else min(time, horizon))

    def _awaited(self) -> list[Submission]:
        """Return the running submissions that are not background."""
        return [submission for submission in self._submissions if not submission.background]

    def busy(self, *idle: type[simpy.Event]) -> bool:
        """Whether a plan can go on, or an event is to come that is none of `idle`.

        Else only the background moves.
        """
        scheduled = self.env._queue  # noqa: SLF001
        if any(not isinstance(event, (_Wake, *idle)) for *_, event in scheduled):
            return True
        self._append_computes()
        state = self._store.state
        if not (awaited := self._awaited()):
            return False
        return bool(state.released[0] < len(state.release_op)) or any(
            submission.can_move(self._store, self._capacity) for submission in awaited
        )

    def _complete(self, time: float) -> None:
        """Schedule the event of every submission whose ops are all done."""
        pending = self._store.state.pending
        live = []
        for submission in self._submissions:
            if pending[submission.number]:
                live.append(submission)
                continue
            event = submission.done
            self._held.pop(event, None)
            value = None if submission.resident else submission.timeline(self._store.state)
            succeed_at(event, time, value=value)
        self._submissions = live
        if not live and not self._stands:
            self._clear()

    def _clear(self) -> None:
        """Empty tables: no op is alive."""
        each = self.disturbance.tolerance / MOST_IN_TURN
        self._store = KernelStore(self._capacity, self._clock, each, self.resources.congestion)
