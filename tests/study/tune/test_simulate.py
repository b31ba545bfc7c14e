"""What strategies take at least."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.engine import AtLeast, Disturbance
from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.planners.strategy import parse_strategy
from simreduce.study.ranking import Question
from simreduce.study.scenario import BY_STRATEGY
from simreduce.study.tune.rank import candidates
from simreduce.study.tune.simulate import lower_bound, simulate_up_to
from simreduce.workload import Gradient, Workload
from tests.thorough import examples

MACHINES = ("switch:8", "dgx1v", "p3-16xlargex2", "h100-mesh-4", "dgx-a100x2")
SETUPS = {
    (name, runtime): Setup(name, runtime) for name in MACHINES for runtime in (BY_STRATEGY, "ideal")
}
WORKLOADS = st.lists(st.integers(1, 1 << 20), min_size=1, max_size=5).map(
    lambda sizes: Workload("some", tuple(Gradient(f"g{i}", n) for i, n in enumerate(sizes)))
)


@settings(max_examples=examples(40), deadline=None)
@given(st.sampled_from(sorted(SETUPS, key=str)), WORKLOADS, st.floats(0.0, 1.5), st.data())
def test_no_strategy_is_faster_than_its_bound_and_limits_change_nothing_below_them(
    name, workload, share, data
):
    setup = SETUPS[name]
    strategy = data.draw(st.sampled_from(candidates(setup.layout)))
    setup = setup.running(strategy).but(
        disturbance=Disturbance(jitter=data.draw(st.sampled_from([0.0, 0.2])), seed=1)
    )
    try:
        question = Question(strategy, workload, setup)
        full = simulate_up_to(question, float("inf"))
    except InputError:
        return
    assert not isinstance(full, AtLeast)
    seconds = full.result.seconds
    found = simulate_up_to(question, seconds * share)

    assert lower_bound(question).seconds <= seconds
    if isinstance(found, AtLeast):
        assert share <= 1.0 + 1e-9
        assert found.seconds <= seconds
    else:
        assert share >= 1.0
        assert found.strategy == full.strategy
        result = setup.simulate(full.plan)
        for run in (found.result, full.result):
            assert run[:-1] == (result.seconds, result.floors, result.links, result.lanes)
            assert run.timeline.finish.tobytes() == result.finish.tobytes()
        assert setup.find_seconds(full.plan) == setup.record(full.plan).result.seconds == seconds


@pytest.mark.parametrize("text", ["chain", "double_tree", "ring/double_tree", "binary_tree"])
def test_a_bound_without_a_chunk_size_holds_for_all(text):
    setup = Setup("dgx1vx2")
    workload = Workload("one", (Gradient("g", 1 << 22),))
    bound = lower_bound(Question(parse_strategy(text), workload, setup)).seconds
    times = []
    for size in ("64KiB", "256KiB", "1MiB", "8MiB"):
        sized = parse_strategy(f"{text}+chunk={size}")
        times.append(setup.simulate(setup.compile(sized, workload)).seconds)
        assert bound <= lower_bound(Question(sized, workload, setup)).seconds <= times[-1]

    assert bound > 0.3 * min(times)
