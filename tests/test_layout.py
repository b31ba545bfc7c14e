"""The layout: what planners may know of a machine."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys

import pytest
from hypothesis import given, strategies as st

from simreduce.errors import StrategyError
from simreduce.planners.layouts import Layout, SparseRow, layout
from simreduce.topology import Node, build, load_topology

DGX1V = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)


def test_one_machine():
    lay = layout(load_topology("dgx1v"))

    assert lay.ranks == tuple(f"gpu{i}" for i in range(8))
    assert lay.tasks == (tuple(range(8)),)
    assert lay.hosts == ("cpu0",)
    assert lay.links == DGX1V
    assert lay.devices == (*lay.ranks, "cpu0")
    assert (lay.n, len(lay)) == (8, 8)


def test_several_machines():
    lay = layout(load_topology("dgx1vx11"))

    assert lay.tasks == tuple(tuple(range(8 * i, 8 * i + 8)) for i in range(11))
    assert lay.hosts == tuple(f"n{i}.cpu0" for i in range(11))
    assert lay.ranks[80] == "n10.gpu0"
    assert tuple(row[8:16] for row in lay.links[8:16]) == DGX1V
    assert not any(lay.links[0][8:])
    assert lay.host_devices("pscpu") == tuple(range(88, 99))


def test_a_machine_without_a_cpu():
    lay = layout(build("t", "t", "t", [Node("gpu0", "gpu")], []))

    assert lay.hosts == ("",)
    assert lay.devices == ("gpu0",)
    with pytest.raises(StrategyError, match="pscpu: it needs a CPU beside 'gpu0'"):
        lay.host_devices("pscpu")


@pytest.mark.parametrize(("text", "lanes"), [("ring:5", 10), ("full:5", 20), ("switch:5", 0)])
def test_only_direct_links_between_gpus_count(text, lanes):
    assert sum(map(sum, layout(load_topology(text)).links)) == lanes


CLUSTER = layout(load_topology("dgx1vx3"))


@given(st.integers(1, 24))
def test_a_subset_is_the_first_ranks(k):
    part = CLUSTER.subset(k)

    assert part.ranks == CLUSTER.ranks[:k]
    assert [rank for task in part.tasks for rank in task] == list(range(k))
    assert all(part.tasks)
    assert part.hosts == CLUSTER.hosts[: -(-k // 8)]
    assert all(part.links[i][j] == CLUSTER.links[i][j] for i in range(k) for j in range(k))
    assert {len(row) for row in part.links} == {k}
    assert part.subset(k) == part


@given(st.lists(st.integers(0, 2), max_size=6), st.data())
def test_a_row_reads_like_the_tuple_of_its_numbers(numbers, data):
    row = SparseRow({i: v for i, v in enumerate(numbers) if v}, len(numbers))
    cut = data.draw(st.slices(len(numbers)))

    assert row == tuple(numbers)
    assert tuple(numbers) == row
    assert (hash(row), repr(row), list(row), len(row)) == (
        hash(tuple(numbers)),
        repr(tuple(numbers)),
        numbers,
        len(numbers),
    )
    assert row[cut] == tuple(numbers[cut])
    assert row[cut] == SparseRow({i: v for i, v in enumerate(numbers[cut]) if v}, len(numbers[cut]))
    assert [row[i] for i in range(-len(numbers), len(numbers))] == numbers * 2
    with pytest.raises(IndexError):
        row[len(numbers)]
    assert pickle.loads(pickle.dumps(row)) == row  # noqa: S301 - our own bytes


@pytest.mark.parametrize("k", [0, -1, 25])
def test_a_subset_that_is_not_there(k):
    with pytest.raises(ValueError, match=f"cannot take {k} of 24 devices"):
        CLUSTER.subset(k)


@given(st.sets(st.integers(0, 23), min_size=1))
def test_chosen_ranks_keep_their_tasks_and_links(chosen):
    part, ranks = CLUSTER.only(sorted(chosen, reverse=True)), sorted(chosen)

    assert part.ranks == tuple(CLUSTER.ranks[r] for r in ranks)
    assert [rank for task in part.tasks for rank in task] == list(range(len(ranks)))
    assert [
        {CLUSTER.ranks[r].split(".")[0] for r in task}
        for task in CLUSTER.tasks
        if chosen & set(task)
    ] == [{part.ranks[r].split(".")[0] for r in task} for task in part.tasks]
    assert all(
        part.links[i][j] == CLUSTER.links[a][b]
        for i, a in enumerate(ranks)
        for j, b in enumerate(ranks)
    )


@pytest.mark.parametrize(
    ("ranks", "fault"),
    [
        ([], "name one at least"),
        ([0, 24], "there is no 24"),
        ([1, 1], "each is named once"),
        ([-1], "there is no -1"),
    ],
)
def test_ranks_that_cannot_be_chosen(ranks, fault):
    with pytest.raises(ValueError, match=f"{fault}; choose from 0 to 23"):
        CLUSTER.only(ranks)


def test_linked_gpus_compete_for_their_links_only():
    """A DGX-1's PCIe switches are no part of it, as no transfer between linked GPUs goes there."""
    network = layout(load_topology("dgx1v")).network()

    assert network.names == tuple(f"gpu{i}" for i in range(8))
    assert len(network.arcs) == 32
    assert {(a, b): rate / 24e9 for a, b, rate in network.arcs} == {
        (a, b): lanes for a, row in enumerate(DGX1V) for b, lanes in enumerate(row) if lanes
    }
    assert network.direct
    assert network.symmetric


def test_gpus_without_a_link_compete_on_the_routes_of_the_engine():
    """gpu1 and gpu4 of a DGX-1 go through PCIe switches and both sockets; with gpu0 between them
    they need not.
    """
    machine = layout(load_topology("dgx1v"))
    apart, joined = machine.only([1, 4]).network(), machine.only([0, 1, 4]).network()

    assert {*apart.names} == {"gpu1", "gpu4", "plx0", "cpu0", "cpu1", "plx2"}
    for way in (apart.paths[0][1], apart.paths[1][0]):
        ends = [apart.arcs[arc][:2] for arc in way]
        assert (
            5 == sum(a != b for a, b in ends) < len(ends)
        )  # the others: what copies through the host share
    assert joined.paths[1][2] == ()
    assert machine.only([0, 1, 4]).network(routed=True).paths[1][2]


def test_a_layout_made_by_hand_has_its_lanes_for_a_network():
    made = Layout(("a", "b", "c"), ((0, 1, 2),), ("",), ((0, 2, 0), (2, 0, 1), (0, 1, 0)))

    assert made.network().arcs == ((0, 1, 2.0), (1, 0, 2.0), (1, 2, 1.0), (2, 1, 1.0))


def test_tasks_without_links_between_them_meet_on_a_switch():
    made = Layout(
        ("a", "b", "c"), ((0, 1), (2,)), ("", ""), ((0, 2, 0), (2, 0, 0), (0, 0, 0))
    ).network()

    assert made.names == ("a", "b", "c", "switch")
    assert len(made.paths[0][1]) == 1
    assert [made.arcs[arc] for arc in made.paths[0][2]] == [(0, 3, 1.0), (3, 2, 1.0)]


def test_too_many_ranks_for_a_search_are_told():
    with pytest.raises(StrategyError, match="up to 64 GPUs, and these are 65"):
        layout(load_topology("switch:65")).network()


def test_a_layout_is_a_value_without_rates():
    assert layout(load_topology("dgx1v")) == layout(load_topology("dgx1v").scale(bandwidth=2))
    assert hash(CLUSTER) == hash(layout(load_topology("dgx1vx3")))
    assert {field.name for field in dataclasses.fields(Layout)} == {
        "ranks",
        "tasks",
        "hosts",
        "links",
        "order",
        "machines",
        "one_task",
        "rules",
        "reducers",
        "nics",
        "wiring",
        "decide",
    }
    assert "wiring" not in repr(CLUSTER)


def test_the_module_needs_no_networkx():
    script = (
        "import sys, simreduce.planners.layouts; "
        "sys.exit('networkx' in sys.modules or 'numpy' in sys.modules)"
    )

    assert (
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONPATH": ":".join(sys.path)}, check=False
        ).returncode
        == 0
    )
