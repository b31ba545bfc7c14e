"""`Disturbance.tolerance`: flows leave links early, and times are off by no more than it says."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import simreduce as sr
from simreduce.engine import NOMINAL, bounds
from simreduce.engine.disturbance import CALM, MOST_TOLERANCE, Disturbance
from simreduce.engine.kernel import store
from simreduce.engine.kernel.store import KernelStore
from simreduce.engine.lowering import lower
from simreduce.engine.lowering.calls import Calls
from simreduce.engine.lowering.resources import Resources
from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.testing.strategies import ANY, ROUND, scenes
from simreduce.workload import Gradient, Workload
from tests.simulating import record, simulate
from tests.thorough import examples

any_scene = st.one_of(scenes(ROUND), scenes(ANY))


def ends(amounts: list[float], tolerance: float) -> list[float]:
    """When flows of so many bytes end that share one link of 1 byte/s from 0 s on."""
    n = len(amounts)
    nothing, zeros = np.zeros(0, dtype=np.int64), np.zeros(n)
    calls = Calls(
        overhead=zeros,
        work=zeros,
        latency=zeros,
        holds=zeros > 0,
        cap=np.full(n, inf),
        paced=zeros > 0,
        lane_start=np.zeros(n + 1, dtype=np.int64),
        early=np.zeros(n, dtype=np.int64),
        lanes=nothing,
        use_start=np.arange(n + 1),
        uses=np.zeros(n, dtype=np.int64),
        weight=np.ones(n),
    )
    store = KernelStore([1.0], tolerance=tolerance)
    ids = np.arange(n)
    starts = np.zeros(n + 1, dtype=np.int64)
    waits = np.ones(n, dtype=np.int32)
    store.append(calls, ids, np.array(amounts), waits, starts, nothing, ids, zeros, 0)
    assert store.advance(0.0, inf)[0]
    return list(store.state.finish)


def test_flows_that_would_end_within_the_tolerance_leave_together():
    """Three share 1 byte/s. The first ends after 3 x 1,000 s; what the second has left takes 30 s
    at the rate that it has, 1 % of its time until then, and the third 300 s. The second is then
    done after those 30 s.
    """
    assert ends([1000.0, 1010.0, 1100.0], 0.0) == [3000.0, 3020.0, 3110.0]
    assert ends([1000.0, 1010.0, 1100.0], 0.009) == [3000.0, 3020.0, 3110.0]
    assert ends([1000.0, 1010.0, 1100.0], 0.01) == [3000.0, 3030.0, 3100.0]
    assert ends([1000.0, 1010.0, 1100.0], 0.1) == [3000.0, 3030.0, 3300.0]


@given(scene=any_scene, tolerance=st.sampled_from([1e-4, 1e-2, MOST_TOLERANCE]))
@settings(max_examples=examples(60))
def test_no_op_ends_earlier_than_alone_but_for_the_tolerance(scene, tolerance):
    """At no rate that it can have: what is dropped would take that part of its time at the last
    one.
    """
    found = simulate(
        scene.plan, scene.topology, scene.runtime, scene.calibration, scene.ready,
        Disturbance(tolerance=tolerance),
    )  # fmt: skip
    resources = Resources.of(scene.topology, scene.calibration)
    lowered = lower(scene.plan, scene.topology, scene.runtime, scene.calibration, resources)
    alone, _ = bounds.alone(lowered, resources)
    took = found.finish - found.ready

    assert (took * (1.0 + tolerance) >= alone * (1.0 - 1e-9)).all()
    assert found.floors.critical_path <= found.seconds
    assert found.disturbance.startswith(f"total to {tolerance * 100:.4g}%")


@pytest.mark.slow
@given(scene=any_scene)
@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_interpreted_and_compiled_end_the_same_ops_early(scene):
    """To the bit."""
    arguments = scene.plan, scene.topology, scene.runtime, scene.calibration, scene.ready
    disturbance = Disturbance(tolerance=1e-2)
    with mock.patch.object(store, "compiling_pays", return_value=False):
        interpreted = simulate(*arguments, disturbance)
    with mock.patch.object(store, "compiling_pays", return_value=True):
        assert interpreted.to_json() == simulate(*arguments, disturbance).to_json()


def test_parts_that_differ_by_an_element_take_less_work_and_nearly_the_same_time():
    """Direct exchange on a torus: 49 does not divide 16 Mi, and each end changes many rates."""
    topology = sr.load_topology("torus:7x7")
    plan = sr.compile("direct", sr.load_workload("bytes:64M"), sr.layout(topology))
    exact = simulate(plan, topology, "ideal")
    near = simulate(plan, topology, "ideal", NOMINAL, 0.0, Disturbance(tolerance=1e-3))

    assert near.seconds == pytest.approx(exact.seconds, rel=1e-3)
    assert near.seconds != exact.seconds


@settings(deadline=None, max_examples=examples(250))
@given(
    st.sampled_from(["torus:5x4", "torus:3x3x3", "switch:9", "fat_tree:16,radix=4", "dgx1vx3",
                     "dgx-h100x2,fabric=rail_optimised"]),
    st.sampled_from(["direct", "one_shot+packs=3", "direct+mean", "ring", "bidirectional_ring",
                     "double_tree+chunk=64KiB"]),
    st.sampled_from(["ideal", "tensorflow", "nccl"]),
    st.integers(1 << 18, 1 << 26),
    st.sampled_from([1e-4, 1e-3, 1e-2]),
)  # fmt: skip
def test_the_whole_is_off_by_the_tolerance_at_most(machine, strategy, runtime, nbytes, tolerance):
    """Of odd sizes; exactly where messages queue or many wait for each other."""
    setup = Setup(machine, runtime)
    work = Workload("odd", (Gradient("odd", nbytes // 4),))
    plan = setup.compile(strategy, work)
    exact = setup.find_seconds(plan)
    near = setup.but(disturbance=Disturbance(tolerance=tolerance)).find_seconds(plan)

    direct = runtime == "ideal" and strategy.startswith(("direct", "one_shot"))
    assert near == pytest.approx(exact, rel=tolerance if direct else 1e-15)


@pytest.mark.parametrize("machine", ["dgx-h100x6", "dgx1vx3"])
def test_queues_keep_their_order(machine):
    """What ends a little early would take 62 and 28 % off these."""
    setup = Setup(machine)
    plan = setup.compile("direct", Workload("odd", (Gradient("odd", 12_345_676 // 4),)))
    near = setup.but(disturbance=Disturbance(tolerance=1e-3))
    assert near.find_seconds(plan) == setup.find_seconds(plan)


def test_a_tolerance_is_a_small_part_and_recordings_are_exact():
    """Both say what is wrong."""
    topology = sr.load_topology("switch:3")
    plan = sr.compile("ring", sr.load_workload("bytes:3M"), sr.layout(topology))
    near = Disturbance(tolerance=1e-3)

    assert near.calm
    assert not replace(near, jitter=0.1).calm
    assert CALM.calm
    with pytest.raises(InputError, match=r"tolerance must be between 0 and 0\.1, not 0\.5"):
        Disturbance(tolerance=0.5)
    with pytest.raises(InputError, match="leave the tolerance out"):
        record(plan, topology, disturbance=near)
