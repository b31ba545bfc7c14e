"""Every op of every plan starts and ends when the all-SimPy model says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import simpy
from hypothesis import assume, given, settings, strategies as st

import simreduce as sr
from simreduce.engine import IDEAL, NCCL, NOMINAL, TENSORFLOW, Calibration, Fabric, Runtime
from simreduce.engine.setup import Setup
from simreduce.plan import Kind
from simreduce.testing.strategies import (
    ANY,
    ROUND,
    FigureRanges,
    SimulationInput,
    calibrations,
    plans,
    readies,
    runtimes,
    scenes,
    topologies,
)
from simreduce.topology import Topology
from simreduce.workload import Gradient, Workload
from tests.covering import covering
from tests.engine.oracle import Change, Oracle, Submission, Times, as_times
from tests.thorough import examples


def engine_times(
    topology: Topology,
    runtime: Runtime,
    calibration: Calibration,
    submissions: list[Submission],
    changes: Sequence[Change],
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
    changes: Sequence[Change] = (),
) -> bool:
    """Ready, start and finish of every op agree.

    Returns False, and compares nothing, when rounding could decide the order of events.
    """
    oracle = Oracle(topology, runtime, calibration)
    expected = oracle.run(submissions, changes)
    if oracle.unclear:
        return False
    actual = engine_times(topology, runtime, calibration, submissions, changes)
    for mine, theirs in zip(expected, actual, strict=True):
        assert mine.ready == pytest.approx(theirs.ready, rel=1e-9, abs=0)
        assert mine.start == pytest.approx(theirs.start, rel=1e-9, abs=0)
        assert mine.finish == pytest.approx(theirs.finish, rel=1e-9, abs=0)
    return True


def check_scene(scene: SimulationInput) -> bool:
    return check(
        scene.topology, scene.runtime, scene.calibration, [Submission(scene.plan, scene.ready)]
    )


@pytest.mark.parametrize("strategy", ["torus_2d/ring", "halving_doubling/recursive_doubling"])
def test_ports_that_several_ranks_of_two_machines_share(strategy):
    """Flows cross several full links, which are raised one after another when one of the flows
    ends.
    """
    machines = sr.load_topology("dgx1vx2")
    plan = sr.compile(strategy, Workload("one", (Gradient("gradient", 384),)), sr.layout(machines))
    ready = [0.0] * int((plan.kind == Kind.INPUT).sum())
    assert check(machines, TENSORFLOW, NOMINAL, [Submission(plan, ready)])


@given(scenes(ANY))
@settings(max_examples=examples(200))
def test_random_plans_on_random_machines(scene):
    """Figures that are nearly all different."""
    assume(check_scene(scene))


@given(scenes(ROUND))
@settings(max_examples=examples(200))
def test_random_plans_with_many_ties(scene):
    """Few, round figures: much happens at the same instant, and the tie rules decide."""
    assume(check_scene(scene))


@st.composite
def _traffic(draw: st.DrawFn, figures: FigureRanges):
    """Up to three plans that begin at different times on one machine whose links change
    meanwhile.
    """
    topology = draw(topologies(figures))
    devices = (*topology.devices, *topology.hosts)
    submissions = []
    for _ in range(draw(st.integers(1, 3))):
        plan = draw(plans(devices, figures, most_ops=16))
        submissions.append(Submission(plan, draw(readies(plan, figures)), at=draw(figures.delay)))
    submissions.sort(key=lambda submission: submission.at)
    changes = []
    for name in draw(
        st.lists(st.sampled_from([link.name for link in topology.links]), max_size=3, unique=True)
    ):
        changes.append(
            Change(draw(figures.delay), name, draw(st.one_of(st.just(0.0), figures.bandwidth)))
        )
        changes.append(Change(changes[-1].at + 2.0**-13, name, draw(figures.bandwidth)))
    calibration = draw(calibrations(figures))
    # Which no file of a calibration has: NCCL_BUFFSIZE says it.
    nccl = replace(calibration.nccl, buffer=draw(st.sampled_from([1 << 10, 1 << 22])))
    return topology, draw(runtimes), replace(calibration, nccl=nccl), submissions, changes


@given(_traffic(ANY))
@settings(max_examples=examples(150))
def test_several_plans_while_links_change(traffic):
    """Submissions and cuts at times of their own, in the middle of whatever is moving."""
    assume(check(*traffic))


@given(_traffic(ROUND))
@settings(max_examples=examples(150))
def test_several_plans_and_changes_at_the_same_instants(traffic):
    """Ties across submissions go by submission, then op."""
    assume(check(*traffic))


# Shapes with exact ties: every device does the same at the same time.

_DISPATCH = Calibration(
    "dispatch", dispatch={"copy": 5e-6, "add": 3e-6, "concat": 2e-6, "slice": 1e-6}
)
_SPECS = (
    "ring",
    "xring",
    "xring#2",
    "hierarchical_copy+packs=3",
    "pscpu",
    "psgpu#2",
    "copy_to_gpus+packs=3",
    "reduce_to_one",
)
_ON_A_RING = ("ring", "xring", "xring#2", "pscpu")


def check_strategy(
    machine: str, workload: str, spec: str, runtime: Runtime, calibration: Calibration
) -> None:
    topology = sr.load_topology(machine)
    plan = sr.compile(spec, sr.load_workload(workload), sr.layout(topology))
    ready = [0.0] * int(np.count_nonzero(plan.kind == Kind.INPUT))

    assert check(topology, runtime, calibration, [Submission(plan, ready)])


@pytest.mark.parametrize(
    ("shape", "runtime", "calibration"),
    covering(
        [
            *(("dgx1v", spec) for spec in _SPECS),
            *(("switch:6,latency=3 us", spec) for spec in _SPECS),
            *(("ring:6,latency=2 us", spec) for spec in _ON_A_RING),
        ],
        [IDEAL, TENSORFLOW, NCCL],
        [NOMINAL, _DISPATCH],
    ),
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else value.name,
)
def test_every_shape_of_reduction(shape, runtime, calibration):
    """Rings, stars, shuffles and trees, where nearly every instant is a tie."""
    machine, spec = shape
    check_strategy(machine, "bytes:300K", spec, runtime, calibration)


@pytest.mark.parametrize(
    ("machine", "spec"),
    [
        ("dgx-h100", "nccl:nvls+channels=16"),
        ("dgx1v", "nccl:ring+ll+channels=7"),
        ("dgx1v", "nccl:tree+simple+channels=2"),
    ],
)
def test_every_program_of_nccl(machine, spec):
    check_strategy(machine, "bytes:300K", spec, TENSORFLOW, NOMINAL)


@pytest.mark.parametrize(
    ("spec", "collective"),
    [
        ("oneshot", "all_reduce"),
        ("multimem", "all_reduce"),
        ("symmetric:agxll_r", "all_reduce"),
        ("symmetric:engine", "all_gather"),
        ("symmetric:llmc", "all_gather"),
        ("symmetric:stmc", "all_gather"),
        ("symmetric:ldmc", "reduce_scatter"),
        ("symmetric:engine", "all_to_all"),
    ],
)
def test_kernels_and_copy_engines(spec, collective):
    """Also with a switch that multicasts what engines write."""
    setup = Setup("dgx-h100", NCCL)
    plan = setup.compile(spec, sr.load_workload("bytes:300K"), collective)
    ready = [0.0] * int(np.count_nonzero(plan.kind == Kind.INPUT))

    assert check(setup.topology, NCCL, NOMINAL, [Submission(plan, ready)])


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["hierarchical_copy", "xring#2+packs=2"])
def test_a_whole_model(spec):
    """Thousands of ops, queues hundreds long: errors of rounding do not pile up to another order of
    events.
    """
    check_strategy("dgx1v", "resnet50", spec, TENSORFLOW, _DISPATCH)
