"""One plan, alone on one machine."""

from __future__ import annotations

import numpy as np
import simpy

from simreduce.arrays import Floats
from simreduce.engine.calibration import NOMINAL, Calibration
from simreduce.engine.disturbance import CALM, Disturbance
from simreduce.engine.fabric import Fabric
from simreduce.engine.lowering.lowered import Lowered
from simreduce.engine.lowering.resources import Resources
from simreduce.engine.results import floors
from simreduce.engine.results.path import critical
from simreduce.engine.results.replay import flow_starts
from simreduce.engine.results.result import Floors, Result, Use
from simreduce.engine.runtime import Runtime, runtime_named
from simreduce.engine.submission import Timeline, read_ready
from simreduce.plan import Kind, Plan
from simreduce.topology import Folded, Topology

_NONE: Floats = np.zeros(0)


def simulate(
    plan: Plan,
    topology: Topology | Folded,
    runtime: str | Runtime = "tensorflow",
    calibration: Calibration = NOMINAL,
    ready: float | Floats = 0.0,
    disturbance: Disturbance = CALM,
) -> Result:
    """How long `plan` takes on `topology`, and why. `ready` as in `Fabric.submit`; of a folded
    plan, for one machine. What a step costs (`step_cost`) comes before everything.

    Raises Deadlock if the plan can never finish, InputError if it needs devices or routes that are
    not there.
    """
    runtime = runtime_named(runtime) if isinstance(runtime, str) else runtime
    times = read_ready(ready)
    env = simpy.Environment()
    fabric = Fabric(env, topology, calibration, runtime, disturbance)
    lowered = fabric.lower(plan)
    best = fabric.resources.best
    needed = floors.resource_seconds(lowered, best)
    bounds = _floors(
        plan, topology, lowered, best, needed
    )  # before what happens to all ops needs room
    done = fabric.submit(plan, times + step_cost(plan, topology, runtime, calibration), lowered)
    timeline = env.run(until=done)
    assert isinstance(timeline, Timeline)  # noqa: S101 - SimPy knows no type of an event's value
    seconds = float(timeline.finish.max(initial=0.0))
    lanes = _lane_use(lowered, timeline, seconds)
    path = critical(lowered, fabric.resources, timeline)
    del lowered  # which is large, and so are columns of a result
    return Result(
        seconds=seconds,
        topology=topology.name,
        topology_digest=topology.digest,
        runtime=runtime.name,
        calibration=calibration.name,
        digested=plan,
        transfers=plan.transfers,
        floors=bounds.under(seconds),
        links=_link_use(best, needed, seconds),
        lanes=lanes,
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
        disturbance=disturbance.text,
    )


def step_cost(
    plan: Plan, topology: Topology | Folded, runtime: Runtime, calibration: Calibration
) -> float:
    """Seconds that a step takes besides its ops, where ops are dispatched: `calibration.step` for
    every machine that takes part, and ways between the first machine, where the step is started,
    and the farthest of the others: there, back with the answer and, if anything is sent between
    machines, one for the request that every receiver sends when it starts.
    """
    if not calibration.step or not runtime.dispatch:
        return 0.0
    place = (topology.pair if isinstance(topology, Folded) else topology).router.index
    names = sorted(
        (plan.devices[device] for device in np.unique(plan.device).tolist()), key=place.__getitem__
    )
    if isinstance(topology, Folded):
        # The next machine stands for all others.
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
        return calibration.step
    ways = graph.router.routes(
        np.full(len(others), place[names[0]]), np.array([place[name] for name in others])
    )
    waits = np.array(Resources.of(graph, calibration).latency)[ways.links]
    shares = np.ones(len(waits)) if ways.shares is None else ways.shares
    away = max(float(way.sum()) for way in np.split(waits * shares, ways.start[1:-1]))
    return calibration.step * machines + (3.0 if sent else 2.0) * away


def _floors(
    plan: Plan, topology: Topology | Folded, lowered: Lowered, resources: Resources, needed: Floats
) -> Floors:
    lanes = (
        floors.lane_seconds(lowered, *floors.alone(lowered, resources))
        if lowered.lane_names
        else _NONE
    )
    return Floors(
        critical_path=floors.critical_path(lowered, resources),
        resource=float(needed.max(initial=0.0)),
        lane=float(lanes.max(initial=0.0)),
        cut=floors.all_reduce_cut(topology, resources, plan),
    )


def _link_use(resources: Resources, needed: Floats, seconds: float) -> tuple[Use, ...]:
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
