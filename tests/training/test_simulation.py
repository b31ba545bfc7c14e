"""Steps composed of calls that take turns, against the simulation of every event."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.engine import IDEAL, Disturbance
from simreduce.engine.setup import Setup
from simreduce.plan import Plan
from simreduce.planners.strategy import parse_strategy
from simreduce.training import Profile, StepJob, method_for_strategy, simulate_step
from simreduce.training.calls import CallCost
from simreduce.training.simulation import compose_step
from simreduce.workload import Gradient, Layer, Model
from tests.thorough import examples

TIMES = st.integers(0, 40).map(lambda n: n * 1e-4)


@st.composite
def jobs(draw: st.DrawFn) -> StepJob:
    """Up to six layers, some without gradients and some with two."""
    count = draw(st.integers(1, 6))
    layers = [
        Layer(f"l{i}", tuple(Gradient(f"g{i}.{j}", 250 * k) for j, k in enumerate(sizes)))
        for i, sizes in enumerate(
            draw(st.lists(st.lists(st.integers(1, 40), max_size=2), min_size=count, max_size=count))
        )
    ]
    if not any(layer.gradients for layer in layers):
        layers[0] = Layer("l0", (Gradient("g0", 1000),))
    times = [draw(st.lists(TIMES, min_size=count, max_size=count)) for _ in range(2)]
    profile = Profile(tuple(times[0]), tuple(times[1]), "drawn")
    update, passes = draw(st.sampled_from([0.0, 3e-4])), draw(st.integers(1, 2))
    return StepJob(Model("m", tuple(layers)), profile, 1, update=update, accumulate=passes)


@settings(max_examples=examples(60), deadline=None)
@given(
    jobs(),
    st.sampled_from([0.0, 1e-4, 1e-3, 2.5e-3]),
    st.sampled_from([0, 5000, 60_000, 10**9]),
    st.sampled_from([1.0, 1.3]),
)
def test_the_composed_step_is_the_simulated_one(job, cycle, threshold, slow):
    """Of buffers that take what they take alone."""
    setup = Setup("switch:3,bandwidth=50MB/s,latency=10us", IDEAL)
    setup = setup.but(disturbance=Disturbance(slow={"gpu1": slow}))
    strategy = parse_strategy(f"nccl+fusion={threshold}")
    method = method_for_strategy(strategy, job.model.workload, setup.layout, cycle=cycle)
    known: dict[tuple[int, ...], CallCost] = {}

    def cost(buffer: tuple[int, ...]) -> CallCost:
        if buffer not in known:
            (plan,) = [r.plan for r in method.fusion.reductions(buffer)]
            assert isinstance(plan, Plan)
            known[buffer] = CallCost(setup.simulate(plan).seconds, 0)
        return known[buffer]

    composed = replace(method, fusion=method.fusion.unplanned)
    found = compose_step(job, composed, setup, cost).seconds

    assert job.reduces_once
    assert found == pytest.approx(simulate_step(job, method, setup).seconds, rel=1e-6)


def test_what_it_does_not_say():
    job = StepJob(Model("m", (Layer("l", (Gradient("g", 9),)),)), Profile((1.0,), (1.0,), "x"), 1)

    assert job.reduces_once
    assert not replace(job, barrier=False).reduces_once
    assert not replace(job, accumulate=2, no_sync=False).reduces_once
