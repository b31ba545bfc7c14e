"""Simulations up to a limit, and the floors of a part of a plan."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

import simreduce as sr
from simreduce.engine import AtLeast, Disturbance, simulator as simulation
from simreduce.engine.disturbance import CALM
from simreduce.engine.result import ROUNDED
from simreduce.engine.runtime import NOMINAL
from simreduce.errors import Deadlock
from simreduce.plan import PlanBuilder, plan as part
from simreduce.plan.plan import part_for
from simreduce.testing import NO_CONTRACT
from simreduce.testing.strategies import ANY, ONE_WIRE, ROUND, scenes
from tests.simulating import simulator
from tests.thorough import examples


def needs(plan, ops):
    """What some ops wait for, directly or not, by the plan's own rows."""
    found, left = set(), list(ops)
    while left:
        op = left.pop()
        if op not in found:
            found.add(op)
            starts = plan.control_start[op], plan.control_start[op + 1]
            left += [*plan.operands_of(op), *plan.controls[slice(*starts)].tolist()]
    return sorted(found)


@settings(max_examples=examples(40), deadline=None)
@given(scenes(ANY), st.data(), st.booleans())
def test_a_part_has_all_that_its_ops_wait_for(scene, data, compiled):
    plan = scene.plan
    ops = data.draw(st.lists(st.integers(0, len(plan) - 1), min_size=1, max_size=3))
    with mock.patch.object(part, "worth_compiling", return_value=compiled):
        found = part_for(plan, np.array(ops))
    kept = needs(plan, ops)

    assert len(found) == len(kept)
    for new, old in enumerate(kept):
        assert found.describe(new).split(" ", 2)[2] == plan.describe(old).split(" ", 2)[2]
        assert [kept[v] for v in found.operands_of(new)] == plan.operands_of(old)
    streams = set(plan.stream[kept].tolist()) - {-1}
    for stream in streams:  # in the same order
        assert [kept[op] for op in np.flatnonzero(found.stream == stream)] == [
            op for op in kept if plan.stream[op] == stream
        ]


@settings(max_examples=examples(60), deadline=None)
@given(
    st.one_of(scenes(ROUND), scenes(ANY)),
    st.floats(0.0, 2.0),
    st.booleans(),
    st.sampled_from([0.0, 0.3]),
)
def test_within_the_limit_every_bit_is_the_same_and_beyond_it_is_a_bound(
    scene, share, in_parts, jitter
):
    plan, disturbance = scene.plan, Disturbance(jitter=jitter, seed=3)
    alone = simulator(scene.topology, scene.runtime, scene.calibration, disturbance)
    try:
        full = alone.simulate(plan, scene.ready)
    except Deadlock:
        assume(False)
    limit = full.seconds * share
    with mock.patch.object(simulation, "_LARGE", 0 if in_parts else 1 << 30):
        found = alone.simulate_within(plan, limit, scene.ready)

    assert alone.find_floor(plan).seconds <= full.seconds
    if isinstance(found, AtLeast):
        assert limit <= full.seconds * (1 + ROUNDED)
        assert limit <= found.seconds * (1 + ROUNDED)
        assert found.seconds <= full.seconds
    else:
        assert full.seconds <= limit
        assert found.to_json() == full.to_json()


def test_lanes_are_numbered_alike_though_a_part_was_looked_at_first():
    b = PlanBuilder(("gpu0", "gpu1"))
    first, other = b.input(0, 0, 8), b.input(1, 0, 8)
    b.output(b.copy(first, 1))
    b.output(b.copy(other, 0))  # which needs nothing of the other
    plan = b.finish(NO_CONTRACT)
    alone = simulator(sr.load_topology("switch:2"), ONE_WIRE, NOMINAL, CALM)
    with mock.patch.object(simulation, "_LARGE", 0):
        lowered, _ = simulation._carry_out(plan, alone.fabric(plan), 0.0, limit=1.0)

    assert lowered.lane_names == alone.fabric(plan).lower(plan).lane_names


def test_a_bound_says_what_sets_it():
    topology, workload = sr.load_topology("switch:4"), sr.load_workload("bytes:1MiB")
    setup = sr.Setup(topology, "ideal")
    ring, star = (setup.compile(name, workload) for name in ("ring", "reduce_to_one"))
    floors = setup.simulate(ring).floors, setup.simulate(star).floors

    assert setup.simulate_within(ring, floors[0].seconds / 2) == AtLeast(
        pytest.approx(floors[0].critical_path), "critical path"
    )
    assert setup.simulate_within(star, floors[1].seconds / 2) == AtLeast(
        pytest.approx(floors[1].seconds), "busiest link"
    )
    slowest = setup.simulate(star).seconds
    assert floors[1].seconds < 0.999 * slowest
    late = setup.simulate_within(star, 0.999 * slowest)
    assert late == AtLeast(0.999 * slowest, "simulated so far")
