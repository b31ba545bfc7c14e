"""Bounds of links alone: no algorithm and no runtime is faster."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.engine.result import Floors
from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.plan import Plan
from simreduce.plan.composition import side_by_side
from simreduce.planners.algorithms import COLLECTIVES
from simreduce.planners.strategy import parse_strategy
from simreduce.study.tune.sizes import tensor
from simreduce.testing import cable, machine, node
from simreduce.topology import Topology, load_topology
from tests.thorough import examples

MIB = 1 << 20
QUICK = ("ring", "direct", "double_tree", "trees", "halving_doubling", "bruck", "pairwise", "nccl")


def plan_for(setup: Setup, collective: str, nbytes: int, algorithm: str = "nccl") -> Plan:
    return setup.compile(parse_strategy(algorithm, collective), tensor(nbytes, 0))


def floors_of(
    topology: Topology | str, collective: str, nbytes: int, algorithm: str = "nccl"
) -> Floors:
    setup = Setup(topology, "ideal")
    return setup.simulate(plan_for(setup, collective, nbytes, algorithm)).floors


@pytest.mark.parametrize(
    ("collective", "ports"),
    [
        ("all_reduce", 1.5),  # 2 (n - 1) tensors leave n ports
        ("all_gather", 0.75),
        ("reduce_scatter", 0.75),
        ("all_to_all", 0.75),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("send_receive", 1.0),
    ],
)
def test_bytes_that_must_pass_the_port_of_a_gpu(collective, ports):
    """Every GPU has 3 x 2 NVLinks of 24 GB/s and a PCIe link of 12 GB/s."""
    found = floors_of("v100-mesh-4", collective, 1 << 30)

    assert found.hardware == pytest.approx(ports * (1 << 30) / (6 * 24e9 + 12e9), rel=1e-6)


@pytest.mark.parametrize(
    ("collective", "tensors"),
    [("all_reduce", 1), ("all_gather", 0.5), ("reduce_scatter", 0.5), ("all_to_all", 4),
     ("send_receive", 1)],
)  # fmt: skip
def test_bytes_that_must_leave_a_machine(collective, tensors):
    """Two machines of eight GPUs, whose eight NICs are narrower than the ports of a GPU."""
    found = floors_of("dgx-h100x2,nic=ib_edr", collective, 1 << 30)
    links = load_topology("dgx-h100x2,nic=ib_edr").links
    (rate,) = {link.bandwidth for link in links if link.link_class == "ib_edr"}

    assert found.cut == pytest.approx(tensors * (1 << 30) / (8 * rate), rel=1e-6)


def test_a_rank_waits_for_what_the_farthest_one_has():
    """Four GPUs behind a switch each, on a chain of cables of 1 s. Calls with a root overlap."""
    chain = [cable(f"switch{i}", f"switch{i + 1}", latency=1.0) for i in range(3)]
    topology = machine(*chain, *(cable(f"gpu{i}", f"switch{i}", 1e9, 0.5) for i in range(4)))

    assert floors_of(topology, "all_reduce", 16, "direct").hardware == pytest.approx(4.0)
    assert floors_of(topology, "broadcast", 16, "direct").hardware == pytest.approx(16 / 1e9)
    assert floors_of(topology, "all_reduce", 16).hardware < 1.0  # kernels wait for no copies


def test_kernels_are_bounded_by_no_latency_of_copies():
    """Slow links by latency, and a call of few bytes that NCCL's constants make faster."""
    links = [cable("gpu0", "cpu0", 25e9, 8e-6), cable("gpu1", "cpu0", 25e9, 8e-6)]
    setup = Setup(machine(*links), "nccl")
    found = setup.simulate(plan_for(setup, "all_reduce", 4096, "halving_doubling"))

    assert found.floors.seconds <= found.seconds < 16e-6


def test_a_switch_that_sums_needs_no_second_send_of_each_port():
    setup = Setup("dgx-h100", "ideal")
    found = setup.simulate(plan_for(setup, "all_reduce", 64 * MIB, "in_switch"))

    assert found.floors.hardware == found.floors.cut <= found.seconds


def test_machines_whose_fabric_does_not_sum_send_the_tensor_twice_but_for_one():
    """Three of four machines send what they have, and the last one sends the total to three."""
    found = floors_of("dgx-h100x4,nic=ib_edr", "all_reduce", 1 << 30)

    assert found.hardware == pytest.approx(1.5 * found.cut)


def test_calls_side_by_side_have_no_bound_of_one_call():
    """Two pairs of GPUs sum by themselves: nothing crosses between the pairs."""
    setup = Setup("switch:4", "ideal")
    half = Setup("switch:2", "ideal")
    one = plan_for(half, "all_reduce", MIB, "ring")
    other = replace(one, devices=("gpu2", "gpu3"))
    plan = side_by_side([one, other], setup.layout.devices)

    assert half.simulate(one).floors.hardware > 0.0
    assert setup.simulate(plan).floors.hardware == 0.0


@pytest.mark.parametrize("collective", list(COLLECTIVES))
def test_the_bound_is_the_machines_whatever_runs_on_it(collective):
    """No constant of a runtime or a calibration is in it."""
    found = set()
    for runtime in ("ideal", "nccl", "tensorflow"):
        for algorithm in ("nccl", list(COLLECTIVES[collective])[-1]):
            setup = Setup("dgx-a100x2", runtime)
            plan = plan_for(setup, collective, 48 * MIB, algorithm)
            found.add(setup.simulate(plan).floors.hardware)

    assert len(found) == 1


@st.composite
def uneven(draw) -> Topology:
    """Up to six GPUs in up to three machines, cables between some, all behind uneven switches."""
    n, m = draw(st.integers(2, 6)), draw(st.integers(1, 3))
    rate = st.floats(1e3, 1e6)
    latency = st.sampled_from([0.0, 5e-7, 2e-6])
    gpus = [node(f"gpu{i}", machine=str(i % m)) for i in range(n)]
    parts = [cable(f"gpu{i}", f"switch{i % m}", draw(rate), draw(latency)) for i in range(n)]
    parts += [cable(f"switch{j}", "switch9", draw(rate), draw(latency)) for j in range(m)]
    pairs = [(a, b) for a, b in combinations(range(n), 2) if a % m == b % m]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    parts += [cable(f"gpu{a}", f"gpu{b}", draw(rate), draw(latency)) for a, b in chosen]
    switches = [node(f"switch{j}", machine=str(j)) for j in range(m)]
    return machine(*gpus, *switches, node("switch9", machine=""), *parts)


@given(uneven(), st.sampled_from(list(COLLECTIVES)), st.integers(1, 3000), st.data())
@settings(max_examples=examples(60))
def test_no_algorithm_is_faster_than_the_links(topology, collective, elements, data):
    """Odd sizes on odd numbers of ranks with uneven links."""
    setup = Setup(topology, "ideal")
    algorithm = data.draw(st.sampled_from([n for n in COLLECTIVES[collective] if n in QUICK]))
    try:
        plan = plan_for(setup, collective, 4 * elements, algorithm)
    except InputError:  # as too few elements, or a number of ranks that it is not for
        return
    found = setup.simulate(plan)

    assert found.floors.hardware <= found.seconds * (1 + 1e-9)
