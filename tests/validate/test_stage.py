"""Where plans run: processes, the machine that these are, and the same plan on all of them."""

from __future__ import annotations

import numpy as np
import pytest
from simreduce_validate.calibrating import micro
from simreduce_validate.devices import LATE, REQUEST, STEP

import simreduce as sr
from simreduce.engine import NOMINAL, Calibration
from simreduce.engine.runtime import Processor
from simreduce.plan import Contract, Kind, PlanBuilder
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.study.tune.sizes import tensor
from tests.validate.devices import devices

TWO_TASKS = "dgx1vx2,nic=ib_edr"


def machines(stage):
    """By device of the layout, in which machine it is simulated."""
    return [stage.machine.nodes[name].machine for name in stage.layout.devices]


def processes(stage):
    return [name.rpartition("/")[0] for name in stage.place]


@pytest.mark.parametrize(
    ("options", "topology", "count"),
    [({}, "switch:4", 1), ({"backend": "cluster"}, "switch:4", 5),
    ({"backend": "cluster"}, TWO_TASKS, 2),
     ({"backend": "shaped", "rate": "1gbit"}, "switch:4", 4),
     ({"backend": "gpu", "pretend": True}, "dgx1v", 1),
     ({"backend": "gpu"}, "dgx1v", 1)],
)  # fmt: skip
def test_a_process_is_a_machine(options, topology, count):
    """So that a copy between machines is simulated just where one between processes is run."""
    stage = devices(topology, **options).stage
    of_process, of_machine = processes(stage), machines(stage)

    assert count == len(set(of_process)) == len(set(of_machine))
    assert count == len(set(zip(of_process, of_machine, strict=True)))
    assert len(stage.place) == len(set(stage.place))


def test_gpus_are_those_of_the_topology_and_cpus_are_not():
    machine = sr.load_topology("dgx1v")

    assert machine.digest == devices("dgx1v", backend="gpu").stage.machine.digest
    pretended = devices("dgx1v", backend="gpu", pretend=True).stage
    assert {"cpu"} == {pretended.machine.nodes[name].kind for name in pretended.layout.devices}


def test_shaped_links_are_simulated_with_what_is_set():
    where = devices(
        "switch:3", backend="shaped", rate="200mbit", delay="4ms", slow_port=("1=100mbit",)
    )
    by_name = {link.name: link for link in where.stage.machine.links}

    assert 0.5 == pytest.approx(
        by_name["worker1>switch0"].bandwidth / by_name["worker0>switch0"].bandwidth
    )
    assert {2e-3} == {link.latency for link in by_name.values()}


def flight(path, nbytes):
    """A step of one value that goes along these workers."""
    return micro.flight([f"worker{i}" for i in range(4)], path, nbytes).plan


@pytest.mark.parametrize("delay", [1e-3, 8e-3])
@pytest.mark.parametrize(("path", "workers"), [((1, 2), 2), ((1, 2, 3), 3), ((1, 2, 1), 2)])
def test_a_step_over_delayed_links_has_three_ways_more_than_its_values(path, workers, delay):
    """To the workers, with the request, and with the answer: measured so for delays of 8 ms."""
    where = devices("switch:4", backend="shaped", rate="90mbit", delay=f"{delay * 1e3:g}ms")
    hops, way = len(path) - 1, delay + LATE
    for nbytes in (4, 1 << 20):
        wire = nbytes / where.links.goodput(0)
        expected = workers * STEP + hops * (REQUEST + wire) + (hops + 3) * way

        found = where.setup(NOMINAL).find_seconds(flight(path, nbytes))
        assert found == pytest.approx(expected, rel=1e-9)


def test_links_without_a_delay_have_what_a_step_costs_and_no_late_switch():
    where = devices("switch:4", backend="shaped", rate="90mbit")
    seconds = where.setup(NOMINAL).find_seconds(flight((1, 2), 4))

    assert seconds == pytest.approx(2 * STEP + REQUEST + 4 / where.links.goodput(0))


@pytest.mark.parametrize(
    "known",
    [
        Calibration("fitted", cpu=Processor(cores=2)),
        Calibration("fitted", step=1e-3),
    ],
)
def test_what_a_calibration_knows_of_sessions_counts(known):
    where = devices("switch:4", backend="shaped", rate="90mbit", delay="8ms")

    assert known == where.setup(known).calibration


def test_other_devices_have_no_session_of_links():
    for options in ({}, {"backend": "cluster"}, {"backend": "gpu"}):
        assert NOMINAL == devices("switch:4", **options).setup(NOMINAL).calibration


@pytest.mark.parametrize(
    "text", ["ring", "reduce_to_one", "double_tree", "pscpu+packs=2", "chain+chunk=512"]
)
@pytest.mark.parametrize("topology", ["switch:4", TWO_TASKS])
def test_strategies_are_right_as_they_are_run(text, topology):
    """However they are written for one process or for several: still proved, and sending what they
    did.
    """
    one, several = devices(topology, 4).stage, devices(topology, 4, backend="cluster").stage
    plan = compile_plan(text, tensor(1 << 14, 0), several.layout)
    for stage in (one, several):
        adapted = stage.adapt(plan)
        assert [] == sr.verify(adapted)
        assert moved(plan) == moved(adapted)
        assert sr.simulate(adapted, stage.machine).seconds > 0


def moved(plan):
    """Bytes between devices; a message is a COPY of nothing."""
    return int(plan.nbytes[plan.kind == Kind.COPY].sum())


def test_order_between_devices_costs_a_message():
    """In one process too: its executors tell each other."""
    one, several = devices("switch:2").stage, devices("switch:2", backend="cluster").stage
    names = several.layout.devices
    b = PlanBuilder(names)
    first, second = b.input(0, 0, 4), b.input(1, 0, 4)
    b.output(b.hold(first, [b.add([second, second]).op]))
    plan = b.finish(Contract.of("none", ()))

    for stage in (one, several):
        assert 1 == np.count_nonzero(stage.adapt(plan).kind == Kind.COPY)
