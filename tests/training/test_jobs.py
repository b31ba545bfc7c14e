"""Several jobs on one fabric: against the oracle, by hand, and alone as ever."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings, strategies as st

import simreduce.training.shared_fabric
from simreduce.engine import IDEAL, TENSORFLOW
from simreduce.engine.background import Stream
from simreduce.engine.lowering.resources import Resources
from simreduce.engine.setup import BY_STRATEGY, Setup
from simreduce.engine.simulator import step_cost
from simreduce.errors import InputError
from simreduce.plan import Contract, Kind, PlanBuilder, side_by_side
from simreduce.planners.nccl import Settings
from simreduce.planners.strategy import parse_strategy
from simreduce.testing.strategies import ANY, ROUND, calibrations, plans, topologies
from simreduce.topology import load_topology
from simreduce.training import method_for_strategy, simulate_step
from simreduce.training.calls import Method, Reduction
from simreduce.training.shared_fabric import Job, fairness, simulate_jobs
from simreduce.workload.loader import load_workload
from tests.engine.oracle import Oracle, Submission
from tests.thorough import examples
from tests.training.small import job as small_job

FOUR = "dgx1vx4,fabric=switch,nics=1"


@st.composite
def _scenes(draw: st.DrawFn, figures):
    topology = draw(topologies(figures))
    devices = (*topology.devices, *topology.hosts)
    # The oracle knows no NCCL variables, by which a setup limits the reach of peers.
    nccl = Settings(p2p_level="SYS")
    setup = Setup(topology, TENSORFLOW, draw(calibrations(figures)), nccl=nccl)
    jobs = [
        Job(str(i), setup, draw(plans(devices, figures, most_ops=16)), start=draw(figures.delay))
        for i in range(draw(st.integers(1, 3)))
    ]
    return sorted(jobs, key=lambda each: each.start)


def _check(jobs):
    setup = jobs[0].setup
    oracle = Oracle(setup.topology, setup.runtime, setup.calibration)
    inputs = [[0.0] * int((each.plan.kind == Kind.INPUT).sum()) for each in jobs]

    def begun(job):
        """When the first op may start."""
        return job.start + step_cost(job.plan, setup.topology, setup.runtime, setup.calibration)

    asked = zip(jobs, inputs, strict=True)
    expected = oracle.run([Submission(job.plan, ready, at=begun(job)) for job, ready in asked])
    if oracle.unclear:
        return False
    for job, theirs, mine in zip(jobs, expected, simulate_jobs(jobs), strict=True):
        end = max(theirs.finish, default=begun(job))
        assert mine.times[0] == pytest.approx(end - job.start, rel=1e-9, abs=1e-15)
    return True


@pytest.mark.parametrize("figures", [ANY, ROUND], ids=["any", "round"])
def test_jobs_on_random_machines_agree_with_the_oracle(figures):
    @given(_scenes(figures))
    @settings(max_examples=examples(80))
    def agree(jobs):
        assume(all(len(job.plan) for job in jobs))
        assume(_check(jobs))

    agree()


def reduction(name, nodes, machine=FOUR, size="16M", strategy="nccl", **more):
    chosen = parse_strategy(strategy)
    setup = Setup(machine, BY_STRATEGY).running(chosen)
    ranks = [rank for node in nodes for rank in setup.layout.tasks[node]]
    setup = setup.but(part=setup.layout.only(ranks))
    return Job(name, setup, setup.compile(chosen, load_workload(f"bytes:{size}")), **more)


@pytest.mark.parametrize("strategy", ["nccl", "ring", "collective"])
def test_a_job_alone_takes_what_simulating_it_takes_to_the_bit(strategy):
    job = reduction("a", (0, 1), strategy=strategy, count=3)
    (found,) = simulate_jobs([job])

    assert found.times[0] == found.alone == job.setup.simulate(job.plan).seconds
    assert found.slowdown == pytest.approx(1.0, rel=1e-12)
    assert found.shared == ()


LEAVES = "dgx1vx8,fabric=fat_tree,radix=8,oversubscription=2"


def test_loads_add_up_to_the_bytes_on_a_link_of_several_jobs():
    """Each in the time in which the job runs."""
    first = reduction("a", (0, 4), LEAVES, count=2)
    second = reduction("b", (1, 5), LEAVES, start=0.5 * simulate_jobs([first])[0].alone)
    outcomes = simulate_jobs([first, second])
    setup = first.setup
    best = Resources.of(setup.topology, setup.calibration).best
    rates = dict(zip(best.names, best.rates, strict=True))
    for found in outcomes:
        [share] = [each for each in found.shared if each.link == found.load.link]
        moved = share.own * sum(found.times) * rates[share.link]
        assert moved == pytest.approx(sum(found.load.rates) * found.load.every)
    assert outcomes[0].load.rates[0] > 0.0 == outcomes[1].load.rates[0]


def test_a_job_that_moves_nothing_has_no_load():
    """Whatever the links of its machine could carry."""
    job = reduction("a", (0,))
    nothing = PlanBuilder(job.plan.devices).finish(Contract.of("compute", []))
    job = replace(job, plan=nothing)
    (found,) = simulate_jobs([job])
    assert {0.0} == set(found.load.rates)


@pytest.fixture
def asked(monkeypatch):
    """The names of jobs that are simulated alone."""
    found, simulate_alone = [], simreduce.training.shared_fabric._alone

    def watched(job):
        found.append(job.name)
        return simulate_alone(job)

    monkeypatch.setattr("simreduce.training.shared_fabric._alone", watched)
    return found


@pytest.mark.parametrize("strategy", ["nccl", "ring", "collective"])
@pytest.mark.parametrize("machine", [LEAVES, f"{LEAVES},congestion=tree"])
def test_of_jobs_that_are_alike_one_is_simulated_alone(strategy, machine, asked):
    nodes = [(i, i + 4) for i in range(3)] + [(7, 3)]
    jobs = [reduction(str(i), each, machine, "4M", strategy) for i, each in enumerate(nodes)]
    jobs[1] = replace(jobs[1], count=3)
    found = simulate_jobs(jobs)

    assert "1" not in asked
    assert "2" not in asked
    for job, each in zip(jobs, found, strict=True):
        assert each.alone == job.setup.simulate(job.plan).seconds


@pytest.mark.parametrize("change", [{"size": "5M"}, {"nodes": (1, 2, 3)}, {"slow": True}])
def test_jobs_that_differ_are_each_simulated_alone(change, asked):
    machine = LEAVES
    if "slow" in change:
        change, machine = {}, load_topology(machine)
        machine = machine.scale_links(
            {each.name: 0.5 for each in machine.links if each.source.startswith("n1.")}
        )
    first = reduction("a", (0, 4), machine)
    second = reduction("b", **{"nodes": (1, 5), "machine": machine} | change)
    found = simulate_jobs([first, second])

    assert asked == ["a", "b"]
    assert found[0].alone != found[1].alone
    for job, each in zip((first, second), found, strict=True):
        assert each.alone == job.setup.simulate(job.plan).seconds


@pytest.mark.parametrize("slow", [{}, {"n2.gpu0": 2.0}])
@pytest.mark.parametrize("barrier", [True, False])
def test_steps_that_are_alike_take_what_each_takes_by_itself(barrier, slow, asked):
    strategy, jobs = parse_strategy("nccl+ddp=1"), []
    step = small_job([4096, 8192], [4, 4], [4, 4], barrier=barrier, slow=slow)
    for node in range(4):
        setup = Setup(FOUR, BY_STRATEGY).running(strategy)
        setup = setup.but(part=setup.layout.only(setup.layout.tasks[node]))
        method = method_for_strategy(strategy, step.model.workload, setup.layout)
        jobs.append(Job(f"{node}", setup, method.plan, (step, method), count=5))

    expected = [simulate_jobs([job])[0].alone for job in jobs]
    asked.clear()
    assert [each.alone for each in simulate_jobs(jobs)] == expected
    assert asked == (["0", "2"] if slow else ["0"])
    assert (expected[2] > expected[1]) == bool(slow)


def test_steps_whose_reductions_meet_are_each_simulated_alone(asked):
    """Two sends at once over two links are alike one by one to two over the same link."""
    machine = load_topology("switch:6,bandwidth=1MiB/s,latency=0us")
    step, jobs = small_job([8, 8], [1, 1], [1, 1]), []
    for name, pairs in (("apart", ((0, 1), (2, 3))), ("together", ((4, 5), (4, 5)))):
        sends = []
        for source, target in pairs:
            b = PlanBuilder(machine.devices)
            b.copy(b.input(source, 0, 2048), target)
            sends.append(b.finish(Contract.of("nothing", [])))
        moves = tuple(Reduction(each, (i,), (*range(6),)) for i, each in enumerate(sends))
        method = Method("ring", side_by_side(sends, machine.devices), moves)
        jobs.append(Job(name, Setup(machine, IDEAL), method.plan, (step, method)))
    first, second = simulate_jobs(jobs)

    assert asked == ["apart", "together"]
    assert second.alone > first.alone


@pytest.mark.parametrize("barrier", [True, False])
def test_a_step_alone_takes_what_simulating_it_takes_to_the_bit(barrier):
    setup = Setup("switch:2,bandwidth=1MiB/s,latency=0us", TENSORFLOW)
    step = small_job([8, 8], [4, 4], [4, 4], barrier=barrier)
    method = method_for_strategy(parse_strategy("ring"), step.model.workload, setup.layout)
    (found,) = simulate_jobs([Job("a", setup, method.plan, (step, method), count=5)])

    assert found.times[-1] == found.alone == simulate_step(step, method, setup).seconds


def test_two_that_share_a_link_half_and_half_take_twice_as_long():
    """Four GPUs on a switch; both jobs send over the one link between two switches."""
    setup = Setup("pcie-dual-root-4", TENSORFLOW)
    ranks = setup.layout.ranks
    jobs = []
    for name, pair in (("a", (0, 2)), ("b", (1, 3))):
        mine = setup.but(part=setup.layout.only(pair))
        jobs.append(Job(name, mine, mine.compile("ring", load_workload("bytes:64M"))))
    first, second = simulate_jobs(jobs)

    assert len(ranks) == 4
    assert first.slowdown == pytest.approx(second.slowdown, rel=1e-6)
    assert first.slowdown == pytest.approx(2.0, rel=0.02)
    assert fairness([first.slowdown, second.slowdown]) == pytest.approx(1.0)
    share = first.shared[0]
    assert share.others["b"] == pytest.approx(share.own)
    assert share.total == pytest.approx(1.0, rel=0.02)


def test_jobs_on_nodes_of_their_own_on_a_full_switch_do_not_meet():
    found = simulate_jobs([reduction("a", (0, 1)), reduction("b", (2, 3))])

    assert [each.slowdown for each in found] == [1.0, 1.0]
    assert not any(each.shared for each in found)


def test_a_job_that_begins_later_meets_only_what_still_runs():
    first = reduction("a", (0, 1), count=1)
    alone = first.setup.simulate(first.plan).seconds
    shared = [first, reduction("b", (0, 1), start=2 * alone)]

    assert [each.slowdown for each in simulate_jobs(shared)] == pytest.approx([1.0, 1.0])


def test_an_incast_at_one_node_takes_its_port_from_the_job_there():
    jobs = [reduction("a", (0, 1), count=3), reduction("b", (2, 3), count=3)]
    incast = Stream("incast", tuple((f"n{i}.gpu0", "n0.gpu1") for i in (1, 2, 3)), 1 << 20)
    first, second = simulate_jobs(jobs, [incast])

    assert first.slowdown > 1.5
    assert second.slowdown < first.slowdown
    assert "incast" in first.shared[0].others


def test_bursts_and_random_messages_offer_what_they_say():
    """A link that offers less than it has slows a job down by at most that part."""
    job = reduction("a", (0, 1), size="64M", count=4)
    pairs = (("n2.gpu0", "n0.gpu0"),)
    for stream in (
        Stream("rate", pairs, 1 << 20, rate=2e9, seed=3),
        Stream("every", pairs, 1 << 20, period=(1 << 20) / 2e9),
    ):
        (found,) = simulate_jobs([job], [stream])
        part = found.shared[0].others[stream.name]
        assert 1.0 < found.slowdown < 1.25
        assert part == pytest.approx(2e9 / 12.5e9, rel=0.3)


@pytest.mark.parametrize("kind", ["reduction", "step"])
def test_an_interrupt_leaves_the_repetitions_so_far(kind):
    """Once every job has one; what is done by then is what it is without the interrupt."""
    jobs = [reduction("a", (0, 1), count=9), reduction("b", (2, 3), size="64M", count=3)]
    if kind == "step":
        step = small_job([4096, 8192], [4, 4], [4, 4])
        setup = jobs[0].setup
        method = method_for_strategy(parse_strategy("nccl"), step.model.workload, setup.layout)
        jobs[0] = Job("a", setup, method.plan, (step, method), count=9)
    whole = simulate_jobs(jobs)

    def stop(when):
        def progress(done, total):
            assert total == 12
            seen.append(done)
            if when(done):
                raise KeyboardInterrupt

        return progress

    seen = []
    with pytest.raises(KeyboardInterrupt):
        simulate_jobs(jobs, progress=stop(lambda done: done == 1))
    partly = simulate_jobs(jobs, progress=stop(lambda done: done == 5))
    assert seen[-1] == sum(len(each.times) for each in partly) == 5
    for some, all_ in zip(partly, whole, strict=True):
        assert 1 <= len(some.times)
        assert some.times == all_.times[: len(some.times)]
        assert (some.alone, some.shared) == (all_.alone, all_.shared)
    assert simulate_jobs(jobs, progress=lambda _done, _all: None) == whole


def test_traffic_ends_with_the_last_job():
    job = reduction("a", (0, 1), size="1M")
    (found,) = simulate_jobs([job], [Stream("loop", (("n2.gpu0", "n3.gpu0"),), 1 << 10)])

    assert found.slowdown == pytest.approx(1.0)


def test_wrong_ends_of_traffic_are_all_named():
    with pytest.raises(InputError) as caught:
        simulate_jobs([reduction("a", (0, 1))], [Stream("x", (("n9.gpu0", "n0.gpu0"),), 1)])
    assert "x: " in str(caught.value)
    assert "n9.gpu0" in str(caught.value)


def test_jobs_of_two_runtimes_are_refused():
    with pytest.raises(InputError, match="one fabric has one runtime"):
        simulate_jobs([reduction("a", (0, 1)), reduction("b", (2, 3), strategy="ring")])


@given(st.lists(st.floats(1.0, 50.0), min_size=1, max_size=9))
def test_fairness_lies_between_one_part_and_one(slowdowns):
    index = fairness(slowdowns)

    assert 1.0 / len(slowdowns) - 1e-12 <= index <= 1.0 + 1e-12
    assert fairness([slowdowns[0]] * 5) == pytest.approx(1.0)


@pytest.mark.slow
def test_bits_do_not_depend_on_the_hash_seed():
    code = (
        "from tests.training.test_jobs import reduction\n"
        "from simreduce.engine.background import Stream\n"
        "from simreduce.training.shared_fabric import simulate_jobs\n"
        "jobs = [reduction('a', (0, 1), count=2), reduction('b', (1, 2), count=2)]\n"
        "flow = Stream('t', (('n3.gpu0', 'n1.gpu0'),), 100000, rate=3e9, seed=1)\n"
        "print([(j.times, j.shared) for j in simulate_jobs(jobs, [flow])])\n"
    )
    outputs = {
        subprocess.run(
            (sys.executable, "-c", code), env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, check=True, text=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip

    assert len(outputs) == 1
