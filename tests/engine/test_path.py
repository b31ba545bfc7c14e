"""The critical path: every moment of it has a cause, and together they are the whole time."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings

import simreduce as sr
from simreduce.engine import IDEAL, TENSORFLOW, Calibration
from simreduce.engine.result import (
    BANDWIDTH,
    CAUSES,
    CHANNELS,
    DISPATCH,
    LANE,
    LATENCY,
    RELEASE,
    SHARE,
    PathPart,
)
from simreduce.plan import Kind, PlanBuilder
from simreduce.testing import RATE, cable, copy_plan, machine, node, pair, plan_of
from simreduce.testing.strategies import SimulationInput, either_scenes
from tests.simulating import read_result, record
from tests.thorough import examples

DISPATCHED = Calibration("costs", dispatch={"copy": 0.5})


def recorded(scene: SimulationInput):
    return record(scene.plan, scene.topology, scene.runtime, scene.calibration, scene.ready)


def totals(steps):
    seconds = defaultdict(float)
    for step in steps:
        for part in step.parts:
            seconds[part.cause, part.where] += part.seconds
    return dict(seconds)


@given(either_scenes)
@settings(max_examples=examples(100, usual=12))
def test_laws_of_every_critical_path(scene):
    """On random plans and machines."""
    recording = recorded(scene)

    _check_whole(recording)
    _check_names(scene, recording)
    _check_shares(recording)
    result = recording.result
    assert result.critical_path() == read_result(result.to_json()).critical_path()


def _check_whole(recording):
    """The parts are the whole time. Nothing is missing, nothing counts twice, and nothing is
    negative; with either way to name what is shared.
    """
    for steps in (recording.result.critical_path(), recording.critical_path()):
        parts = [part for step in steps for part in step.parts]

        assert recording.result.seconds == pytest.approx(
            math.fsum(p.seconds for p in parts), rel=1e-12, abs=0
        )
        assert all(part.seconds > 0.0 and part.cause in CAUSES for part in parts)
        assert all((part.cause == LANE) == bool(part.meanwhile) for part in parts)


def _check_names(scene, recording):
    """What the parts name is what the op uses. Links, memories and lanes belong to the op, dispatch
    to its kind; a lane wait is no longer than the wait. A kernel's channels are named where they
    are slower than all that the op uses.
    """
    lowered, names = recording.lowered, recording.resources.names
    costs = lowered.by_op
    for step in recording.critical_path():
        op = step.op
        uses = {names[r] for r in costs.uses[costs.use_start[op] : costs.use_start[op + 1]]}
        for part in step.parts:
            cause, where = (
                (part.meanwhile, part.at) if part.cause == LANE else (part.cause, part.where)
            )
            if where == CHANNELS:
                assert cause == BANDWIDTH
                mine = slice(costs.use_start[op], costs.use_start[op + 1])
                rates = recording.resources.rates[costs.uses[mine]] / costs.weight[mine]
                assert costs.cap[op] < min(rates)
            elif cause in (BANDWIDTH, SHARE):
                assert where in uses
            elif cause == DISPATCH:
                assert where == Kind(int(scene.plan.kind[op])).name.lower()
            else:
                assert not where
            if part.cause == LANE:
                assert part.where in lowered.lane_names


def _check_shares(recording):
    """Time lost to others is at a resource that others use."""
    lowered = recording.lowered
    moves = np.repeat(lowered.amount > 0, np.diff(lowered.by_op.use_start))
    users = np.bincount(lowered.by_op.uses[moves], minlength=len(recording.resources.names))
    for step in recording.critical_path():
        for part in step.parts:
            if SHARE in (part.cause, part.meanwhile):
                where = part.at or part.where
                assert users[recording.resources.names.index(where)] > 1


def test_a_copy_pays_dispatch_latency_and_bytes():
    topology = pair(latency=0.25)
    (first, second) = sr.simulate(
        copy_plan(topology, (0, 1)), topology, TENSORFLOW, DISPATCHED
    ).critical_path()

    assert first.parts == ()
    assert [(p.cause, p.where) for p in second.parts] == [
        (DISPATCH, "copy"),
        (LATENCY, ""),
        (BANDWIDTH, "gpu0>gpu1 wire"),
    ]
    assert [0.5, 0.25, 4.0] == [p.seconds for p in second.parts]


def test_two_copies_in_one_lane():
    """The second stands ready all the time that the first takes."""
    topology = machine(cable("gpu0", "gpu1"), cable("gpu0", "gpu2"))
    steps = sr.simulate(
        copy_plan(topology, (0, 1), (0, 2)), topology, TENSORFLOW, DISPATCHED
    ).critical_path()
    lane = "gpu0 device-to-device"

    assert [1, 3] == [step.op for step in steps if step.parts]
    assert steps[-2].parts == (
        PathPart(LANE, lane, 0.5, DISPATCH, "copy"),
        PathPart(LANE, lane, 4.0, BANDWIDTH, "gpu0>gpu1 wire"),
    )
    assert steps[-1].waited == 4.5
    assert {
        (LANE, lane): 4.5,
        (DISPATCH, "copy"): 0.5,
        (BANDWIDTH, "gpu0>gpu2 wire"): 4.0,
    } == totals(steps)


def test_a_lane_wait_begins_when_the_op_is_ready():
    """Its own input comes after 1 s: until then the path is what the holder of the lane did for
    itself.
    """
    topology = machine(cable("gpu0", "gpu1"), cable("gpu0", "gpu2"))
    plan = copy_plan(topology, (0, 1), (0, 2))
    steps = sr.simulate(plan, topology, TENSORFLOW, ready=np.array([0.0, 1.0])).critical_path()

    assert {
        (BANDWIDTH, "gpu0>gpu1 wire"): 1.0,
        (LANE, "gpu0 device-to-device"): 3.0,
        (BANDWIDTH, "gpu0>gpu2 wire"): 4.0,
    } == totals(steps)


def test_a_lane_that_is_freed_before_the_bytes_move():
    """A message leaves the lane when it is on its way, so only its dispatch held the next
    one up.
    """
    topology = machine(cable("gpu0", "gpu1", holds=False), cable("gpu0", "gpu2", holds=False))
    steps = sr.simulate(
        copy_plan(topology, (0, 1), (0, 2)), topology, TENSORFLOW, DISPATCHED
    ).critical_path()

    assert {
        (LANE, "gpu0 device-to-device"): 0.5,
        (DISPATCH, "copy"): 0.5,
        (BANDWIDTH, "gpu0>gpu2 wire"): 4.0,
    } == totals(steps)


def test_time_lost_to_others_is_told_from_time_of_its_own():
    """Two flows through one cable take twice as long: half of it is the other's."""
    topology = machine(cable("gpu0", "cpu0"), cable("cpu0", "gpu1"), cable("cpu0", "gpu2"))
    steps = sr.simulate(copy_plan(topology, (0, 1), (0, 2)), topology, IDEAL).critical_path()

    assert {(BANDWIDTH, "gpu0>cpu0 wire"): 4.0, (SHARE, "gpu0>cpu0 wire"): 4.0} == totals(steps)


def test_a_recording_names_the_resource_that_was_shared():
    """Alone, the narrow cable to gpu2 is the limit; three flows through the first cable make that
    the limit.
    """
    topology = machine(
        cable("gpu0", "cpu0"),
        *(cable("cpu0", f"gpu{i}", RATE if i > 1 else RATE / 2) for i in (1, 2, 3)),
    )
    plan = copy_plan(topology, (0, 1), (0, 2), (0, 3))
    recording = record(plan, topology, IDEAL)
    by_result = totals(recording.result.critical_path())

    assert recording.result.seconds == 12.0
    assert {(BANDWIDTH, "cpu0>gpu1 wire"): 8.0, (SHARE, "cpu0>gpu1 wire"): 4.0} == by_result
    assert {(BANDWIDTH, "cpu0>gpu1 wire"): 8.0, (SHARE, "gpu0>cpu0 wire"): 4.0} == totals(
        recording.critical_path()
    )


def test_an_input_that_comes_late():
    topology = pair()
    steps = sr.simulate(copy_plan(topology, (0, 1)), topology, IDEAL, ready=2.0).critical_path()

    assert {(RELEASE, ""): 2.0, (BANDWIDTH, "gpu0>gpu1 wire"): 4.0} == totals(steps)


def test_memory_is_a_resource_like_any():
    """An add of two reads both and writes one: 1200 bytes."""
    topology = machine(cable("gpu0", "gpu1"), node("gpu0", memory=RATE))

    def write(b: PlanBuilder) -> None:
        b.add([b.input(0, 0, 100), b.input(0, 0, 100)])

    assert {(BANDWIDTH, "gpu0 memory"): 12.0} == totals(
        sr.simulate(plan_of(topology, write), topology, TENSORFLOW).critical_path()
    )


def test_a_plan_without_ops_has_no_path():
    topology = pair()

    assert sr.simulate(plan_of(topology, lambda _: None), topology).critical_path() == []


@pytest.mark.parametrize("spec", ["ring", "hierarchical_copy+packs=4", "nccl", "pscpu"])
def test_real_machines(spec):
    """Hundreds of steps, ties everywhere."""
    topology = sr.load_topology("dgx1v")
    plan = sr.compile(spec, sr.load_workload("bytes:8M"), sr.layout(topology))
    result = sr.simulate(plan, topology, "tensorflow", sr.load_calibration("dgx1p-tf2018"))
    steps = result.critical_path()

    assert result.seconds == pytest.approx(
        math.fsum(p.seconds for s in steps for p in s.parts), rel=1e-12
    )
    assert all(before.finish <= after.finish for before, after in itertools.pairwise(steps))
