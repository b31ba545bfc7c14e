"""From plans to arrays: calls, successors and floors, against what plain loops say."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import simreduce as sr
from simreduce.engine import IDEAL, NOMINAL, Runtime, bounds, lowering
from simreduce.engine.lowering import Lowered, lower
from simreduce.engine.lowering.resources import Resources, measure_working_set
from simreduce.errors import PlanError, TopologyError
from simreduce.plan import Executor, Kind, PlanBuilder, side_by_side
from simreduce.testing import NO_CONTRACT, pair, plan_of
from simreduce.testing.strategies import ROUND, SimulationInput, scenes
from simreduce.topology import load_topology, route
from tests.simulating import simulate
from tests.thorough import examples


def lowered(scene: SimulationInput) -> tuple[Lowered, Resources]:
    resources = Resources.of(scene.topology, scene.calibration)
    return lower(scene.plan, scene.topology, scene.runtime, scene.calibration, resources), resources


def waits_for(plan: sr.Plan, topology: sr.Topology, runtime: Runtime) -> list[set[int]]:
    """The predecessors of every op. NCCL's streams order nothing, nor do those of copies and sums
    that its kernels do.
    """
    cpus = [topology.nodes[name].kind == "cpu" for name in plan.devices]
    last: dict[int, int] = {}
    found = []
    for op in range(len(plan)):
        before = {
            *plan.operands_of(op),
            *plan.controls[plan.control_start[op] : plan.control_start[op + 1]].tolist(),
        }
        stream, kind = int(plan.stream[op]), plan.kind[op]
        ends = {int(plan.device[op])}
        ends |= {int(plan.source[op])} if kind == Kind.COPY else set()
        step = kind in (Kind.COPY, Kind.ADD) and not any(cpus[end] for end in ends)
        kernels = Executor(plan.executor[op]) != Executor.TF or (runtime.kernels and step)
        if stream >= 0 and not kernels:
            before |= {last[stream]} if stream in last else set()
            last[stream] = op
        found.append(before)
    return found


@settings(max_examples=examples(300), deadline=None)
@given(scenes(ROUND), st.data())
def test_a_lowered_plan_is_what_plain_loops_say(scene, data):
    """What every op waits for, the critical path, and what the ops of a call have in common."""
    low, resources = lowered(scene)
    before = waits_for(scene.plan, scene.topology, scene.runtime)

    _check_predecessors(scene, low, before)
    _check_critical_path(low, resources, before)
    _check_calls(scene, low, resources, data.draw(st.integers(0, len(scene.plan) - 1)))


def _check_predecessors(scene: SimulationInput, low: Lowered, before: list[set[int]]) -> None:
    """Every op waits once for each of its predecessors."""
    assert low.waits.tolist() == [len(each) for each in before]
    for op in range(len(scene.plan)):
        mine = low.successors[low.successor_start[op] : low.successor_start[op + 1]].tolist()
        assert mine == [user for user, used in enumerate(before) if op in used]


@settings(max_examples=examples(50), deadline=None)
@given(scenes(ROUND))
def test_compiled_lowering_and_floors_are_the_interpreted_ones(scene):
    def made(*, compiled: bool):
        with (
            mock.patch.object(lowering, "worth_compiling", return_value=compiled),
            mock.patch.object(bounds, "worth_compiling", return_value=compiled),
        ):
            low, resources = lowered(scene)
            return low, bounds.critical_path(low, resources)

    plain, floor = made(compiled=False)
    fast, same = made(compiled=True)
    assert floor == same

    for name in ("waits", "successor_start", "successors"):
        assert getattr(fast, name).dtype == getattr(plain, name).dtype
        assert getattr(fast, name).tolist() == getattr(plain, name).tolist()


def _check_critical_path(low: Lowered, resources: Resources, before: list[set[int]]) -> None:
    """It is the longest chain."""
    duration, _ = bounds.alone(low, resources)
    finish: list[float] = []
    for op, waited in enumerate(before):
        finish.append(duration[op] + max((finish[each] for each in waited), default=0.0))

    assert bounds.critical_path(low, resources) == max(finish, default=0.0)


@pytest.mark.parametrize(
    "links", [[1] * 2000, [50, 50] * 20, [1000, 1000], [3, 200, 1] * 4, [100] * 3 + [1] * 300]
)
def test_long_plans_have_the_critical_path_of_their_chains(links):
    """Step by step, or one op after another in program order: `links` are the widths of the
    steps.
    """
    machine = load_topology("switch:2")

    def write(b: PlanBuilder) -> None:
        before = [b.input(0, 0, 1)]
        for width in links:
            before = [b.add([before[i % len(before)], before[-1]]) for i in range(width)]

    plan = plan_of(machine, write)
    resources = Resources.of(machine, NOMINAL)
    duration = np.arange(len(plan), dtype=np.float64)
    low = lasting(duration, lower(plan, machine, IDEAL, NOMINAL, resources))
    finish: list[float] = []
    for op, before in enumerate(waits_for(plan, machine, IDEAL)):
        finish.append(duration[op] + max((finish[each] for each in before), default=0.0))

    assert bounds.critical_path(low, resources) == max(finish)


def lasting(seconds: np.ndarray, low: Lowered) -> Lowered:
    """The ops take so long each and move nothing."""
    n = len(seconds)
    none = np.zeros(n + 1, dtype=np.int64)
    calls = replace(
        low.calls, overhead=seconds, latency=np.zeros(n), cap=np.full(n, np.inf), use_start=none
    )
    return replace(low, call=np.arange(n, dtype=np.int32), amount=np.zeros(n), calls=calls)


def _check_calls(scene: SimulationInput, low: Lowered, resources: Resources, op: int) -> None:
    """The columns by op are those of its call. A chunk of NCCL's may count more bytes where it
    cannot overlap with the one before; flows over cores have bytes of their own.
    """
    plan = scene.plan
    call = low.call[op]

    uses = low.by_op.uses[low.by_op.use_start[op] : low.by_op.use_start[op + 1]]
    weight = low.by_op.weight[low.by_op.use_start[op] : low.by_op.use_start[op + 1]]
    mine = slice(low.calls.use_start[call], low.calls.use_start[call + 1])
    assert low.calls.uses[mine].tolist() == uses.tolist()
    assert low.calls.weight[mine].tolist() == weight.tolist()
    amount = plan.nbytes[op] if len(uses) else 0
    nccl = scene.calibration.nccl
    longer = max(nccl.first_pass, nccl.first_warps * nccl.channel_rate["ll"] / 512)
    most = amount * (1 + longer * bool(plan.executor[op]))
    assert scene.calibration.cpu or amount <= low.amount[op] <= most
    assert low.by_op.latency[op] == low.calls.latency[call]
    assert all(0 <= each < len(resources.names) for each in uses)


def test_a_ring_has_a_call_per_hop():
    machine = load_topology("switch:16")
    plan = sr.compile("ring", sr.load_workload("bytes:1M"), sr.layout(machine))
    low = lower(plan, machine, IDEAL, NOMINAL, Resources.of(machine, NOMINAL))

    assert len(low.calls.cap) == 17  # one of them for all that costs nothing
    assert low.call.dtype == low.successors.dtype == np.int32


def test_an_empty_plan_is_lowered():
    machine = load_topology("switch:2")
    plan = PlanBuilder(machine.devices).finish(NO_CONTRACT)
    resources = Resources.of(machine, NOMINAL)
    low = lower(plan, machine, IDEAL, NOMINAL, resources)

    assert (len(low.call), len(low.waits), len(low.successors)) == (0, 0, 0)
    assert bounds.critical_path(low, resources) == 0.0


def test_routes_are_checked_for_every_pair():
    machine = load_topology("ring:5")
    plan = plan_of(machine, lambda b: b.copy(b.input(0, 0, 8), 3))

    with pytest.raises(TopologyError, match=r"no route from 'gpu0' to 'gpu3'"):
        lower(plan, machine, IDEAL, NOMINAL, Resources.of(machine, NOMINAL))
    assert route(machine, "gpu0", "gpu4").links


@pytest.mark.parametrize(
    ("column", "number"),
    [("operands", 900_000_000), ("operands", -1), ("operands", 3), ("controls", 99)],
)
def test_ops_that_wait_for_what_is_not_there_are_refused(column, number):
    """Compiled code would go by such a number as by an address."""
    topology = pair()
    b = PlanBuilder(("gpu0", "gpu1"))
    value = b.input(0, 0, 8)
    b.output(b.copy(value, 1, after=[b.barrier(0, ())]))
    plan = b.finish(NO_CONTRACT)
    numbers = getattr(plan, column).copy()
    numbers[0] = number

    with pytest.raises(PlanError):
        simulate(replace(plan, **{column: numbers}), topology)


@given(scenes(ROUND), st.integers(1, 3))
@settings(max_examples=examples(60))
def test_a_part_is_lowered_as_by_itself(scene, copies):
    """Of plans side by side, that work on as much: the same ops, calls, lanes by name and bytes, in
    another order of calls. Streams run on from one to the next, and so do messages about them.
    """
    plans = [scene.plan] * copies
    together = side_by_side(plans, scene.plan.devices)
    issue = scene.calibration.issue
    own = replace(scene.calibration, issue=issue and {**issue, "message": 0.0})
    machine = (scene.topology, scene.runtime, own)
    resources = Resources.of(scene.topology, scene.calibration)
    whole = lower(together, *machine, resources)
    nodes = [scene.topology.nodes[name] for name in scene.plan.devices]
    held = (
        measure_working_set(together, nodes, scene.calibration.cpu) if scene.calibration.cpu else {}
    )
    alone = lower(scene.plan, *machine, resources, working_set=held)

    def told(found: Lowered) -> list[object]:
        costs = found.by_op
        columns = [
            "overhead",
            "latency",
            "holds",
            "cap",
            "use_start",
            "uses",
            "weight",
            "lane_start",
            "is_pipe",
        ]
        others = ["amount", "waits", "successor_start", "successors"]
        lanes = [found.lane_names[i] for i in costs.lanes.tolist()]
        parts = ((costs, columns), (found, others))
        return [lanes, *(getattr(one, name).tolist() for one, names in parts for name in names)]

    for i in range(copies):
        assert told(alone) == told(whole.part(scene.plan, i * len(scene.plan)))
