"""What a step costs besides its ops, worked out by hand: `step` for every machine, and ways between
the first and the others.
"""

from __future__ import annotations

import pytest

import simreduce as sr
from simreduce.engine import Calibration, LinkConstants, runtime_named
from simreduce.engine.simulator import step_cost
from simreduce.plan import Contract, PlanBuilder
from simreduce.topology import Cable, Node, build, fold
from tests.simulating import simulate

TENSORFLOW, IDEAL = runtime_named("tensorflow"), runtime_named("ideal")
ONE_WAY = 5e-3
"""Seconds from one worker to another: half of it on each of two links."""
STEP = Calibration("step", step=1e-3)
NAMES = ("worker0", "worker1", "worker2")


def star(machines):
    nodes = [Node(n, "cpu", machine=m, transit=False) for n, m in zip(NAMES, machines, strict=True)]
    cables = [
        Cable(n, "switch0", "cable", 1, 1e9, 1e9, ONE_WAY / 2, holds_lane=False) for n in NAMES
    ]
    return build(
        "star", "three workers", "", [*nodes, Node("switch0", "switch", machine="")], cables
    )


APART = star("012")


def plan(on, copies=(), names=NAMES):
    """A value on each of the devices `on`, and copies of 1000 elements from one to another."""
    b = PlanBuilder(names)
    given = {device: b.input(device, 0, 1000) for device in on}
    kept = [b.copy(given[a], c) for a, c in copies] or given.values()
    for value in kept:
        b.output(value)
    return b.finish(Contract.of("none", ()))


def cost(plan, machine=APART, runtime=TENSORFLOW, calibration=STEP):
    return step_cost(plan, machine, runtime, calibration)


@pytest.mark.parametrize(
    ("machines", "on", "copies", "steps", "ways"),
    [
        ("000", (0, 1, 2), [(0, 1)], 1, 0),
        ("012", (1,), [], 1, 0),
        ("012", (0, 1), [], 2, 2),
        ("012", (0, 1), [(0, 1)], 2, 3),
        ("012", (0, 1, 2), [(1, 2)], 3, 3),
        ("012", (0, 2), [], 2, 2),
        ("001", (0, 1, 2), [(0, 1)], 2, 2),
        ("001", (0, 1, 2), [(1, 2)], 2, 3),
    ],
    ids=[
        "one machine",
        "one worker of three",
        "two",
        "two, with a transfer",
        "three",
        "one idle",
        "a copy at home",
        "a copy away",
    ],
)
def test_by_hand(machines, on, copies, steps, ways):
    """There and back where anything runs elsewhere, and one more for the request where anything is
    sent there.
    """
    assert steps * 1e-3 + ways * ONE_WAY == pytest.approx(cost(plan(on, copies), star(machines)))


def test_the_farthest_counts_from_where_the_step_begins():
    """That is the first machine that takes part, in whatever order a plan names its devices."""
    far = Calibration(
        "far",
        step=1e-3,
        links={
            "switch0>worker2": LinkConstants(latency=20e-3),
            "worker1>switch0": LinkConstants(latency=70e-3),
        },
    )
    backwards = NAMES[::-1]

    assert 3e-3 + 2 * 22.5e-3 == pytest.approx(cost(plan((0, 1, 2)), calibration=far))
    assert 3e-3 + 2 * 22.5e-3 == pytest.approx(
        cost(plan((0, 1, 2), names=backwards), calibration=far)
    )
    assert 2e-3 + 2 * 90e-3 == pytest.approx(cost(plan((1, 2)), calibration=far))
    assert 2e-3 + 2 * ONE_WAY == pytest.approx(cost(plan((0, 1)), calibration=far))


@pytest.mark.parametrize("paths", ["first", "split"])
def test_equal_paths_count_once(paths):
    """Split over several, a way is as long as one of them."""
    text = "dgx1vx4,fabric=fat_tree,nic=ib_edr,radix=4"
    network = sr.load_topology(text + ",equal_cost=split" * (paths == "split"))
    alone = sr.load_topology(text)
    whole = sr.compile("ring", sr.load_workload("bytes:4K"), sr.layout(alone))

    assert cost(whole, alone) == pytest.approx(cost(whole, network), rel=1e-12)


def test_folded_machines_cost_what_all_of_them_do():
    """Four machines on one switch are equally far."""
    whole, (half, shape) = sr.load_topology("dgx1vx4"), _folded("dgx1vx4")
    workload = sr.load_workload("bytes:4K")
    plans = (
        sr.compile("ring/ring", workload, sr.layout(whole)),
        sr.compile("ring/ring", workload, shape),
    )

    assert cost(plans[0], whole) == pytest.approx(cost(plans[1], half))
    assert cost(plans[0], whole) > 4e-3


def _folded(text):
    folded = fold(sr.load_topology(text))
    return folded, sr.layout(folded)


def test_nothing_where_nothing_is_dispatched():
    assert 0.0 == cost(plan((0, 1)), runtime=IDEAL)
    assert 0.0 == cost(plan((0, 1)), calibration=Calibration("none"))


def test_a_step_comes_before_everything():
    """1000 float32 at 1 GB/s take 4 us and one way; at the very start there are three ways and two
    steps.
    """
    result = simulate(plan((0, 1), [(0, 1)]), APART, TENSORFLOW, STEP)

    assert 2e-3 + 3 * ONE_WAY == pytest.approx(float(result.start.min()))
    assert 2e-3 + 4 * ONE_WAY + 4e-6 == pytest.approx(result.seconds)
