"""The host as a queue: it issues the ops of its GPUs one after another."""

from __future__ import annotations

import pytest

import simreduce as sr
from simreduce.engine import NOMINAL, Calibration
from simreduce.engine.lowering.issuing import find_messages, find_parts
from simreduce.plan import Contract, PlanBuilder
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.study.tune.sizes import tensor
from tests.simulating import simulate

MACHINE = sr.load_topology("full:4,bandwidth=1GB/s,latency=2us")
LATENCY, RATE = 2e-6, 1e9
NBYTES = 4000


def seconds(plan, topology=MACHINE, **issue):
    return simulate(plan, topology, calibration=Calibration("issuing", issue=issue)).seconds


def copies(*pairs, hops=1):
    """A copy of a value of its own for each pair; with `hops`, there and back."""
    b = PlanBuilder(tuple(MACHINE.nodes))
    for source, target in pairs:
        value = b.input(source, 0, NBYTES // 4)
        for hop in range(hops):
            value = b.copy(value, (target, source)[hop % 2])
    return b.finish(Contract.of("none", []))


def test_copies_at_once_are_issued_one_after_another_whatever_gpu_they_are_for():
    """Their latencies and bytes pass beside each other, those of a chain do not."""
    way = LATENCY + NBYTES / RATE
    at_once = copies((0, 1), (1, 2), (2, 3), (3, 0))

    assert way == pytest.approx(seconds(at_once))
    assert 4 * 20e-6 + way == pytest.approx(seconds(at_once, copy=20e-6))
    assert 4 * (20e-6 + way) == pytest.approx(seconds(copies((0, 1), hops=4), copy=20e-6))


def test_a_host_waits_for_what_it_copies_from_its_own_memory():
    way, cpu = LATENCY + NBYTES / RATE, 4
    out, into = (copies(*pairs) for pairs in (((0, cpu), (1, cpu)), ((cpu, 0), (cpu, 1))))

    assert 2 * 20e-6 + way == pytest.approx(seconds(out, to_host=20e-6))
    assert 2 * (20e-6 + way) == pytest.approx(seconds(into, from_host=20e-6))
    assert seconds(into, copy=20e-6) == seconds(into, from_host=20e-6)


def test_each_machine_has_a_host_and_each_of_its_gpus_is_started():
    two = sr.load_topology("dgx1vx2")
    plan = compile_plan("ring", tensor(1024, 0), sr.layout(two))
    here = compile_plan("ring", tensor(1024, 0), sr.layout(sr.load_topology("dgx1v")))

    assert 8 * 5e-6 == pytest.approx(
        seconds(plan, two, device=5e-6) - simulate(plan, two, calibration=NOMINAL).seconds, rel=1e-6
    )
    with_host = compile_plan("pscpu", tensor(1024, 0), sr.layout(MACHINE))
    slow, quick = (seconds(with_host, device=each) for each in (6e-6, 1e-6))
    assert 4 * 5e-6 == pytest.approx(slow - quick)
    # Each device reads its value once before anything else, all of a machine one after another.
    assert 8 * 1e-3 < seconds(here, sr.load_topology("dgx1v"), input=1e-3, output=0.0) < 8.3e-3
    assert 8 * 1e-3 < seconds(plan, two, input=1e-3, output=0.0) < 9e-3


@pytest.mark.parametrize(
    ("strategy", "parts", "messages"),
    [("ring", 16 + 12, 20), ("xring", 0, 0), ("chain", 0, 0), ("direct", 16 + 12, 0)],
)
def test_views_messages_and_parts_of_results_are_issued_too(strategy, parts, messages):
    """As many as the graph of TensorFlow has: of a ring, 4 views on each device, 5 messages on each
    about a send before, and results of 4 parts.
    """
    plan = compile_plan(strategy, tensor(1 << 16, 0), sr.layout(MACHINE))

    assert (parts, messages) == (find_parts(plan).sum(), find_messages(plan).sum())
    grown = seconds(plan, message=1e-3) - seconds(plan, message=0.0)
    assert grown == pytest.approx(messages * 1e-3, rel=0.05, abs=1e-9)


def test_what_is_not_given_is_what_is_like_it():
    some = Calibration("some", issue={"copy": 3.0, "add": 2.0, "message": 1.0})

    assert [3.0, 3.0, 1.0, 2.0, 0.0] == [
        some.issuing(what) for what in ("to_host", "from_host", "message", "concat", "output")
    ]
    assert some.dispatches
    assert not NOMINAL.dispatches


def test_cpu_devices_and_nccl_have_no_queue_at_the_host():
    layout = sr.layout(MACHINE)
    by_nccl = compile_plan("nccl", tensor(1 << 16, 0), layout)
    issue = dict.fromkeys(("device", "copy", "add", "input"), 1e-3)

    b = PlanBuilder(tuple(MACHINE.nodes))
    b.add([b.input(4, 0, 8), b.input(4, 0, 8)])
    on_cpu = b.finish(Contract.of("none", []))
    assert seconds(on_cpu, **issue) == seconds(on_cpu)
    assert seconds(by_nccl, copy=1e-3, add=1e-3) == seconds(by_nccl)
