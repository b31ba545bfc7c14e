"""Plans that are submitted again and again: nothing but the cost of submitting them is
different.
"""

from __future__ import annotations

from unittest import mock

import pytest
import simpy
from hypothesis import given, settings, strategies as st

from simreduce.engine import IDEAL, NOMINAL, TENSORFLOW, Fabric
from simreduce.engine.kernel import store
from simreduce.errors import Deadlock, InternalError
from simreduce.plan import Plan
from simreduce.testing import cable, copy_plan, machine, pair
from simreduce.testing.strategies import ANY, scenes
from simreduce.topology import Topology
from tests.thorough import examples

STAR = machine(*(cable(f"gpu{i}", "switch0", 100.0, 0.5) for i in range(4)))


def times(
    topology: Topology,
    plans: list[tuple[Plan, list[float]]],
    runtime,
    calibration=NOMINAL,
    *,
    resident,
    compile_it=False,
):
    """When each plan is done, which begins anew a while after it was done, as often as there are
    numbers.
    """
    env = simpy.Environment()
    fabric = Fabric(env, topology, calibration, runtime)
    done = []

    def again(i, plan, pauses):
        kept = fabric.resident(plan) if resident else None
        for pause in pauses:
            yield env.timeout(pause)
            yield kept.submit() if kept else fabric.submit(plan)
            done.append((i, float(env.now)))

    for i, (plan, pauses) in enumerate(plans):
        env.process(again(i, plan, pauses))
    if compile_it:
        fabric._store.compile()
    with mock.patch.object(store, "compiling_pays", return_value=compile_it):
        env.run()
    return done


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(0, 3),
            st.lists(st.floats(0.0, 10.0), min_size=1, max_size=5),
        ).filter(lambda x: x[0] != x[1]),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([IDEAL, TENSORFLOW]),
)
@settings(max_examples=examples(60))
def test_a_standing_plan_takes_as_long_as_one_that_is_new(copies, runtime):
    """Among others that share its links, and whatever it was the last time."""
    plans = [(copy_plan(STAR, (source, target)), pauses) for source, target, pauses in copies]
    new, kept = (sorted(times(STAR, plans, runtime, resident=s)) for s in (False, True))

    assert [i for i, _ in new] == [i for i, _ in kept]
    assert [t for _, t in kept] == pytest.approx([t for _, t in new], rel=1e-9)


@given(scenes(ANY))
@settings(max_examples=examples(40))
def test_any_plan_can_stand(scene):
    """With lanes, pipes and sums of its own; the third time it takes as long as the first."""
    arguments = (scene.topology, [(scene.plan, [0.0, 1.0, 1.0])], scene.runtime, scene.calibration)
    new, kept = (times(*arguments, resident=s) for s in (False, True))

    assert [t for _, t in kept] == pytest.approx([t for _, t in new], rel=1e-9)


def test_the_compiled_kernel_gives_the_same_bits():
    plans = [
        (copy_plan(STAR, (i, (i + 1 + k) % 4)), [0.1 * i, 0.3, 0.7 * k])
        for i in range(4)
        for k in range(3)
    ]

    assert times(STAR, plans, TENSORFLOW, resident=True) == times(
        STAR, plans, TENSORFLOW, resident=True, compile_it=True
    )


def test_what_else_is_submitted_goes_on_as_before():
    """A new plan beside a resident one shares its link, and has a timeline."""
    env = simpy.Environment()
    topology = pair()
    fabric = Fabric(env, topology, runtime=IDEAL)
    resident = fabric.resident(copy_plan(topology, (0, 1)))
    env.run(until=resident.submit())
    assert env.now == 4.0
    resident.submit()
    timeline = env.run(until=fabric.submit(copy_plan(topology, (0, 1))))

    assert 12.0 == env.now == timeline.finish.max()
    env.run(until=resident.submit())
    assert env.now == 16.0


def test_one_that_is_under_way_is_not_submitted():
    env = simpy.Environment()
    fabric = Fabric(env, pair(), runtime=IDEAL)
    resident = fabric.resident(copy_plan(pair(), (0, 1)))
    resident.submit()
    env.run(until=1.0)

    with pytest.raises(InternalError, match="while it was under way"):
        resident.submit()


def test_one_that_can_never_finish_is_a_deadlock():
    env = simpy.Environment()
    fabric = Fabric(env, pair(), runtime=IDEAL)
    resident = fabric.resident(copy_plan(pair(), (0, 1)))
    env.run(until=resident.submit())
    fabric.set_bandwidth("gpu0>gpu1", 0.0)
    resident.submit()

    with pytest.raises(Deadlock, match="no bandwidth on gpu0>gpu1"):
        env.run()
