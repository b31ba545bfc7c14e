"""Plans, each alone on one machine; of parts that do the same, one is simulated for all.

NCCL's channels often go one way round the GPUs of a machine and differ in where they begin. Part c
of a plan then does on resource f_c(x) what the first part does on x, at the same time. So resource
r carries what the first part does on every x with f_c(x) = r for some c. Where all f_c(x) carry the
same, one of these x represents them all, and the first part takes as long as the whole plan. If
several parts do the same on one resource, its weight is their number.

Queues are taken in the order of ops, so no queue may be one of several for different parts.

Plans that each run by themselves may share nothing, and be alike: their `likeness` tells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from math import inf
from typing import NamedTuple

import numpy as np
import simpy

from simreduce.computing import grouped
from simreduce.computing.arrays import Floats, Ints, row_starts, uniform
from simreduce.engine import bounds as floors
from simreduce.engine.bounds import find_bounds
from simreduce.engine.disturbance import CALM, Disturbance
from simreduce.engine.fabric import Fabric
from simreduce.engine.lowering import Lowered, lower_unpriced
from simreduce.engine.lowering.calls import Calls
from simreduce.engine.lowering.resources import Resources
from simreduce.engine.recording import Recording, flow_starts
from simreduce.engine.result import ROUNDED, Floors, Result, Use, critical
from simreduce.engine.runtime import (
    NOMINAL,
    TENSORFLOW,
    Calibration,
    NcclConstants,
    Runtime,
    no_lanes,
)
from simreduce.engine.submission import Timeline, read_ready
from simreduce.errors import InputError, InternalError, TopologyError, expect
from simreduce.plan import Kind, Plan
from simreduce.plan.plan import part_for
from simreduce.topology import Folded, Topology

_COSTS = ("overhead", "work", "latency", "holds", "cap", "early", "lane_start", "use_start")
_OPS = ("call", "amount", "waits", "successor_start", "successors", "stream")


@dataclass(frozen=True, slots=True)
class Symmetry:
    """The resource that represents each resource, and how many parts use each in the same way.

    `stand_in` is -1 for resources that no part uses.
    """

    stand_in: Ints
    weight: Floats

    def fold(self, part: Lowered) -> Lowered:
        """Return the first part, which takes as long as all parts together.

        It may have more ops than the one that was compared, and no other ways.
        """
        calls, every = part.calls, len(self.stand_in)
        if (self.stand_in[calls.uses] < 0).any():
            raise InternalError("a part of a plan uses other resources than were compared")
        row = np.repeat(np.arange(len(calls.cap)), np.diff(calls.use_start))
        pairs, place = np.unique(row * every + self.stand_in[calls.uses], return_inverse=True)
        weight = np.bincount(place, calls.weight * self.weight[calls.uses], minlength=len(pairs))
        count = np.bincount(pairs // every, minlength=len(calls.cap))
        folded = replace(
            calls,
            use_start=row_starts(count),
            uses=(pairs % every).astype(calls.uses.dtype),
            weight=weight.astype(np.float64),
        )
        return replace(part, calls=folded)


def find_symmetry(parts: Sequence[Lowered], capacity: Sequence[float]) -> Symmetry | None:
    """Return the symmetry by which the first part of a plan represents all; None if they differ.

    Ops of one place belong together, and all lanes have numbers by the same names.
    """
    first, *others = parts
    which, at, place = np.unique(first.call, return_index=True, return_inverse=True)
    own = first.calls.select(which)
    uses, lanes = _Images(own.uses), _Images(own.lanes)
    for part in others:
        if not np.array_equal(part.amount, first.amount):
            return None
        call = part.call[at]
        calls = part.calls.select(call)
        if not (np.array_equal(part.call, call[place]) and _same(calls, own)):
            return None
        if not (uses.add(calls.uses) and lanes.add(calls.lanes)):
            return None
    carried, queued = uses.carried(), lanes.carried()
    if carried is None or queued is None or any(of != {x: 1} for x, of in queued.items()):
        return None
    stand_in, weight = np.full(len(capacity), -1), np.ones(len(capacity))
    for x, of in carried.items():
        if any(capacity[y] != capacity[x] for y in uses.of(x)):
            return None
        stand_in[x], weight[x] = min(of), of[x]
    return Symmetry(stand_in, weight)


def _same(some: Calls, others: Calls) -> bool:
    """Whether calls cost the same and use as many resources, with the same weights."""
    names = (*_COSTS, "weight")
    return all(np.array_equal(getattr(some, name), getattr(others, name)) for name in names)


def likeness(lowered: Lowered, resources: Resources) -> bytes:
    """A digest that two plans share if each does by itself what the other does, on like resources
    and in queues of its own: what they do takes equal times, to the bit.

    The kernel knows resources and lanes by numbers, so these must also be in the same order.
    """
    calls, digest = lowered.calls, blake2b(digest_size=16)
    used, place = np.unique(calls.uses, return_inverse=True)
    queues = np.unique(calls.lanes, return_inverse=True)[1]
    columns = [getattr(lowered, name) for name in _OPS] + [getattr(calls, name) for name in _COSTS]
    columns += [calls.weight, place, queues, np.array(resources.capacity)[used]]
    if congestion := resources.congestion:
        columns += [congestion.fills[used], congestion.hops(calls.use_start, calls.uses)]
    for column in columns:
        digest.update(f"{column.dtype.str} {len(column)} ".encode())
        digest.update(column.tobytes())
    return digest.digest()


class _Images:
    """The functions f_c on what the first part uses; f_0 is the identity."""

    def __init__(self, own: Ints) -> None:
        self._own = own.tolist()
        self._by_part = [{x: x for x in self._own}]

    def add(self, image: Ints) -> bool:
        """Whether what another part uses in the place of each is one for each."""
        found: dict[int, int] = {}
        same = all(
            found.setdefault(x, y) == y for x, y in zip(self._own, image.tolist(), strict=True)
        )
        self._by_part.append(found)
        return same

    def of(self, x: int) -> list[int]:
        """Every f_c(x)."""
        return [image[x] for image in self._by_part]

    def carried(self) -> Mapping[int, Counter[int]] | None:
        """Return, by x, all y that some f_c takes to x, with how many do.

        None if some f_c(x) carries something else than x.
        """
        pairs = ((y, x) for image in self._by_part for x, y in image.items())
        found = {y: Counter(images) for y, images in grouped(pairs).items()}
        if any(found[y] != found[x] for x in self._by_part[0] for y in self.of(x)):
            return None
        return {x: found[x] for x in self._by_part[0]}


_LARGE = 1 << 19
"""Of a plan of more ops, the floors of a part are looked at first: what its last transfer needs."""

MOVED, TELLING = 1e-3, 0.05
"""The part of a time by which starts are moved to find out whether it hangs on ties, and the change
from which on it does.
"""

MOST_MOVED = 1 << 17
"""Transfers of the longest plans for which that is tried."""


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A lower limit of what a plan takes, in seconds, and what sets it."""

    seconds: float
    reason: str


class Summary(NamedTuple):
    """The prediction of a plan, without its critical path; as in `Result`."""

    seconds: float
    floors: Floors
    links: tuple[Use, ...]
    lanes: tuple[Use, ...]
    timeline: Timeline


class LeastSeconds(NamedTuple):
    """Seconds that a plan takes at least.

    These are `latency`, however few bytes it moves, and `busy` for the bytes that its busiest link
    or lane moves, in proportion to them.
    """

    latency: float
    busy: float


@dataclass(frozen=True)
class Simulator:
    """A machine, the runtime that executes plans on it, the model's constants and what goes wrong.

    Each plan is simulated alone.

    All methods raise Deadlock if the plan can never finish, and InputError if it needs devices or
    routes that are not there.
    """

    machine: Topology | Folded
    runtime: Runtime = TENSORFLOW
    calibration: Calibration = NOMINAL
    disturbance: Disturbance = CALM

    @property
    def topology(self) -> Topology:
        """The machine with all that is in it. TopologyError if equal machines are folded."""
        if isinstance(self.machine, Folded):
            raise TopologyError(f"{self.machine.name}: its equal machines are folded into one")
        return self.machine

    @property
    def disturbed(self) -> str:
        """What goes wrong, in words: links that carry less or more than the machine's, and the
        disturbance; "" for nothing.
        """
        return ", ".join(filter(None, (self._alone.scaled, self.disturbance.text)))

    @property
    def _alone(self) -> Topology:
        """The machine; of folded ones, two."""
        return self.machine.pair if isinstance(self.machine, Folded) else self.machine

    def constants_of(self, plan: Plan) -> Calibration:  # noqa: ARG002 - for those that choose
        """The constants that a plan is simulated with."""
        return self.calibration

    @cached_property
    def resources(self) -> Resources:
        """The links, memories and processors, shared by all simulations."""
        return Resources.of(self.machine, self.calibration, self.disturbance)

    def fabric(
        self,
        plan: Plan,
        disturbance: Disturbance | None = None,
        lanes: dict[str, int] | None = None,
        *,
        fixed: bool = True,
    ) -> Fabric:
        """A fabric for one plan, in an environment of its own; see `Fabric`."""
        return Fabric(
            simpy.Environment(),
            self.machine,
            self.constants_of(plan),
            self.runtime,
            self.disturbance if disturbance is None else disturbance,
            lanes,
            self.resources,
            fixed=fixed,
        )

    def simulate(self, plan: Plan, ready: float | Floats = 0.0) -> Result:
        """How long a plan takes, and why.

        `ready` is when its inputs exist, in seconds: one number, or one for each as in
        `Fabric.submit`; of a folded plan, for one machine. What a step costs (`step_cost`) comes
        before everything.
        """
        result = self.simulate_within(plan, inf, ready)
        assert isinstance(result, Result)  # noqa: S101 - without a limit there is no other
        return result

    def simulate_within(
        self,
        plan: Plan,
        limit: float,
        ready: float | Floats = 0.0,
        lowered: Lowered | None = None,
        symmetry: Symmetry | None = None,
    ) -> Result | AtLeast:
        """Return the prediction if it is at most `limit` seconds, else a lower limit.

        The prediction has the same bits as `simulate`. Where a floor of the plan is above the
        limit, nothing is simulated.

        `lowered` is the plan, lowered with a fabric of this simulator. With `symmetry`, the plan is
        a part that represents others.
        """
        expect(plan, Plan, "a Plan, as compile makes it")
        lanes = {name: i for i, name in enumerate(lowered.lane_names)} if lowered else None
        fabric = self.fabric(plan, lanes=lanes)
        done = _carry_out(plan, fabric, ready, limit, lowered, symmetry)
        if isinstance(done, AtLeast):
            return done
        lowered, summary = done
        timeline, path = summary.timeline, critical(lowered, fabric.resources, summary.timeline)
        del lowered, done  # which is large, and so are columns of a result
        return Result(
            seconds=summary.seconds,
            topology=self.machine.name,
            topology_digest=self.machine.digest,
            runtime=self.runtime.name,
            calibration=fabric.calibration.name,
            digested=plan,
            transfers=plan.transfers,
            floors=summary.floors,
            links=summary.links,
            lanes=summary.lanes,
            devices=plan.devices,
            kind=plan.kind,
            source=plan.source,
            device=plan.device,
            nbytes=plan.nbytes,
            ready=timeline.ready,
            start=timeline.start,
            finish=timeline.finish,
            blame=timeline.blame,
            begun=timeline.begun,
            path=path,
            disturbance=self.disturbed,
        )

    def summarise(self, plan: Plan) -> Summary:
        """As `simulate`, without the critical path: what a ranking needs, in less time."""
        summary = self.summarise_within(plan, inf)
        assert isinstance(summary, Summary)  # noqa: S101 - without a limit there is no other
        return summary

    def summarise_within(
        self, plan: Plan, limit: float, *, symmetry: Symmetry | None = None
    ) -> Summary | AtLeast:
        """As `simulate_within`, without the critical path."""
        done = _carry_out(plan, self.fabric(plan), 0.0, limit, symmetry=symmetry)
        return done if isinstance(done, AtLeast) else done[1]

    def find_seconds(self, plan: Plan, ready: float | Floats = 0.0) -> float:
        """The seconds of `simulate`, in less time."""
        fabric = self.fabric(plan)
        begin = read_ready(ready) + step_cost(plan, self.machine, self.runtime, fabric.calibration)
        return float(_run_alone(plan, fabric, begin, fabric.lower(plan)).finish.max(initial=0.0))

    def find_moved(self, plan: Plan, seconds: float) -> float | None:
        """The seconds of a plan whose inputs are ready at other times: up to `MOVED` of `seconds`
        later, each by another part.

        None if that changes its time by `TELLING` at most, and where it is not tried: where nothing
        waits in the queues of a runtime, of folded machines and of long plans, under faults, which
        do not move with the starts, and under jitter, which breaks ties already.

        Where copies tie in several queues, the order of ops holds all of them in step, and times
        are far from those that the least difference gives.
        """
        queues = self.runtime.lanes is not no_lanes and not plan.executor.all()
        if not queues or plan.machines > 1 or plan.transfers > MOST_MOVED:
            return None
        if self.disturbance.faults or self.disturbance.jitter:
            return None
        inputs = len(plan.inputs)
        moved = self.find_seconds(plan, MOVED * seconds * uniform(0, 0, inputs))
        return moved if abs(moved - seconds) > TELLING * seconds else None

    def find_floor(self, plan: Plan, *, in_chunks: bool = False) -> AtLeast:
        """The highest floor of a plan, which is not simulated.

        With `in_chunks`, that of the same plan in chunks of any size: chunks move as many bytes,
        and each goes all the way.
        """
        fabric = self.fabric(plan, self._without_jitter if in_chunks else None)
        begin = np.asarray(step_cost(plan, self.machine, self.runtime, fabric.calibration))
        return _at_least(_floors_of(plan, fabric, in_chunks=in_chunks), begin)

    def find_rates(self, plan: Plan) -> LeastSeconds:
        """The floors of a plan, which is not simulated, apart for its latencies and for its bytes.

        A plan that moves other amounts over the same ways takes at least as much of each: the first
        has no bytes, and the second is proportional to them.
        """
        fabric = self.fabric(plan, self._without_jitter)
        lowered, best = fabric.lower(plan), fabric.resources.best
        calls, nothing = lowered.calls, np.zeros_like(lowered.calls.latency)
        bare = replace(lowered, calls=replace(calls, overhead=nothing, latency=nothing))
        lanes = floors.lane_seconds(bare, *floors.alone(bare, best))
        links = floors.resource_seconds(lowered, best)
        empty = replace(lowered, amount=np.zeros_like(lowered.amount))
        return LeastSeconds(
            floors.critical_path(empty, best)
            + step_cost(plan, self.machine, self.runtime, fabric.calibration),
            max(float(lanes.max(initial=0.0)), float(links.max(initial=0.0))),
        )

    @property
    def _without_jitter(self) -> Disturbance:
        """The disturbance without jitter, which would scatter other ops than the plan's."""
        return replace(self.disturbance, jitter=0.0)

    def compare_parts(self, parts: Sequence[Plan]) -> Symmetry | None:
        """Return the symmetry by which the first part represents all; None if they differ."""
        fabric = self.fabric(parts[0])
        if fabric.resources.congestion:
            return None  # a link that represents others has no place on their ways
        return find_symmetry([fabric.lower(part) for part in parts], fabric.resources.capacity)

    def record(self, plan: Plan, ready: float | Floats = 0.0) -> Recording:
        """The prediction with the rate of every flow over time.

        InputError with a tolerance or if equal machines are folded.
        """
        expect(plan, Plan, "a Plan, as compile makes it")
        _ = self.topology  # refuses equal machines that are folded
        if self.disturbance.tolerance:
            raise InputError("tolerance: a recording has every byte; leave the tolerance out")
        lowered = self.fabric(plan, fixed=False).lower(plan)
        result = self.simulate_within(plan, inf, ready, lowered)
        assert isinstance(result, Result)  # noqa: S101 - without a limit there is no other
        return Recording(plan, result, lowered, self.resources)


def _carry_out(
    plan: Plan,
    fabric: Fabric,
    ready: float | Floats,
    limit: float,
    lowered: Lowered | None = None,
    symmetry: Symmetry | None = None,
) -> tuple[Lowered, Summary] | AtLeast:
    """Simulate a plan alone on a new fabric."""
    begin = read_ready(ready) + step_cost(plan, fabric.topology, fabric.runtime, fabric.calibration)
    limited = limit < inf
    if limited and not fabric.disturbance.jitter and len(plan) > _LARGE:
        part = part_for(plan, np.flatnonzero(plan.kind == Kind.COPY)[-1:])
        # With lanes of its own: the plan's are numbered as it comes to them.
        found = _at_least(_floors_of(part, fabric.empty()), begin)
        if found.seconds > limit:
            return found
    lowered = fabric.lower(plan) if lowered is None else lowered
    lowered = symmetry.fold(lowered) if symmetry else lowered
    best = fabric.resources.best
    needed = floors.resource_seconds(lowered, best)
    # Before what happens to all ops needs room.
    bounds = _floors(plan, fabric, lowered, best, needed)
    if limited and (found := _at_least(bounds, begin)).seconds > limit:
        return found
    env, done = fabric.env, fabric.submit(plan, begin, lowered)
    env.run(until=done | env.timeout(limit) if limited else done)
    if not done.triggered:
        return AtLeast(limit, "simulated so far")
    timeline = done.value
    assert isinstance(timeline, Timeline)  # noqa: S101 - SimPy knows no type of an event's value
    seconds = float(timeline.finish.max(initial=0.0))
    return lowered, Summary(
        seconds,
        bounds.under(seconds, exact=not fabric.disturbance.tolerance),
        link_use(best, needed, seconds),
        _lane_use(lowered, timeline, seconds),
        timeline,
    )


def _run_alone(plan: Plan, fabric: Fabric, begin: float | Floats, lowered: Lowered) -> Timeline:
    """What a plan does on a new fabric."""
    timeline = fabric.env.run(until=fabric.submit(plan, begin, lowered))
    assert isinstance(timeline, Timeline)  # noqa: S101 - SimPy knows no type of an event's value
    return timeline


def _at_least(bounds: Floors, begin: Floats) -> AtLeast:
    """The highest floor of a plan that begins then.

    A floor may be higher than the time by rounding.
    """
    reasons = {
        "critical path": bounds.critical_path,
        "busiest link": bounds.resource,
        "busiest lane": bounds.lane,
        "narrowest cut": bounds.cut,
    }
    reason = max(reasons, key=reasons.__getitem__)
    earliest = float(begin.min()) if begin.size else 0.0
    return AtLeast(earliest + reasons[reason] * (1.0 - ROUNDED), reason)


def _floors_of(plan: Plan, fabric: Fabric, *, in_chunks: bool = False) -> Floors:
    lowered, best = fabric.lower(plan), fabric.resources.best
    needed = floors.resource_seconds(lowered, best)
    found = _floors(plan, fabric, lowered, best, needed)
    if not in_chunks:
        return found
    empty = replace(lowered, amount=np.zeros_like(lowered.amount))
    return replace(found, critical_path=floors.critical_path(empty, best))


def step_cost(
    plan: Plan, topology: Topology | Folded, runtime: Runtime, calibration: Calibration
) -> float:
    """Return the seconds that a step takes besides its ops, where ops are dispatched.

    They are `calibration.step` for every machine that takes part, what its host takes to start
    those of its GPUs that do (`issue`), and ways between the first machine, where the step is
    started, and the farthest of the others: there, back with the answer and, if anything is sent
    between machines, one for the request that every receiver sends when it starts.
    """
    if not runtime.dispatch or not (calibration.step or calibration.issue):
        return 0.0
    whole = topology.pair if isinstance(topology, Folded) else topology
    place = whole.router.index
    names = sorted(
        (plan.devices[device] for device in np.unique(plan.device).tolist()), key=place.__getitem__
    )
    gpus = [node for name in names if (node := whole.nodes[name]).kind == "gpu"]
    most = max(Counter(gpu.machine for gpu in gpus).values(), default=0)
    devices = calibration.issuing("device") * most
    if not calibration.step:
        return devices
    if isinstance(topology, Folded):
        # The next machine represents all others.
        machines, graph, others = plan.machines, topology.pair, [topology.twin[names[0]]]
        sent = True
    else:
        graph = topology
        first = {
            graph.nodes[name].machine: name for name in reversed(names)
        }  # by machine, a device of it
        machines, others = len(first), sorted(set(first.values()) - {names[0]}, key=names.index)
        machine = np.array([graph.nodes[name].machine for name in plan.devices])
        copies = np.flatnonzero(plan.kind == Kind.COPY)
        sent = bool((machine[plan.source[copies]] != machine[plan.device[copies]]).any())
    if not others:
        return calibration.step + devices
    ways = graph.router.routes(
        np.full(len(others), place[names[0]]), np.array([place[name] for name in others])
    )
    waits = np.array(Resources.of(graph, calibration).latency)[ways.links]
    away = max(float(way.sum()) for way in np.split(waits * ways.crossing, ways.start[1:-1]))
    return calibration.step * machines + devices + (3.0 if sent else 2.0) * away


def _floors(
    plan: Plan, fabric: Fabric, lowered: Lowered, resources: Resources, needed: Floats
) -> Floors:
    lanes = (
        floors.lane_seconds(lowered, *floors.alone(lowered, resources))
        if lowered.lane_names
        else np.zeros(0)
    )
    kernels = fabric.runtime.kernels or bool(plan.executor.any())
    bounds = find_bounds(fabric.topology, resources, plan, kernels=kernels)
    return Floors(
        critical_path=floors.critical_path(lowered, resources),
        resource=float(needed.max(initial=0.0)),
        lane=float(lanes.max(initial=0.0)),
        cut=bounds.cut,
        hardware=bounds.hardware,
    )


def link_use(resources: Resources, needed: Floats, seconds: float) -> tuple[Use, ...]:
    """Return how busy each link and memory is in so many seconds, busiest first.

    Their bytes need `needed` seconds of each.
    """
    in_cores = resources.in_cores
    uses = [
        Use(
            name,
            float(busy / seconds) if seconds else 0.0,
            0.0 if name in in_cores else float(busy * rate),
        )
        for name, busy, rate in zip(resources.names, needed, resources.capacity, strict=True)
        if busy > 0
    ]
    return tuple(sorted(uses, key=lambda u: (-u.share, u.name)))


def _lane_use(lowered: Lowered, timeline: Timeline, seconds: float) -> tuple[Use, ...]:
    if not lowered.lane_names:
        return ()
    transfer = timeline.finish - flow_starts(lowered, timeline)
    total = floors.lane_seconds(lowered, timeline.finish - timeline.start, transfer)
    uses = [
        Use(n, float(t / seconds) if seconds else 0.0)
        for n, t in zip(lowered.lane_names, total, strict=True)
    ]
    return tuple(sorted(uses, key=lambda u: (-u.share, u.name)))


class Rerun:
    """A plan on a machine, timed with any constants of NCCL.

    Lowers the plan once, without the constants. Not for calibrations of CPU devices.
    """

    def __init__(
        self,
        plan: Plan,
        topology: Topology | Folded,
        runtime: Runtime,
        calibration: Calibration,
    ) -> None:
        self._plan, self._at = plan, Simulator(topology, runtime, calibration)
        self._lanes: dict[str, int] = {}
        self._unpriced, _ = lower_unpriced(
            plan, topology, runtime, calibration, self._at.resources, self._lanes
        )
        self._begin = step_cost(plan, topology, runtime, calibration)

    def __call__(self, constants: NcclConstants) -> Timeline:
        """When ops start and finish, as `simulate` says with these constants."""
        fabric = self._at.fabric(self._plan, lanes=self._lanes)
        return _run_alone(self._plan, fabric, self._begin, self._unpriced.priced(constants))
