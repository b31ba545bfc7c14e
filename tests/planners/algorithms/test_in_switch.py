"""In-switch reduction: what switches that sum save, and what they must be linked to."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

import simreduce as sr
from simreduce.errors import StrategyError
from simreduce.planners.layouts import Layout, Reducer
from simreduce.study.tune.sizes import tensor
from simreduce.workload import Gradient, Workload
from tests.thorough import examples


def _planned(machine: str, elements: int, chunk: str = ""):
    topology = sr.load_topology(machine)
    return topology, sr.compile(f"in_switch{chunk}", tensor(4 * elements, 0), sr.layout(topology))


@pytest.mark.parametrize("n", [*range(1, 18), 24, 32, 64])
@pytest.mark.parametrize("chunk", ["", "+chunk=100"])
def test_the_sum_is_right_for_any_number_of_ranks_and_any_size(n, chunk):
    """Also of several tensors, one after another."""
    shape = sr.layout(sr.load_topology(f"switch:{n},reduce=yes"))
    for sizes in ([0], [1], [n - 1], [n], [1000], [3, 0, 1000]):
        workload = Workload("test", tuple(Gradient(f"g{i}", size) for i, size in enumerate(sizes)))

        assert [] == sr.verify(sr.compile(f"in_switch{chunk}", workload, shape))


@settings(max_examples=examples(200, usual=20))
@given(
    st.integers(2, 9),
    st.integers(1, 40),
    st.integers(1, 10**6),
    st.integers(0, 10**6),
    st.integers(1, 10**5),
)
def test_k_chunks_take_k_plus_one_steps_of_a_port(n, k, chunk, nanoseconds, megabytes):
    """Chunk after chunk goes up, each to come down while the next goes up: (k+1)(a/2 + S/(kB)),
    whatever n.
    """
    machine = f"switch:{n},bandwidth={megabytes}MB/s,latency={nanoseconds}ns,reduce=yes"
    topology, plan = _planned(machine, k * chunk, f"+chunk={4 * chunk}")
    step = nanoseconds * 1e-9 / 2 + 4 * chunk / (megabytes * 1e6)

    assert pytest.approx((k + 1) * step, rel=1e-9) == sr.simulate(plan, topology, "ideal").seconds


def test_every_rank_sends_once_and_receives_once():
    """A ring sends 2(n-1)/n times the tensor."""
    _, plan = _planned("switch:8,reduce=yes", 1000, "+chunk=400")
    sent, received = Counter(), Counter()
    for source, target, elements in plan.copies():
        sent[source] += elements
        received[target] += elements

    assert {**{f"gpu{i}": 1000 for i in range(8)}, "switch0": 8000} == sent == received


@pytest.mark.parametrize("n", [2, 3, 8])
def test_a_port_of_an_nvswitch_carries_the_parts_of_its_head_besides(n):
    """S (1 + 1/n) each way, as NVLink SHARP moves it; a network's switch needs no heads."""
    shape = Layout(
        ranks=tuple(f"gpu{i}" for i in range(n)), tasks=(tuple(range(n)),), hosts=("",),
        links=((0,) * n,) * n, reducers=(Reducer("s", tuple(range(n)), (), heads=True),),
    )  # fmt: skip
    plan = sr.compile("in_switch+chunk=3360", tensor(4 * 840 * 8, 0), shape)
    sent, received = Counter(), Counter()
    for source, target, elements in plan.copies():
        sent[source] += elements
        received[target] += elements

    assert [] == sr.verify(plan)
    assert dict.fromkeys(shape.ranks, 840 * 8 * (n + 1) // n) == {r: sent[r] for r in shape.ranks}
    assert {r: received[r] for r in shape.ranks} == {r: sent[r] for r in shape.ranks}


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_an_nvswitch_takes_the_tensor_and_an_nth_of_it_over_a_port(gpus):
    """S (1 + 1/n)/B from below, and little more with small chunks: algbw is not B for any n."""
    machine = sr.load_topology("dgx-h100")
    nbytes, bandwidth = 1 << 30, machine.links[0].bandwidth
    shape = sr.layout(machine).subset(gpus)
    plan = sr.compile("in_switch+chunk=1MiB", f"bytes:{nbytes}", shape)
    wires = nbytes * (1 + 1 / gpus) / bandwidth

    assert {link.bandwidth for link in machine.links if link.link_class == "nvlink4"} == {bandwidth}
    assert wires <= sr.simulate(plan, machine, "ideal").seconds <= 1.3 * wires


@pytest.mark.parametrize(
    ("machine", "published", "off"),
    [("dgx-h100", 479e9, 0.03), ("hgx-h200", 482e9, 0.05), ("hgx-b200", 846e9, 0.20)],
)
def test_large_tensors_have_the_bus_bandwidth_of_published_runs(machine, published, off):
    """With the constants of NVLS that are fitted on Hopper; Blackwell's were never fitted. NCCL's
    channels limit NVLS, and a plan without channels only the wires.
    """
    [nccl] = sr.bench(machine, "nccl:nvls", "8GiB").rows
    [free] = sr.bench(machine, "in_switch+chunk=4MiB", "8GiB").rows
    found = 2 * 7 / 8 * nccl.nbytes / nccl.seconds

    assert ("nccl", "nccl") == (nccl.runtime, free.runtime)
    assert pytest.approx(published, rel=off) == found
    assert free.seconds <= nccl.seconds


def test_the_spines_of_a_fat_tree_take_equal_shares():
    """Leaves of 4 ports with 2 spines: a leaf sums its ranks, a spine sums the leaves."""
    topology, plan = _planned(
        "fat_tree:16,radix=4,oversubscription=2,reduce=yes", 1000, "+chunk=400"
    )
    sent = Counter()
    for source, target, elements in plan.copies():
        sent[source, target] += elements

    assert [] == sr.verify(plan)
    assert {500} == {sent[f"leaf{i}", f"spine{j}"] for i in range(4) for j in range(2)}
    assert {500} == {sent[f"spine{j}", f"leaf{i}"] for i in range(4) for j in range(2)}
    assert {1000} == {sent[f"gpu{i}", f"leaf{i // 4}"] for i in range(16)}
    assert sr.simulate(plan, topology, "ideal").seconds >= 4000 / 25e9


def test_several_switches_that_link_all_ranks_take_equal_shares():
    """As the NVSwitches of a box do."""
    shape = Layout(
        ranks=("a", "b", "c"), tasks=((0, 1, 2),), hosts=("",), links=((0, 0, 0),) * 3,
        reducers=(Reducer("s", (0, 1, 2), ("t",)), Reducer("t", (0, 1, 2), ("s",))),
    )  # fmt: skip
    plan = sr.compile("in_switch", tensor(4000, 0), shape)

    assert [] == sr.verify(plan)
    assert {500} == {elements for _, _, elements in plan.copies()}


@pytest.mark.parametrize(
    "reducers",
    [
        (),
        (Reducer("s", (0, 1), ()),),
        (Reducer("s", (0, 1), ("t",)), Reducer("t", (2,), ("s",))),
        (Reducer("s", (0, 1), ("u",)), Reducer("t", (1, 2), ("u",)), Reducer("u", (), ("s", "t"))),
    ],
)
def test_switches_that_do_not_join_all_ranks_once_are_refused(reducers):
    shape = Layout(("a", "b", "c"), ((0, 1, 2),), ("",), ((0, 0, 0),) * 3, reducers=reducers)

    with pytest.raises(StrategyError, match="needs switches that sum"):
        sr.compile("in_switch", tensor(4000, 0), shape)


def test_a_part_of_a_machine_keeps_the_switches_above_it():
    """Leaves without any of the ranks are left out."""
    shape = sr.layout(sr.load_topology("fat_tree:16,radix=4,reduce=yes")).subset(6)

    assert [("leaf0", (0, 1, 2, 3)), ("leaf1", (4, 5))] == [
        (r.name, r.ranks) for r in shape.reducers if r.ranks
    ]
    assert [] == sr.verify(sr.compile("in_switch", tensor(4000, 0), shape))
