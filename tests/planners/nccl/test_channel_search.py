"""The search for channels, against logs and graph files that were published."""

from __future__ import annotations

import itertools
from collections import Counter

import networkx as nx
import pytest
from hypothesis import given, settings, strategies as st

from simreduce.planners.nccl import Settings, facts, plan, ring_orders
from simreduce.planners.nccl.channel_search import ChannelSearch
from simreduce.planners.nccl.communicator import NVL, SYS
from simreduce.planners.nccl.constants import ladder
from simreduce.planners.nccl.orders import PathLimits, Task, fill
from simreduce.topology import Topology, load_topology, shipped
from simreduce.topology.importers.nccl_xml import read_nccl_graphs
from tests.thorough import examples

RINGS = {
    "dgx1v": (6, 20, 20),
    "dgx1p": (4, 18, 18),
    "dgx2": (6, 20, 20),
    "dgx-a100": (12, 20, 20),
    "dgx-h100": (12, 30, 30),
    "hgx-b200": (16, 45, 45),
    "dgx1vx2": (4, 12, 12),
    "dgx-a100x2": (8, 24, 24),
    "dgx-h100x2": (8, 45, 45),
    "hgx-b200x2": (8, 48, 48),
    "p4dx2": (4, 12, 12),
    "v100-mesh-4": (6, 20, 20),
    "a100-mesh-4": (12, 20, 20),
    "h100-mesh-4": (12, 30, 30),
}
"""Channels and their speeds inside and between nodes, as GRAPH logs and NVIDIA's answers have them;
those of H100 are in NVIDIA/nccl issue 1197, those of the A100 mesh in issue 1499.
"""


@pytest.mark.parametrize("name", RINGS)
def test_rings_of_known_machines(name):
    """As many channels of the same speed as NCCL has."""
    ring = plan(load_topology(name)).graphs.ring

    assert RINGS[name] == (ring.count, ring.speed_intra, ring.speed_inter)


@pytest.mark.parametrize(
    ("name", "nvls"),
    [("dgx-h100", (8, 40, 60)), ("hgx-b200", (8, 80, 90)), ("gb200-nvl72", (32, 20, 40))],
)
def test_nvls_of_known_machines(name, nvls):
    """Issue 1197 has that of H100."""
    found = plan(load_topology(name)).graphs.nvls

    assert nvls == (found.count, found.speed_intra, found.speed_inter)


def test_nvls_needs_a_switch_that_sums_and_a_user_who_allows_it():
    """None on A100, on a mesh, before 2.17, or when it is switched off."""
    h100 = load_topology("dgx-h100")

    assert plan(load_topology("dgx-a100")).graphs.nvls is None
    assert plan(load_topology("h100-mesh-4")).graphs.nvls is None
    assert plan(h100, Settings(version=(2, 16))).graphs.nvls is None
    assert plan(h100, Settings(nvls=False)).graphs.nvls is None


ISSUE_514 = """
0 7 6 5 4 3 2 1 8 15 14 13 12 11 10 9 16 23 22 21
0 3 10 15 14 13 12 9 8 11 18 23 22 21 20 17 16 19 26 31
0 7 6 5 12 11 10 9 8 15 14 13 20 19 18 17 16 23 22 21
0 5 4 7 14 11 10 9 8 13 12 15 22 19 18 17 16 21 20 23
"""
"""NVIDIA/nccl issue 514: the first 20 ranks of the rings of four p4d, one ring a NIC."""


def test_rings_of_a_published_log_of_p4d():
    """Far from the NIC first and downwards, and the GPU beside the one it came in by last."""
    logged = [tuple(map(int, line.split())) for line in ISSUE_514.strip().splitlines()]
    found = ring_orders(load_topology("p4dx4"))[:4]
    turned = [(*ring[ring.index(0) :], *ring[: ring.index(0)]) for ring in found]

    assert logged == [ring[:20] for ring in turned]


@pytest.mark.parametrize("machine", ["p4dx2", "dgx-h100x2", "hgx-b200x2"])
def test_rings_over_nvswitches_count_down_and_trees_count_up(machine):
    """From the first NIC. One machine alone counts up."""
    found = plan(load_topology(machine)).graphs
    alone = plan(load_topology(machine.removesuffix("x2"))).graphs.ring

    assert (0, 7, 6, 5, 4, 3, 2, 1) in [channel.gpus for channel in found.ring.channels]
    assert (0, 1, 2, 3, 4, 5, 6, 7) in [channel.gpus for channel in found.tree.channels]
    assert (0, 1, 2, 3, 4, 5, 6, 7) in [channel.gpus for channel in alone.channels]


def test_a_tree_of_h800_falls_back_to_the_plain_one():
    """NVIDIA/nccl issue 1154, two nodes and more of 8 H800: 8 chains of 22 GB/s."""
    tree = plan(load_topology("hgx-h800x2"), Settings(version=(2, 19))).graphs.tree

    assert ("plain_tree", 8, 22) == (tree.pattern, tree.count, tree.speed_inter)


ISSUE_713 = """<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="6" speedintra="22" speedinter="22"
   latencyinter="0" typeintra="NVL" typeinter="PIX" samechannels="0">
    <channel><gpu dev="0"/><gpu dev="1"/><gpu dev="2"/><gpu dev="3"/></channel>
    <channel><gpu dev="0"/><gpu dev="1"/><gpu dev="3"/><gpu dev="2"/></channel>
    <channel><gpu dev="0"/><gpu dev="2"/><gpu dev="3"/><gpu dev="1"/></channel>
    <channel><gpu dev="0"/><gpu dev="2"/><gpu dev="1"/><gpu dev="3"/></channel>
    <channel><gpu dev="0"/><gpu dev="3"/><gpu dev="1"/><gpu dev="2"/></channel>
    <channel><gpu dev="0"/><gpu dev="3"/><gpu dev="2"/><gpu dev="1"/></channel>
  </graph>
</graphs>"""
"""NVIDIA/nccl issue 713: four V100, two links for each pair; its last channel is the one left."""


def test_the_channels_of_a_dumped_graph():
    """The same rings in the same order, of the speed that 2.10 to 2.17 planned."""
    (known,) = read_nccl_graphs(ISSUE_713, "issue")
    found = plan(load_topology("v100-mesh-4"), Settings(version=(2, 12))).graphs.ring

    assert [c.gpus for c in known.channels] == [c.gpus for c in found.channels]
    assert known.speed_intra == found.speed_intra * 1e9
    assert f"{known.type_intra}/{known.type_inter}" == found.types
    assert not found.same_channels


SEARCHED = {
    "a100-mesh-4": "0123 0132 0231 0213 0312 0321 " * 2,
    "dgx1v": "03215674 03215674 04765123 04765123 01375462 02645731",
}
"""What NCCL's own search finds within its limit of 2^14 steps, worked out by its rules: the last
order again, then from the lowest GPU the widest and nearest hops (`ncclTopoSearchRec`).
"""


@pytest.mark.parametrize("version", [(2, 8), (2, 12), (2, 18), (2, 30)])
@pytest.mark.parametrize("machine", SEARCHED)
def test_rings_come_in_the_order_of_nccls_search(machine, version):
    """In every version: issue 713 also has a dump of four A100 with 4 rings, which no rule gives;
    public logs of such boards from 2.18 on have 12 of 20 GB/s.
    """
    ring = plan(load_topology(machine), Settings(version=version)).graphs.ring

    assert SEARCHED[machine].split() == ["".join(map(str, c.gpus)) for c in ring.channels]


def test_four_gpus_of_a_dgx1():
    """54 GB/s, which no set of link-disjoint rings reaches, are there on GPUs 0 to 3."""
    machine = load_topology("dgx1p")
    ring = plan(facts(machine, [f"gpu{i}" for i in range(4)])).graphs.ring

    assert (6, 9) == (ring.count, ring.speed_intra)
    assert ring.type_intra == NVL


def test_without_peer_access_channels_go_through_the_host():
    """Type PHB, and one channel where an Intel host slows copies between GPUs down."""
    ring = plan(load_topology("rtx4090-2")).graphs.ring

    assert ring.types == "PHB/PIX"


def test_p2p_disable_leaves_the_host():
    """NVLinks are not used."""
    ring = plan(load_topology("dgx1v"), Settings(p2p_disable=True)).graphs.ring

    assert ring.type_intra > NVL
    assert ring.count * ring.speed_intra <= 12
    switched = plan(load_topology("dgx-a100"), Settings(p2p_disable=True)).graphs
    assert switched.ring.type_intra > NVL


def test_rings_of_several_nodes_share_the_nics():
    """One channel for each NIC, in by it and out by it."""
    ring = plan(load_topology("dgx-h100x2")).graphs.ring

    assert sorted(c.net_in for c in ring.channels) == [f"n0.mlx5_{i}" for i in range(8)]
    assert all(c.net_in == c.net_out for c in ring.channels)
    assert ring.types == "NVL/PXN"


@pytest.mark.parametrize("capability", [70, 80, 90, 100])
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("minor", [5, 12, 18, 30])
def test_ladders_go_down(capability, nodes, minor):
    """Every speed is lower than the one before."""
    speeds = ladder(capability, nodes, (2, minor))

    assert all(a > b > 0 for a, b in itertools.pairwise(speeds))


def _load(facts_, graph):
    """GB/s that the channels take of each arc, duplication undone by adding up."""
    box, total = facts_.boxes[0], Counter()
    for channel in graph.channels:
        hops = list(itertools.pairwise((*channel.gpus, channel.gpus[0])))
        for u, v in hops if len(channel.gpus) > 1 else []:
            for arc in box.between(u, v).arcs:
                total[arc] += graph.speed_intra
    return total


@st.composite
def machines(draw):
    """Small machines of NVLinks and PCIe, connected by the host."""
    n = draw(st.integers(2, 6))
    graph = nx.MultiGraph()
    graph.add_node("cpu0", kind="cpu", machine="0", model=draw(st.sampled_from(["EPYC", "Xeon"])))
    for gpu in range(n):
        graph.add_node(f"gpu{gpu}", model=draw(st.sampled_from(["V100"])), machine="0")
        graph.add_edge(f"gpu{gpu}", "cpu0", link_class="pcie3_x16")
    for u, v in itertools.combinations(range(n), 2):
        lanes = draw(st.integers(0, 3))
        if lanes:
            graph.add_edge(f"gpu{u}", f"gpu{v}", link_class="nvlink2", lanes=lanes)
    return Topology.from_networkx(graph)


@settings(max_examples=examples(40))
@given(machines())
def test_every_channel_is_a_cycle_within_the_capacities(machine):
    """Every GPU once, and no link carries more than it has."""
    known = facts(machine)
    ring = plan(machine).graphs.ring

    assert all(sorted(c.gpus) == list(range(known.n)) for c in ring.channels)
    for arc, load in _load(known, ring).items():
        assert load <= known.boxes[0].capacity[arc] + 1e-3


@settings(max_examples=examples(40))
@given(machines())
def test_trees_are_chains_of_all_gpus_and_as_many_as_rings(machine):
    """And no slower."""
    found = plan(machine).graphs

    assert found.tree.count == found.ring.count
    assert found.tree.speed_intra >= found.ring.speed_intra
    assert all(sorted(c.gpus) == list(range(facts(machine).n)) for c in found.tree.channels)


def test_the_system_line():
    """maxBw and totalBw of NVIDIA/nccl issue 1499, four A100 with four links for each pair."""
    known = facts(load_topology("a100-mesh-4"))

    assert (80.0, 240.0) == (
        ChannelSearch(known, known.boxes[0], Settings()).reach,
        known.boxes[0].total,
    )


SHIPPED = [
    *(name for name, *_ in shipped() if name not in ("gb200-nvl72", "gh200")),
    *(f"{name}x2" for name in ("dgx1v", "dgx-h100", "p4d", "alps", "polaris", "abci-a", "dgx2")),
]


@pytest.mark.parametrize("name", SHIPPED)
def test_channels_of_every_speed_fit_and_slower_ones_are_no_fewer(name):
    """What all channels take of a link, NICs included, is no more than it has."""
    known = facts(load_topology(name))
    box, several = known.boxes[0], known.nodes > 1
    intel = known.vendor == "Intel"
    counts = []
    for speed in ladder(known.capability, known.nodes, (2, 30)):
        limits = PathLimits(SYS, SYS, cross=False)
        task = Task(box, speed, ring=True, limits=limits, several=several, intel=intel)
        orders = fill(task, 1, 32)
        counts.append(len(orders))
        left = dict(enumerate(box.capacity))
        for order in orders:
            assert sorted(order.gpus) == list(range(len(box.gpus)))
            assert len(order.paths) == len(box.gpus) - several
            for path, inside in [(p, True) for p in order.paths] + [
                (p, False) for p in order.outer
            ]:
                for arc, load in task.load(path, between=inside).items():
                    left[arc] -= load
        assert min(left.values()) >= -1e-3

    assert counts == sorted(counts)


def test_two_gpus_of_two_nodes_with_a_nic_each():
    """NVIDIA/nccl issue 1189, H20: four channels of 24 GB/s, which run as eight."""
    machine = load_topology("dgx-h100x2")
    known = facts(machine, ["n0.gpu0", "n0.gpu1", "n1.gpu0", "n1.gpu1"])
    ring = plan(known).graphs.ring

    assert (4, 24, 24) == (ring.count, ring.speed_intra, ring.speed_inter)
    assert {c.net_in for c in ring.channels} == {"n0.mlx5_0", "n0.mlx5_1"}
    assert plan(known).model.channels == 8


def test_two_gpus_of_different_sockets_without_nvlink():
    """NVIDIA/nccl issue 1358, two A100 on Intel hosts: one channel of 10 GB/s over the sockets."""
    known = facts(load_topology("a100-pcie-8"), ["gpu0", "gpu7"])
    ring = plan(known).graphs.ring

    assert (1, 10, "SYS/PIX") == (ring.count, ring.speed_intra, ring.types)
