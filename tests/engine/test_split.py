"""Transfers over several equal paths at once: every op starts and ends when the all-SimPy model
says.
"""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings, strategies as st

import simreduce as sr
from simreduce.engine import IDEAL, NOMINAL, TENSORFLOW
from simreduce.plan import Contract, PlanBuilder
from simreduce.testing.strategies import (
    ANY,
    ROUND,
    FigureRanges,
    calibrations,
    plans,
    readies,
    runtimes,
)
from simreduce.topology import Cable, Node, Topology, build
from simreduce.topology.routing.switching import Switching
from tests.engine.oracle import Submission
from tests.engine.test_against_oracle import check, check_strategy
from tests.thorough import examples


@st.composite
def trees(draw: st.DrawFn, figures: FigureRanges) -> Topology:
    """Machines of GPUs and a CPU, each under a leaf of its own, under spines; cables are often
    alike.
    """
    gpus, leaves, spines = draw(st.integers(2, 5)), draw(st.integers(2, 3)), draw(st.integers(1, 4))
    rates, delays = (
        [draw(figures.bandwidth) for _ in range(2)],
        [draw(figures.delay) for _ in range(2)],
    )
    nodes = [Node(f"cpu{i}", "cpu", machine=str(i)) for i in range(leaves)]
    nodes += [Node(f"gpu{i}", "gpu", machine=str(i % leaves), transit=False) for i in range(gpus)]
    nodes += [Node(f"leaf{i}", "switch", machine="") for i in range(leaves)]
    nodes += [Node(f"spine{i}", "switch", machine="") for i in range(spines)]

    def cable(a: str, b: str, holds: bool = False) -> Cable:
        rate = draw(st.sampled_from([rates[0], *rates]))
        delay = draw(st.sampled_from([delays[0], *delays]))
        return Cable(a, b, "bus" if holds else "network", 1, rate, rate, delay, holds)

    cables = [cable(f"gpu{i}", f"leaf{i % leaves}") for i in range(gpus)]
    cables += [cable(f"gpu{i}", f"cpu{i % leaves}", holds=True) for i in range(gpus)]
    cables += [cable(f"cpu{i}", f"leaf{i}") for i in range(leaves)]
    cables += [cable(f"leaf{i}", f"spine{j}") for i in range(leaves) for j in range(spines)]
    rule = draw(st.sampled_from([Switching("split"), Switching("split"), Switching("hashed", 1)]))
    return build("tree", "", "a test", nodes, cables, switching=rule)


def check_tree(draw_data: st.DataObject, figures: FigureRanges) -> bool:
    topology = draw_data.draw(trees(figures))
    plan = draw_data.draw(plans((*topology.devices, *topology.hosts), figures, most_ops=24))
    runtime, calibration = draw_data.draw(runtimes), draw_data.draw(calibrations(figures))
    return check(
        topology, runtime, calibration, [Submission(plan, draw_data.draw(readies(plan, figures)))]
    )


@given(st.data())
@settings(max_examples=examples(80))
def test_random_plans_on_random_trees(data):
    assume(check_tree(data, ANY))


@given(st.data())
@settings(max_examples=examples(80))
def test_random_plans_on_random_trees_with_many_ties(data):
    assume(check_tree(data, ROUND))


def test_reductions_on_a_split_tree():
    """Rates of flows that share many links, a part of each."""
    for name in (
        "fat_tree:12,radix=4,equal_cost=split",
        "dgx-a100x2,fabric=fat_tree,radix=4,nic=ib_hdr,equal_cost=split",
    ):
        for spec in ("ring", "halving_doubling"):
            for runtime in (IDEAL, TENSORFLOW):
                check_strategy(name, "bytes:48K", spec, runtime, NOMINAL)


def test_a_split_flow_takes_a_part_of_every_link():
    """Two flows share the trunk of 10 GB/s from s1: all of one, half of the other. Alike they go at
    r + r/2 = 10 GB/s.
    """
    kinds = {
        "a": "gpu",
        "b": "gpu",
        "c": "gpu",
        "d": "gpu",
        "l1": "switch",
        "l2": "switch",
        "s1": "switch",
        "s2": "switch",
    }
    nodes = [Node(name, kind, machine="", transit=kind != "gpu") for name, kind in kinds.items()]
    thick, thin = ["al1", "bl2", "cs1", "dl2"], ["l1s1", "l1s2", "s1l2", "s2l2"]
    ends = [(name[0], name[1:]) for name in thick] + [(name[:2], name[2:]) for name in thin]
    rates = [100e9] * 4 + [10e9] * 4
    cables = [
        Cable(x, y, "wire", 1, rate, rate, 0.0, True)
        for (x, y), rate in zip(ends, rates, strict=True)
    ]
    net = build("t", "", "t", nodes, cables, switching=Switching("split"))
    builder = PlanBuilder(net.devices)
    for number, (source, target) in enumerate(((0, 1), (2, 3))):
        value = builder.input(source, number * 500, number * 500 + 500)
        builder.output(builder.copy(value, target))

    result = sr.simulate(
        builder.finish(Contract.broadcast([1], [(0, 500, 0)], 0)), net, runtime="ideal"
    )

    assert result.seconds == pytest.approx(2000 / (20 / 3 * 1e9))
