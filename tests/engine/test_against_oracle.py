"""Every op of every plan starts and ends when the all-SimPy model says."""

from __future__ import annotations

import pytest
import simpy
from hypothesis import assume, given, settings, strategies as st
from tests.engine.oracle import Change, Oracle, Submission, Times, as_times
from tests.strategies import ANY, ROUND, Figures, Scene, calibrations, plans, readies, runtimes, scenes, topologies

from simreduce.engine import Fabric, Runtime
from simreduce.engine.calibration import Calibration
from simreduce.topology import Topology


def engine_times(
    topology: Topology,
    runtime: Runtime,
    calibration: Calibration,
    submissions: list[Submission],
    changes: list[Change],
) -> list[Times]:
    """What the fabric says when SimPy processes submit plans and change links."""
    env = simpy.Environment()
    fabric = Fabric(env, topology, calibration, runtime)
    done = {}

    def submit(number, submission):
        yield env.timeout(submission.at)
        done[number] = yield fabric.submit(submission.plan, submission.ready)

    def change(each):
        yield env.timeout(each.at)
        fabric.set_bandwidth(each.link, each.bandwidth)

    for number, submission in enumerate(submissions):
        env.process(submit(number, submission))
    for each in changes:
        env.process(change(each))
    env.run()
    return [as_times(done[number]) for number in range(len(submissions))]


def check(
    topology: Topology,
    runtime: Runtime,
    calibration: Calibration,
    submissions: list[Submission],
    changes: list[Change] = (),
) -> None:
    """Ready, start and finish of every op agree. Scenes whose order of events hangs on rounding are passed over."""
    oracle = Oracle(topology, runtime, calibration)
    expected = oracle.run(submissions, changes)
    assume(not oracle.unclear)
    actual = engine_times(topology, runtime, calibration, submissions, changes)
    for mine, theirs in zip(expected, actual, strict=True):
        assert mine.ready == pytest.approx(theirs.ready, rel=1e-9, abs=0)
        assert mine.start == pytest.approx(theirs.start, rel=1e-9, abs=0)
        assert mine.finish == pytest.approx(theirs.finish, rel=1e-9, abs=0)


def check_scene(scene: Scene) -> None:
    check(scene.topology, scene.runtime, scene.calibration, [Submission(scene.plan, scene.ready)])


@given(scenes(ANY))
@settings(max_examples=200)
def test_random_plans_on_random_machines(scene):
    """Figures that are nearly all different."""
    check_scene(scene)


@given(scenes(ROUND))
@settings(max_examples=200)
def test_random_plans_with_many_ties(scene):
    """Few, round figures: much happens at the same instant, and the tie rules decide."""
    check_scene(scene)


@st.composite
def _traffic(draw: st.DrawFn, figures: Figures):
    """Up to three plans that begin at different times on one machine whose links change meanwhile."""
    topology = draw(topologies(figures))
    devices = (*topology.devices, *topology.hosts)
    submissions = []
    for _ in range(draw(st.integers(1, 3))):
        plan = draw(plans(devices, figures, most_ops=16))
        submissions.append(Submission(plan, draw(readies(plan, figures)), at=draw(figures.delay)))
    submissions.sort(key=lambda submission: submission.at)
    changes = []
    for name in draw(st.lists(st.sampled_from([link.name for link in topology.links]), max_size=3, unique=True)):
        changes.append(Change(draw(figures.delay), name, draw(st.one_of(st.just(0.0), figures.bandwidth))))
        changes.append(Change(changes[-1].at + 2.0**-13, name, draw(figures.bandwidth)))
    return topology, draw(runtimes), draw(calibrations(figures)), submissions, changes


@given(_traffic(ANY))
@settings(max_examples=150)
def test_several_plans_while_links_change(traffic):
    """Submissions and cuts at times of their own, in the middle of whatever is moving."""
    check(*traffic)


@given(_traffic(ROUND))
@settings(max_examples=150)
def test_several_plans_and_changes_at_the_same_instants(traffic):
    """Ties across submissions go by submission, then op."""
    check(*traffic)
