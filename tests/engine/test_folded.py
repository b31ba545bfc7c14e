"""One of many equal machines is simulated for all, and says what all of them together say."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import simpy
from hypothesis import given, settings, strategies as st

import simreduce as sr
from simreduce.engine import NOMINAL, Calibration, Fabric, Result
from simreduce.engine.setup import Setup
from simreduce.errors import InputError, PlanError, StrategyError, TopologyError
from simreduce.planners.layouts import layout
from simreduce.planners.strategy.compiler import compile_collective, compile_plan
from simreduce.topology import Cable, Folded, Node, Topology, build, fold, load_topology
from simreduce.topology.loader import load_machine
from simreduce.workload import Gradient, Workload
from tests.simulating import simulate
from tests.thorough import examples

RUNTIMES = ("ideal", "tensorflow")
ALONE = (
    "ring",
    "bidirectional_ring",
    "direct",
    "one_shot",
    "halving_doubling",
    "recursive_doubling",
)
IN_TWO = (
    "ring/ring",
    "ring/direct",
    "chain/ring",
    "double_tree/bidirectional_ring",
    "direct/one_shot",
    "torus_2d/ring",
    "binomial_tree/direct",
    "ring/halving_doubling",
    "halving_doubling/recursive_doubling",
)
DOUBLING = ("halving_doubling", "recursive_doubling")
DISPATCH = Calibration("dispatched", {"copy": 3e-6, "add": 7e-6, "concat": 1e-6, "scale": 2e-6}, {})


def one_gradient(elements: int) -> Workload:
    return Workload("test", (Gradient("gradient", elements),))


def both(
    topology: Topology,
    strategy: str,
    elements: int,
    runtime: str,
    calibration: Calibration = NOMINAL,
) -> tuple[Result, Result]:
    one = fold(topology)
    workload = one_gradient(elements)
    plan, folded = (
        compile_plan(strategy, workload, layout(machine)) for machine in (topology, one)
    )
    return simulate(plan, topology, runtime, calibration), simulate(
        folded, one, runtime, calibration
    )


def times(result: Result, devices: tuple[str, ...]) -> list[float]:
    """Every instant at which an op on one of the devices is done."""
    mine = np.isin(result.device, [result.devices.index(name) for name in devices])
    return np.unique(result.finish[mine]).tolist()


def assert_same(whole: Result, folded: Result) -> None:
    assert folded.seconds == whole.seconds
    assert folded.transfers == whole.transfers
    assert times(folded, folded.devices[:1]) == times(whole, folded.devices[:1])
    for floor in ("critical_path", "resource", "lane"):
        assert getattr(folded.floors, floor) <= folded.seconds
    assert folded.floors.resource == whole.floors.resource
    assert folded.floors.cut <= folded.seconds


def machine(
    gpus: int, nics: int, bandwidth: float, nic: float, latency: float, count: int
) -> Topology:
    """`count` machines of GPUs and NICs under one PCIe switch with a CPU; every second GPU is
    linked to the one before.
    """
    nodes, cables = [Node("switch0", "switch", machine="")], []
    for i in range(count):
        names = [
            *(f"n{i}.gpu{g}" for g in range(gpus)),
            f"n{i}.cpu0",
            *(f"n{i}.nic{k}" for k in range(nics)),
        ]
        kinds = ["gpu"] * gpus + ["cpu"] + ["nic"] * nics
        nodes += [
            Node(name, kind, memory_bandwidth=7 * bandwidth, machine=str(i), transit=kind != "gpu")  # type: ignore[arg-type]
            for name, kind in zip(names, kinds, strict=True)
        ]
        nodes.append(Node(f"n{i}.plx0", "pcie_switch", machine=str(i)))
        cables += [
            Cable(name, f"n{i}.plx0", "pcie3", 1, bandwidth, bandwidth, latency, holds_lane=True)
            for name in names
        ]
        cables += [
            Cable(
                f"n{i}.gpu{g}",
                f"n{i}.gpu{g + 1}",
                "nvlink2",
                1,
                2 * bandwidth,
                2 * bandwidth,
                latency,
                holds_lane=True,
            )
            for g in range(0, gpus - 1, 2)
        ]
        cables += [
            Cable(f"n{i}.nic{k}", "switch0", "cable", 1, nic, nic, 2 * latency, holds_lane=False)
            for k in range(nics)
        ]
    return build("hand-made", "hand-made", "test", nodes, cables)


@pytest.mark.parametrize(("n", "runtime"), list(product((*range(2, 10), 16), RUNTIMES)))
def test_gpus_on_a_switch_say_what_one_of_them_says(n: int, runtime: str) -> None:
    topology = load_topology(f"switch:{n},bandwidth=7GB/s,latency=3us")
    for strategy in ALONE:
        if strategy not in DOUBLING or n in (2, 4, 8, 16):
            assert_same(*both(topology, strategy, 30 * n, runtime, DISPATCH))


@pytest.mark.parametrize(("n", "runtime"), list(product((2, 3, 4, 5), RUNTIMES)))
def test_machines_on_a_switch_say_what_one_of_them_says(n: int, runtime: str) -> None:
    topology = load_topology(f"dgx1vx{n}")
    for strategy in ("ring", "bidirectional_ring", *IN_TWO):
        if not strategy.endswith(DOUBLING) or n in (2, 4):
            assert_same(*both(topology, strategy, 24 * 8 * n, runtime))


RATES = st.integers(1, 10**6).map(lambda k: 1e6 * k / 7)


@settings(deadline=None, max_examples=examples(40))
@given(
    gpus=st.integers(1, 4),
    nics=st.integers(1, 2),
    count=st.integers(2, 5),
    bandwidth=RATES,
    nic=RATES,
    latency=st.sampled_from((0.0, 1e-6, 1 / 3 * 1e-6)),
    part=st.integers(1, 1000),
    strategy=st.sampled_from(("ring", "bidirectional_ring", *IN_TWO)),
    runtime=st.sampled_from(RUNTIMES),
    calibration=st.sampled_from((NOMINAL, DISPATCH)),
)
def test_any_machine_and_any_rate(
    gpus: int,
    nics: int,
    count: int,
    bandwidth: float,
    nic: float,
    latency: float,
    part: int,
    strategy: str,
    runtime: str,
    calibration: Calibration,
) -> None:
    topology = machine(gpus, nics, bandwidth, nic, latency, count)
    if strategy.endswith(DOUBLING):
        topology = machine(gpus, nics, bandwidth, nic, latency, 4)
    elements = part * len(topology.devices)
    whole, folded = both(topology, strategy, elements, runtime, calibration)
    # Not the same bits: rates are added up in the order in which flows come to a resource.
    assert folded.seconds == pytest.approx(whole.seconds, rel=1e-12)
    assert folded.transfers == whole.transfers


@settings(deadline=None, max_examples=examples(30))
@given(
    gpus=st.sampled_from((1, 2, 4)), count=st.sampled_from((2, 4)), bandwidth=RATES, nic=RATES,
    part=st.integers(1, 1000), strategy=st.sampled_from(ALONE),
)  # fmt: skip
def test_all_ranks_at_once_without_queues(
    gpus: int, count: int, bandwidth: float, nic: float, part: int, strategy: str
) -> None:
    topology = machine(gpus, 1, bandwidth, nic, 1e-6, count)
    whole, folded = both(topology, strategy, part * gpus * count, "ideal")
    assert folded.seconds == pytest.approx(whole.seconds, rel=1e-12)


def test_packs_means_and_chunks() -> None:
    topology = load_topology("dgx1vx3")
    one = fold(topology)
    gradients = Workload("two", (Gradient("a", 24 * 10), Gradient("b", 24 * 7)))
    for strategy in (
        "ring+packs=1",
        "ring/ring+mean",
        "ring/ring+chunk=96B",
        "chain/ring+chunk=96B",
    ):
        whole = simulate(compile_plan(strategy, gradients, layout(topology)), topology)
        folded = simulate(compile_plan(strategy, gradients, layout(one)), one)
        assert folded.seconds == whole.seconds


def test_ranks_in_another_order() -> None:
    topology = load_topology("dgx1vx3")
    order = (0, 1, 2, 3, 7, 6, 5, 4)
    whole, folded = (
        simulate(compile_plan("ring", one_gradient(240), layout(m).with_order(order)), m)
        for m in (topology, fold(topology))
    )
    assert folded.seconds == whole.seconds


def test_a_folded_machine_has_the_ranks_of_all() -> None:
    shape = layout(fold(load_topology("dgx1vx5")))
    assert shape.n == 40
    assert shape.ranks == tuple(f"n0.gpu{i}" for i in range(8))
    assert shape.task_count == 5
    assert layout(fold(load_topology("switch:6"))).task_count == 1


def test_a_few_of_the_machines_have_the_shape_of_them() -> None:
    few, real = layout(fold(load_topology("dgx1vx5"))).few(3), layout(load_topology("dgx1vx3"))
    assert (few.tasks, few.links, few.n) == (real.tasks, real.links, real.n)
    assert (
        layout(fold(load_topology("switch:6"))).few(4).tasks
        == layout(load_topology("switch:4")).tasks
    )


def test_large_machines_are_loaded_as_one() -> None:
    large = load_machine("dgx1vx16384")
    assert isinstance(large, Folded)
    assert layout(large).n == 131072
    assert isinstance(load_machine("dgx1vx16"), Topology)
    assert isinstance(load_machine("dgx1vx16", folded=True), Folded)
    assert large.digest != load_machine("dgx1vx16383").digest


def changed(topology: Topology, name: str, **figures: float) -> Topology:
    links = tuple(
        replace(link, **figures) if link.name == name else link for link in topology.links
    )  # type: ignore[arg-type]
    assert links != topology.links
    return replace(topology, links=links)


@pytest.mark.parametrize(
    ("topology", "reason"),
    [
        (
            changed(machine(2, 1, 1e9, 1e9, 0.0, 3), "n1.nic0>switch0", bandwidth=5e8),
            "n1.nic0>switch0 has bandwidth",
        ),
        (
            changed(load_topology("switch:4"), "gpu2>switch0", latency=1e-3),
            "gpu2>switch0 has latency",
        ),
        (load_topology("ring:4"), "linked to 'gpu1' of another machine"),
        (load_topology("full:4"), "of another machine"),
        (load_topology("fat_tree:8,radix=4"), "not on one switch"),
        (load_topology("torus:2x4"), "not on one switch"),
        (load_topology("dgx1v"), "of another machine"),
        (load_topology("switch:1"), "one machine cannot be folded"),
        (load_topology("dgx1vx4,fabric=fat_tree,radix=2"), "not on one switch"),
    ],
)  # fmt: skip
def test_machines_that_are_not_interchangeable_are_refused(topology: Topology, reason: str) -> None:
    with pytest.raises(TopologyError, match=reason):
        fold(topology)


def test_a_slower_device_is_refused() -> None:
    topology = machine(2, 1, 1e9, 1e9, 0.0, 3)
    slow = replace(topology.nodes["n2.gpu1"], memory_bandwidth=1e9)
    with pytest.raises(TopologyError, match=r"n2\.gpu1 has memory bandwidth"):
        fold(replace(topology, nodes={**topology.nodes, "n2.gpu1": slow}))


@pytest.mark.parametrize(
    "text",
    [
        "fat_tree:262144",
        "torus:512x256",
        "ring:131072",
        "dgx1vx16384,fabric=fat_tree",
        "full:10000",
    ],
)
def test_large_networks_that_are_no_switch_are_refused(text: str) -> None:
    with pytest.raises(TopologyError, match=r"more than (can be simulated|the )"):
        load_machine(text)


@pytest.mark.parametrize(
    "strategy",
    ["chain", "double_tree", "xring", "pscpu", "nccl:tree", "ring/double_tree", "blueconnect"],
)
def test_algorithms_that_are_not_symmetric_are_refused(strategy: str) -> None:
    with pytest.raises(StrategyError, match="does not do the same on each of the 4 equal machines"):
        compile_plan(strategy, one_gradient(320), layout(fold(load_topology("dgx1vx4"))))


@pytest.mark.parametrize(
    "strategy", ["ring", "direct", "halving_doubling", "ring/ring", "bidirectional_ring"]
)
def test_unequal_parts_are_refused(strategy: str) -> None:
    with pytest.raises(StrategyError, match="elements are no"):
        compile_plan(strategy, one_gradient(321), layout(fold(load_topology("dgx1vx4"))))


def test_ranks_that_are_no_power_of_two_are_refused_where_they_matter() -> None:
    with pytest.raises(StrategyError, match="no power of two"):
        compile_plan("halving_doubling", one_gradient(240), layout(fold(load_topology("dgx1vx3"))))


def test_other_collectives_are_refused() -> None:
    """Of those besides all-reduces, only all-gathers and reduce-scatters are folded."""
    with pytest.raises(StrategyError, match="all-gather and reduce-scatter are folded"):
        compile_collective(
            "all_to_all", "pairwise", one_gradient(240), layout(fold(load_topology("dgx1vx3")))
        )


def test_a_folded_plan_runs_on_folded_machines_only() -> None:
    topology = load_topology("dgx1vx3")
    one = fold(topology)
    folded, whole = (compile_plan("ring", one_gradient(240), layout(m)) for m in (one, topology))
    for plan, place in ((folded, topology), (whole, one), (folded, fold(load_topology("dgx1vx4")))):
        with pytest.raises(InputError, match="equal machines"):
            simulate(plan, place)


def test_a_folded_plan_is_no_proof() -> None:
    with pytest.raises(PlanError, match="prove"):
        sr.verify(compile_plan("ring", one_gradient(240), layout(fold(load_topology("dgx1vx3")))))


def test_no_link_of_a_folded_machine_can_change() -> None:
    fabric = Fabric(simpy.Environment(), fold(load_topology("switch:4")))
    with pytest.raises(InputError, match="simulate them unfolded"):
        fabric.set_bandwidth("gpu0>switch0", 0.0)


def test_no_machine_of_folded_ones_can_be_left_out() -> None:
    with pytest.raises(ValueError, match="none can be left out"):
        layout(fold(load_topology("dgx1vx3"))).subset(4)


@pytest.mark.parametrize("strategy", ["nccl:ring+simple+channels=8", "nccl:ring+ll+channels=2"])
def test_rings_of_nccl_fold(strategy):
    """Every machine has a ring for each NIC; on one switch it does not matter which way round."""
    whole = load_topology("dgx-a100x4")
    workload = Workload("one", (Gradient("gradient", 32 * 1024),))
    times = [
        (setup := Setup(machine)).simulate(setup.compile(strategy, workload)).seconds
        for machine in (whole, fold(whole))
    ]

    assert times[0] == times[1]
