"""What goes wrong: links that fail and come back, slow devices, jitter, traffic of others."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import permutations
from math import inf
from pathlib import Path

import numpy as np
import pytest
import simpy
from hypothesis import given, settings, strategies as st

import simreduce as sr
from simreduce.engine import (
    CALM,
    IDEAL,
    NOMINAL,
    TENSORFLOW,
    Calibration,
    Disturbance,
    Fabric,
    Fault,
)
from simreduce.engine.background import Stream, TrafficFlows
from simreduce.engine.lowering import lower
from simreduce.engine.lowering.resources import Resources
from simreduce.errors import Deadlock, InputError
from simreduce.testing import RATE, cable, copy_plan, machine, node, pair, plan_of
from simreduce.testing.strategies import ANY, ROUND, either_scenes, scenes
from tests.simulating import bits, read_result, record, simulate, xring_on_a_dgx1
from tests.thorough import examples

_COSTS = Calibration("costs", dispatch={"copy": 0.5, "add": 0.25})


def seconds(topology, plan, *faults, runtime=TENSORFLOW, **others):
    return simulate(
        plan, topology, runtime, disturbance=Disturbance(faults=faults, **others)
    ).seconds


# Faults.


def test_a_link_cut_and_restored_costs_exactly_the_time_it_was_down():
    """100 of 400 B are through at 1 s; it comes back whole at 3.5 s; 300 B take 3 s."""
    topology = pair()
    plan = copy_plan(topology, (0, 1))

    assert seconds(topology, plan) == 4.0
    assert seconds(topology, plan, Fault(1.0, "gpu0>gpu1", 0.0), Fault(3.5, "gpu0>gpu1")) == 6.5


def test_a_link_that_degrades_and_recovers():
    """100 B in the first second, 2 s at a quarter of the rate, the other 250 B at the whole."""
    topology = pair()
    slower = Fault(1.0, "gpu0>gpu1", factor=0.25), Fault(3.0, "gpu0>gpu1")

    assert seconds(topology, copy_plan(topology, (0, 1)), *slower) == 5.5


def test_a_link_cut_for_ever_is_a_deadlock_that_names_op_and_link():
    topology = pair()
    with pytest.raises(
        Deadlock, match=r"op 1 COPY gpu0 -> gpu1 \[0, 100\): no bandwidth on gpu0>gpu1 wire"
    ):
        seconds(topology, copy_plan(topology, (0, 1)), Fault(1.0, "gpu0>gpu1", 0.0))


@pytest.mark.parametrize(
    ("name", "lost"), [("gpu0>gpu1", 1), ("gpu1>gpu0", 0), ("gpu1", 1), ("wire", 1)]
)
def test_a_fault_names_a_link_a_node_or_a_class(name, lost):
    """A node's links are those from and to it."""
    topology = machine(cable("gpu0", "gpu1"), cable("gpu0", "gpu2", link_class="other"))
    plan = copy_plan(topology, (0, 1))

    assert seconds(topology, plan, Fault(2.0, name, 0.0), Fault(3.0, name)) == 4.0 + lost


def test_faults_after_the_end_change_nothing_and_keep_nobody_waiting():
    plan, topology = xring_on_a_dgx1()
    late = Disturbance(faults=(Fault(10.0, "gpu0", 0.0),))

    assert bits(simulate(plan, topology).timeline) == bits(
        simulate(plan, topology, disturbance=late).timeline
    )


def test_a_schedule_counts_from_now():
    """A fabric that has run for a while, with other plans on it."""
    topology = pair()
    env = simpy.Environment(10.0)
    fabric = Fabric(env, topology)
    fabric.schedule(
        [Fault(1.0, "gpu0>gpu1", 0.0), Fault(2.0, "gpu0>gpu1", 50.0), Fault(4.0, "wire")]
    )

    assert env.run(until=fabric.submit(copy_plan(topology, (0, 1)))).finish.max() == 16.0


def test_no_resource_gives_more_than_it_has_left():
    """The replay knows of the faults: bytes in are bytes out, and at no time more than the capacity
    of that time.
    """
    topology = pair()
    cut = Disturbance(
        faults=(Fault(1.0, "gpu0>gpu1", 25.0), Fault(3.0, "gpu0>gpu1", 0.0), Fault(4.0, "wire"))
    )
    recording = record(copy_plan(topology, (0, 1), (0, 1)), topology, IDEAL, disturbance=cut)
    (curve,) = recording.resource_curves()

    assert curve.time.tolist() == [0.0, 1.0, 3.0, 4.0, 10.5]
    assert curve.value.tolist() == [100.0, 25.0, 0.0, 100.0, 0.0]
    assert curve.total == 800.0


def test_time_lost_to_a_fault_is_the_links_not_lost_to_others():
    """Alone, the copy would have taken as long."""
    topology = pair()
    cut = Disturbance(faults=(Fault(1.0, "gpu0>gpu1", 0.0), Fault(3.5, "gpu0>gpu1")))
    (_, copy) = simulate(copy_plan(topology, (0, 1)), topology, disturbance=cut).critical_path()

    assert [(p.cause, p.where, p.seconds) for p in copy.parts] == [
        ("bandwidth", "gpu0>gpu1 wire", 6.5)
    ]


@st.composite
def disturbances(draw, topology, delay):
    """Faults that end, slow devices and jitter."""
    faults = []
    for link in draw(st.lists(st.sampled_from([link.name for link in topology.links]), max_size=3)):
        begin = draw(delay)
        faults += [
            Fault(begin, link, factor=draw(st.sampled_from([0.0, 0.5, 2.0]))),
            Fault(begin + 2.0**-14, link),
        ]
    slow = draw(st.dictionaries(st.sampled_from(topology.devices), st.floats(0.5, 4.0), max_size=2))
    jitter = draw(st.sampled_from([0.0, 0.1, 1.0]))
    return Disturbance(slow, jitter, draw(st.integers(0, 5)), tuple(faults))


@given(st.data())
@settings(max_examples=examples(100))
def test_laws_hold_whatever_disturbs(data):
    """Every flow moves its bytes, no capacity is exceeded, no floor is beaten, the path is the
    whole time.
    """
    figures = data.draw(st.sampled_from([ROUND, ANY]))
    plan, topology, runtime, calibration, ready = data.draw(scenes(figures))
    disturbance = data.draw(disturbances(topology, figures.delay)) if topology.links else CALM
    recording = record(plan, topology, runtime, calibration, ready, disturbance)
    result, rates, amount = recording.result, recording.rates, recording.lowered.amount
    moved = np.bincount(rates.op, rates.rate * (rates.end - rates.begin), minlength=len(amount))

    assert moved == pytest.approx(amount, rel=1e-9)
    for resource, since, load in zip(rates.resource, rates.since, rates.load, strict=True):
        capacity = recording.resources.capacity[resource]
        for time, changed, rate in recording.resources.changes:
            if changed == resource and time <= since * (1 + 1e-15):
                capacity = rate
        assert load <= capacity * (1 + 1e-12)
    floors = result.floors
    assert result.seconds >= max(floors.critical_path, floors.resource, floors.lane) * (1 - 1e-12)
    parts = [part for step in recording.critical_path() for part in step.parts]
    assert sum(part.seconds for part in parts) == pytest.approx(result.seconds, rel=1e-9)
    again = read_result(result.to_json())
    assert result == again
    assert hash(result) == hash(again)
    assert result != replace(again, seconds=again.seconds + 1.0)


# Slow devices and jitter.


@given(either_scenes, st.integers(0, 9))
@settings(max_examples=examples(100))
def test_jitter_0_and_slowness_1_change_no_bit(scene, seed):
    nothing = Disturbance(dict.fromkeys(scene.topology.nodes, 1.0), 0.0, seed)

    assert (
        replace(simulate(*scene), disturbance="").to_json() == simulate(*scene, nothing).to_json()
    )


def test_a_slow_device_is_slow_in_all_that_it_does():
    """Half the memory's rate, twice the dispatch of its ops and of what it sends, half the rate of
    its links.
    """
    topology = machine(
        node("gpu0", memory=300.0), node("gpu1", memory=300.0), cable("gpu0", "gpu1")
    )

    def write(b):
        x = b.input(1, 0, 100)
        b.add([b.copy(b.input(0, 0, 100), 1), x])
        b.copy(x, 0)

    def took(**slow):
        result = simulate(
            plan_of(topology, write), topology, TENSORFLOW, _COSTS, disturbance=Disturbance(slow)
        )
        return (result.finish - result.start)[[2, 3, 4]].tolist()

    assert took() == [4.5, 4.25, 4.5]
    assert took(gpu1=2.0) == [8.5, 8.5, 9.0]
    assert took(gpu0=2.0) == [9.0, 4.25, 8.5]
    assert took(gpu0=2.0, gpu1=4.0) == [17.0, 17.0, 18.0]


def test_every_device_twice_as_slow_takes_twice_as_long():
    """To the bit, where no link has a latency, which no device makes longer."""
    topology = sr.load_topology("dgx1v").scale(latency=0.0)
    plan = sr.compile("xring#2", sr.load_workload("bytes:1M"), sr.layout(topology))
    costs = Calibration("costs", dispatch={"copy": 5e-6, "add": 3e-6})
    slow = Disturbance(dict.fromkeys(topology.nodes, 2.0))
    plain = simulate(plan, topology, calibration=costs)

    assert (2 * plain.finish).tolist() == simulate(
        plan, topology, calibration=costs, disturbance=slow
    ).finish.tolist()


@given(either_scenes, st.sampled_from([0.1, 1.0]), st.integers(0, 3))
@settings(max_examples=examples(60))
def test_jitter_scatters_overhead_work_and_latency_and_nothing_else(scene, jitter, seed):
    """Each by its own factor within 1 +- jitter, whose figures are the op's and the seed's alone.
    What a core works is in the amount, and with it an op takes no more of anything but the cores,
    the last that it uses.
    """
    plan, topology, runtime, calibration, _ = scene
    resources = Resources.of(topology, calibration)
    plain, scattered = (
        lower(
            plan,
            topology,
            runtime,
            calibration,
            resources,
            disturbance=Disturbance(jitter=by, seed=seed),
        )
        for by in (0.0, jitter)
    )

    costs, other = plain.by_op, scattered.by_op
    assert plain.waits.tolist() == scattered.waits.tolist()
    for name in ("holds", "cap", "lane_start", "lanes", "use_start", "uses"):
        assert getattr(costs, name).tolist() == getattr(other, name).tolist()
    works = costs.work > 0.0
    cores = costs.use_start[1:][works] - 1
    others = np.delete(np.arange(len(costs.uses)), cores)
    assert plain.amount[~works].tolist() == scattered.amount[~works].tolist()
    assert costs.weight[cores].tolist() == other.weight[cores].tolist()
    gained = (other.work - costs.work)[works] * costs.cap[works]
    assert (plain.amount[works] + gained).tolist() == pytest.approx(
        scattered.amount[works].tolist(), rel=1e-9
    )
    taken, changed = (
        low.by_op.weight * np.repeat(low.amount, np.diff(low.by_op.use_start))
        for low in (plain, scattered)
    )
    assert taken[others].tolist() == pytest.approx(changed[others].tolist(), rel=1e-9)
    for name in ("overhead", "work", "latency"):
        before, after = getattr(costs, name), getattr(other, name)
        assert np.all(np.abs(after - before) <= before * jitter * (1 + 1e-12))


def test_jitter_is_even_over_its_range_and_other_for_another_seed():
    topology = pair(latency=1.0)
    plan = copy_plan(topology, *[(0, 1)] * 4000, elements=1)

    def factors(seed):
        resources = Resources.of(topology, NOMINAL)
        low = lower(
            plan,
            topology,
            IDEAL,
            NOMINAL,
            resources,
            disturbance=Disturbance(jitter=0.1, seed=seed),
        )
        return low.by_op.latency[1::2]

    one, two = factors(1), factors(2)

    assert one.min() == pytest.approx(0.9, abs=1e-3)
    assert one.max() == pytest.approx(1.1, abs=1e-3)
    assert one.mean() == pytest.approx(1.0, abs=4e-3)
    assert one.std() == pytest.approx(0.1 / 3**0.5, rel=0.03)
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.06
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 0.06


def test_the_same_seed_and_op_always_give_the_same_jitter():
    """These figures must not change with a release: somebody has quoted a seed."""
    topology = pair(latency=1.0)
    plan = copy_plan(topology, (0, 1), (0, 1))
    low = lower(
        plan,
        topology,
        IDEAL,
        NOMINAL,
        Resources.of(topology, NOMINAL),
        disturbance=Disturbance(jitter=1.0, seed=7),
    )

    assert low.by_op.latency[[1, 3]].tolist() == [1.208469610736629, 1.8037523763743688]


def test_jitter_of_a_plan_does_not_depend_on_others():
    """It is what it is alone, though other ops were lowered on the same fabric before."""
    plan, topology = xring_on_a_dgx1()
    shaky = Disturbance(jitter=0.2, seed=3)
    fabric = Fabric(simpy.Environment(), topology, disturbance=shaky)
    alone = fabric.lower(plan)
    fabric.submit(plan)

    assert alone.by_op.latency.tolist() == fabric.lower(plan).by_op.latency.tolist()


_SCRIPT = """
from simreduce.engine import Disturbance, Fault
from simreduce.engine.kernel import store
from tests.simulating import bits, simulate, xring_on_a_dgx1
store.compiling_pays = lambda ops, again=False: {pays}
faults = Fault(2e-5, "gpu0", 0.0), Fault(4e-5, "gpu0")
shaky = Disturbance({{"gpu3": 1.5, "gpu1": 2.0}}, 0.1, 7, faults)
print(bits(simulate(*xring_on_a_dgx1(), disturbance=shaky).timeline))
"""


@pytest.mark.slow
def test_bits_depend_neither_on_the_hash_seed_nor_on_threads_nor_on_compilation():
    root = Path(__file__).parents[2]
    seen = set()
    for seed, threads, pays in (("1", "1", False), ("2", "2", False), ("3", "4", True)):
        environment = os.environ | {
            "PYTHONHASHSEED": seed, "PYTHONPATH": str(root), "OMP_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads,
        }  # fmt: skip
        command = [sys.executable, "-c", _SCRIPT.format(pays=pays)]
        done = subprocess.run(command, env=environment, cwd=root, capture_output=True, check=True)
        seen.add(done.stdout)

    assert len(seen) == 1


# Bad input.


def test_every_fault_of_a_disturbance_is_told_at_once():
    with pytest.raises(InputError) as caught:
        Disturbance(
            {"gpu0": 0.0},
            1.5,
            faults=(Fault(-1.0, "gpu1"), Fault(0.0, "gpu2", -1.0), Fault(0.0, "g", factor=inf)),
        )

    assert caught.value.problems == (
        "slow gpu0: the factor must be between 1e-06 and 1e+06, not 0.0",
        "jitter must be between 0 and 1, not 1.5",
        "gpu1: the time must be 0 s or more, not -1.0",
        "gpu2: the bandwidth must be 0 or more, not -1.0",
        "g: the factor must be 0 or more, not inf",
    )


def test_names_that_the_machine_lacks_are_told_with_the_nearest():
    topology = pair()
    wrong = Disturbance({"gpu9": 2.0}, faults=(Fault(0.0, "gpu0>gpu9"), Fault(0.0, "wires")))
    with pytest.raises(InputError) as caught:
        simulate(copy_plan(topology, (0, 1)), topology, disturbance=wrong)

    assert caught.value.problems == (
        "small: no device 'gpu9' (did you mean 'gpu1'?)",
        "small: no link, node or link class 'gpu0>gpu9' (did you mean 'gpu0>gpu1'?)",
        "small: no link, node or link class 'wires' (did you mean 'wire'?)",
    )


# Traffic of others.


def traffic(fabric, rate, size, pairs=None, seed=0, until=inf):
    """Messages of `size` bytes at random times, `rate` a second, until a time in seconds."""
    pairs = tuple(pairs or permutations(fabric.topology.devices, 2))
    end = fabric.env.event()
    if until < inf:
        fabric.env.timeout(until).callbacks.append(lambda _: end.succeed())
    Stream("traffic", pairs, size, rate * size, seed=seed).send_on(TrafficFlows(fabric), end)


def run_with(topology, plan, rate, size, runtime=TENSORFLOW, disturbance=CALM, **others):
    """The plan's timeline, and when the last of all events was."""
    env = simpy.Environment()
    fabric = Fabric(env, topology, NOMINAL, runtime, disturbance)
    done = fabric.submit(plan)
    traffic(fabric, rate, size, **others)
    env.run()
    return done.value, env.now


def test_traffic_slows_plans_down_and_ends_after_them():
    """Though nobody stops it; the same seed gives the same bits, another one others."""
    plan, topology = xring_on_a_dgx1()
    alone = simulate(plan, topology)
    first, last = run_with(topology, plan, 1e5, 100_000, seed=1)
    again, _ = run_with(topology, plan, 1e5, 100_000, seed=1)
    other, _ = run_with(topology, plan, 1e5, 100_000, seed=2)

    assert first.finish.max() > alone.seconds
    assert last < 3 * first.finish.max()
    assert bits(first) == bits(again) != bits(other)


def test_traffic_shares_links_but_no_lanes():
    """A flow of 100 kB from gpu1, which begins while the plan has the lane, is there for the rest
    of the time.
    """
    topology = machine(cable("gpu0", "gpu1"), cable("gpu0", "gpu2"))
    plan = copy_plan(topology, (0, 1))

    assert run_with(topology, plan, 10.0, 100_000, pairs=[("gpu0", "gpu2")])[0].finish.max() == 4.0
    env = simpy.Environment()
    fabric = Fabric(env, topology)
    done = fabric.submit(plan)
    traffic(fabric, 1e3, 100_000, pairs=[("gpu0", "gpu1")], until=1e-2)
    env.run()
    alone = 4.0
    assert done.value.finish.max() > 2 * alone


def test_traffic_ends_at_an_event():
    """No flow begins after it: what was under way ends."""
    topology = pair(bandwidth=1e6)
    env = simpy.Environment()
    fabric = Fabric(env, topology)
    env.timeout(50.0)
    traffic(fabric, 10.0, 1000, until=2.0)
    env.run(until=3.0)

    assert not fabric._submissions
    assert env.now == 3.0


def test_two_traffics_do_not_keep_each_other_alive():
    topology = pair()
    env = simpy.Environment()
    fabric = Fabric(env, topology)
    done = fabric.submit(copy_plan(topology, (0, 1)))
    traffic(fabric, 1.0, 10, seed=1)
    traffic(fabric, 1.0, 10, seed=2)
    env.run()

    assert done.value.finish.max() <= env.now < 30.0


def test_a_plan_that_is_cut_off_is_a_deadlock_in_spite_of_traffic():
    """Which could go on for ever, the other way; its own flows that are cut off are nobody's
    business.
    """
    topology = pair()
    cut = Disturbance(faults=(Fault(1.0, "gpu0>gpu1", 0.0),))
    with pytest.raises(Deadlock, match=r"^1 op can never finish:\n  op 1 COPY gpu0 -> gpu1"):
        run_with(topology, copy_plan(topology, (0, 1)), 1.0, 10, disturbance=cut)
    timeline, _ = run_with(topology, copy_plan(topology, (1, 0)), 5.0, 10, disturbance=cut)

    assert timeline.finish.max() < inf


def test_words_for_what_disturbs():
    all_of_it = Disturbance(
        {"gpu3": 1.5, "gpu4": 1.0},
        0.1,
        7,
        (Fault(1e-3, "gpu0>gpu3", 0.0), Fault(2e-3, "gpu0>gpu3", factor=0.5)),
    )

    assert all_of_it.text == (
        "gpu3 1.5 times as slow, jitter 0.1 (seed 7), gpu0>gpu3 at 0 GB/s from 1 ms on, "
        "gpu0>gpu3 at 50% from 2 ms on"
    )
    assert CALM.text == ""
    assert RATE == 100.0
