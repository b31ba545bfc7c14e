"""CollNet: what the network's switches sum, what NICs carry then, and where it is refused."""

from __future__ import annotations

from collections import Counter

import pytest

from simreduce.engine.setup import Setup
from simreduce.errors import StrategyError
from simreduce.plan import verify
from simreduce.planners.layouts import aggregations, layout
from simreduce.planners.nccl import Settings, choose
from simreduce.study.tune.sizes import tensor
from simreduce.topology import load_topology
from tests.thorough import THOROUGH

H100 = "dgx-h100x{},fabric=rail_optimised,reduce=yes"
RAILS = "dgx1vx{},fabric=rail_only,reduce=yes"
ONE_NIC = "dgx1vx{},fabric=switch,nics=1,reduce=yes"
UNITS = "dgx-h100x{},fabric=rail_optimised,unit=4,reduce=yes"


@pytest.mark.parametrize("elements", [1, 7, 1000, 3 << 20])
@pytest.mark.parametrize(
    "machine",
    [*(each.format(n) for each in (H100, RAILS, ONE_NIC) for n in (2, 3, 5)), UNITS.format(6)],
)
def test_the_sum_is_right(machine, elements):
    """On one leaf and on two under spines; over NVSwitches and along chains."""
    assert [] == verify(Setup(machine).compile("nccl:collnet", tensor(4 * elements, 0)))


@pytest.mark.parametrize("each", range(1, 9) if THOROUGH else (1, 3, 8))
@pytest.mark.parametrize("machine", [H100.format(3), RAILS.format(2)])
def test_the_sum_is_right_for_any_gpus_of_each_machine(machine, each):
    shape = layout(load_topology(machine))
    ranks = [rank for task in shape.tasks for rank in task[:each]]
    setup = Setup(machine, part=shape.only(ranks))

    assert [] == verify(setup.compile("nccl:collnet", tensor(4000, 0)))


@pytest.mark.parametrize(("machine", "rails"), [(H100, 8), (RAILS, 4), (ONE_NIC, 1), (UNITS, 8)])
@pytest.mark.parametrize("nodes", [2, 5])
def test_every_nic_carries_its_part_once_each_way(machine, rails, nodes):
    """A ring sends 2 (n-1)/n times as much."""
    setup, elements = Setup(machine.format(nodes)), 8000 * rails
    out, into = Counter(), Counter()
    for source, target, count in setup.compile("nccl:collnet", tensor(4 * elements, 0)).copies():
        if source[0] == "n" and target[0] != "n":
            out[source] += count
        elif source[0] != "n" and target[0] == "n":
            into[target] += count

    assert out == into
    assert [elements // rails] * (rails * nodes) == list(out.values())


@pytest.mark.parametrize("nodes", [2, 3, 8])
def test_its_time_is_that_of_the_tensor_through_a_nic_whatever_the_nodes(nodes):
    """t = a + S/B for large S and one GPU of each node, B what Simple reaches of a NIC."""
    topology = load_topology(ONE_NIC.format(nodes))
    setup = Setup(topology, part=layout(topology).only(range(0, 8 * nodes, 8)))
    link = next(k for k in topology.links if k.target == "switch0")
    seconds = []
    for size in (256 << 20, 512 << 20):
        plan = setup.compile("nccl:collnet+channels=8", tensor(size, 0))
        seconds.append(setup.simulate(plan).seconds)

    slope = (seconds[1] - seconds[0]) / (256 << 20)
    rate = link.bandwidth * setup.constants.nccl.efficiency["net", "simple"]
    assert slope * rate == pytest.approx(1, rel=0.02)
    assert seconds[0] < 1.1 * (256 << 20) * slope


def test_a_switch_carries_two_flows():
    """Rails share spines by two."""
    shape = layout(load_topology(UNITS.format(8)))
    trees = aggregations(shape, range(shape.n))

    assert {2} == set(Counter(tree.top for tree in trees.values()).values())
    assert all(2 == len(set(tree.leaves)) for tree in trees.values())


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        ("dgx-h100x2,fabric=rail_optimised", "none is at the NIC of n0.gpu0"),
        ("dgx-h100", "these GPUs share one"),
        ("dgx-h100x2,fabric=switch,reduce=yes", "8 rails would share switch0"),
        ("dgx-h100x4,fabric=rail_optimised,unit=2,reduce=yes", "4 rails would share spine0"),
    ],
)
def test_it_says_why_not(machine, why):
    with pytest.raises(StrategyError, match=why):
        Setup(machine).compile("nccl:collnet", tensor(4000, 0))


def test_it_runs_by_simple():
    with pytest.raises(StrategyError, match="by Simple only, not by ll"):
        Setup(H100.format(2)).compile("nccl:collnet+ll", tensor(4000, 0))


def test_nccl_takes_it_only_where_it_is_enabled_and_switches_sum():
    """NVIDIA/nccl src/graph/tuning.cc: 2 (3.7 + 7 x 0.4) + 31 us, half of 0.85 x 8 x 48 GB/s."""
    on, machine = Settings(collnet=True), load_topology(H100.format(4))
    found = choose(machine, "all_reduce", 1 << 20, on)

    assert "collnet" == found.algorithm
    assert "nominal" in found.why
    assert found.seconds == pytest.approx(44e-6 + (1 << 20) / 163.2e9, rel=1e-3)
    for settings, topology, collective in (
        (Settings(), machine, "all_reduce"),
        (on, machine, "all_gather"),
        (on, load_topology("dgx-h100x4,fabric=rail_optimised"), "all_reduce"),
        (on, load_topology("dgx-h100"), "all_reduce"),
        (Settings(collnet=True, version=(2, 12)), machine, "all_reduce"),
    ):
        assert "collnet" != choose(topology, collective, 1 << 20, settings).algorithm


def test_of_what_may_be_collnet_no_interval_is_known():
    assert Setup(H100.format(2)).interval(1 << 20, 1.0)
    assert Setup(H100.format(2), nccl=Settings(collnet=True)).interval(1 << 20, 1.0) is None
