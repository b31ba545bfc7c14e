"""The search for channels, against logs and graph files that were published."""

from __future__ import annotations

import itertools
from collections import Counter

import networkx as nx
import pytest
from hypothesis import given, settings, strategies as st

from simreduce.computing import once
from simreduce.planners.nccl import (
    Settings,
    choose,
    facts,
    graphs,
    plan,
    ring_orders,
    tree_parents,
)
from simreduce.planners.nccl.channel_search import ChannelSearch
from simreduce.planners.nccl.communicator import NVL
from simreduce.planners.nccl.constants import ladder
from simreduce.planners.nccl.orders import NodePaths
from simreduce.topology import Topology, load_topology, shipped
from simreduce.topology.importers.nccl_xml import read_nccl_graphs, read_nccl_topology
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
    "dgx-h100x2": (8, 48, 48),
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
    found = ring_orders(load_topology("p4dx4"), Settings(version=(2, 9)))[:4]
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


@pytest.mark.slow
def test_p2p_disable_leaves_switches():
    """NVSwitches are not used either, and the search for other ways is a long one."""
    ring = plan(load_topology("dgx-a100"), Settings(p2p_disable=True)).graphs.ring

    assert ring.type_intra > NVL


def test_rings_of_several_nodes_share_the_nics():
    """One channel for each NIC; each second one goes back the way of the one before."""
    ring = plan(load_topology("dgx-h100x2")).graphs.ring
    nics = [f"n0.mlx5_{i}" for i in range(8)]

    assert nics == [c.net_in for c in ring.channels]
    assert nics == [ring.channels[i ^ 1].net_out for i in range(8)]
    assert ring.types == "NVL/PIX"


def test_rings_come_back_by_their_nic_where_they_may_not_cross():
    """`NCCL_CROSS_NIC=0`, or before 2.19, at the price of a little speed."""
    for settings_ in (Settings(cross_nic=0), Settings(version=(2, 18))):
        ring = plan(load_topology("dgx-h100x2"), settings_).graphs.ring

        assert all(c.net_in == c.net_out for c in ring.channels)
        assert (45, "NVL/PXN") == (ring.speed_inter, ring.types)


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


def test_the_oldest_of_many_searches_is_forgotten():
    """And made again when it is asked for."""
    known, made = {}, []
    for node in "abaca":
        assert node == once(known, node, lambda node=node: made.append(node) or node, most=2)

    assert ["a", "b", "c", "a"] == made
    assert ["c", "a"] == [*known]


def test_the_system_line():
    """maxBw and totalBw of NVIDIA/nccl issue 1499, four A100 with four links for each pair."""
    known = facts(load_topology("a100-mesh-4"))

    assert (80.0, 240.0) == (
        NodePaths(known, known.boxes[0], Settings()).widest(),
        known.boxes[0].total,
    )


SHIPPED = [
    *(name for name, *_ in shipped() if name not in ("gb200-nvl72", "gh200")),
    *(f"{name}x2" for name in ("dgx1v", "dgx-h100", "p4d", "alps", "polaris", "abci-a", "dgx2")),
]


@pytest.mark.parametrize("name", SHIPPED)
def test_channels_fit_into_every_shipped_machine(name):
    """What all rings take of a link, NICs included, is no more than it has; each has every GPU."""
    known = facts(load_topology(name))
    search = ChannelSearch(known, known.boxes[0], Settings())
    paths, ring = search.paths, search.ring()
    nics = [nic.name for nic in paths.box.nics]
    left = dict(enumerate(paths.box.capacity))
    for channel in ring.channels:
        assert sorted(channel.gpus) == list(range(paths.n))
        ends = (*channel.gpus, channel.gpus[0]) if known.nodes == 1 else channel.gpus
        ways = [paths.between[u][v] for u, v in itertools.pairwise(ends)]
        if known.nodes > 1:
            ways += [
                paths.into[nics.index(channel.net_in)][ends[0]],
                paths.out[ends[-1]][nics.index(channel.net_out)],
            ]
        for way in ways:
            for arc, times in paths.loads[id(way)]:
                left[arc] -= times * ring.speed_intra
    assert min(left.values()) >= -0.01


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


def _of(name, gpus, **settings):
    machine = load_topology(name)
    found = Settings(**settings)
    return plan(facts(machine, [f"gpu{i}" for i in gpus], found), found)


def test_gpus_that_the_network_joins_faster_are_several_nodes():
    """GPUs 0 and 7 of a DGX-1 have no NVLink, and their NICs are faster than QPI."""
    apart, together = _of("dgx1v", (0, 7)), _of("dgx1v", (0, 3))

    assert (apart.facts.nodes, together.facts.nodes) == (2, 1)
    assert [box.gpus for box in apart.facts.boxes] == [("gpu0",), ("gpu7",)]
    assert (apart.graphs.ring.speed_inter, apart.graphs.ring.types) == (10.0, "LOC/PIX")
    # By way of the host of the same socket GPUs stay together, whatever P2P_DISABLE says.
    off = plan(load_topology("dgx1v"), Settings(p2p_disable=True))
    assert [len(box.gpus) for box in off.facts.boxes] == [4, 4]


def test_parts_of_a_node_may_interleave():
    """Ranks 0 and 2 are one of the two nodes, ranks 1 and 3 the other."""
    at = _of("dgx1v", (0, 5, 2, 7))
    ring, parents = (find(at.facts, at.settings)[0] for find in (ring_orders, tree_parents))

    assert at.facts.members == ((0, 2), (1, 3))
    assert [{*ring[:2]}, {*ring[2:]}] == [{0, 2}, {1, 3}]
    assert parents[2] == 0 or parents[0] == 2


def test_a_node_that_is_split_has_the_network_of_its_nics():
    """Its NICs have no link that leaves the machine."""
    known = facts(load_topology("p4d"), settings=Settings(p2p_disable=True))

    assert (known.nodes, known.network) == (2, "efa_100")


def test_many_gpus_on_a_switch_are_searched_at_once():
    """Their pairs are not looked at one by one."""
    assert plan(load_topology("switch:400")).graphs.ring.count > 0


def test_unequal_nodes_agree_on_plain_trees():
    """Of GPUs 0, 3 and 5 one is a node of its own, whose tree is plain; the log has node 0's."""
    at = _of("dgx1v", (0, 3, 5))

    assert at.graphs.tree.pattern == "plain_tree"
    assert graphs(at.facts, at.settings).tree.pattern == "tree"
    assert tree_parents(at.facts, at.settings)[0] == (-1, 0, 0)


def test_gpus_beside_nics_come_first():
    """NCCL's graph has the first GPU's switch and those of NICs before others, from 2.21 on."""
    machine = load_topology("dgx-h100")
    for name in ("mlx5_1", "mlx5_3", "mlx5_5", "mlx5_7"):
        machine = machine.without(name)

    def ring(version):
        settings = Settings(version=version)
        return graphs(facts(machine, settings=settings), settings).ring.channels[0].gpus

    assert facts(machine, settings=Settings()).boxes[0].order == (0, 2, 1, 3, 4, 6, 5, 7)
    assert facts(machine, settings=Settings(version=(2, 20))).boxes[0].order == tuple(range(8))
    assert ring((2, 27)) != ring((2, 20)) == tuple(range(8))


def test_two_gpus_have_nvls_since_2_28():
    assert _of("dgx-h100", (0, 1), version=(2, 27)).graphs.nvls is None
    assert _of("dgx-h100", (0, 1), version=(2, 28)).graphs.nvls.count == 2


def test_pxn_can_be_off():
    """Without it a ring leaves by the NIC of its last GPU, not by that of its first."""
    on, off = (_of("dgx1v", (0, 3, 5), pxn_disable=off) for off in (False, True))

    assert (on.graphs.ring.types, off.graphs.ring.types) == ("NVL/PXN", "NVL/PIX")


def test_without_gpudirect_nics_are_reached_through_hosts():
    """NCCL_NET_GDR_LEVEL=LOC leaves a DGX A100 two channels, as NCCL's library answered."""
    ring = plan(load_topology("dgx-a100x2"), Settings(gdr_level="LOC")).graphs.ring

    assert (ring.count, ring.speed_inter, ring.types) == (2, 24.0, "NVL/PHB")


def two_xeons(model):
    """Eight H100 below four switches of two sockets, a NIC of 200 Gbit/s at each socket."""
    bus = itertools.count(1)

    def device(kind, inner):
        link = 'link_speed="32 GT/s" link_width="16"'
        return f'<pci busid="0001:{next(bus):02x}:00.0" class="{kind}" {link}>{inner}</pci>'

    def switch(nic):
        gpus = [device("0x030200", '<gpu sm="90" gdr="1"/>') for _ in range(2)]
        return device("0x060400", "".join(gpus) + nic)

    cpus = []
    for numa in range(2):
        nic = device("0x020000", f'<nic><net name="mlx5_{numa}" speed="200000"/></nic>')
        maker = f'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="{model}"'
        cpus.append(f'<cpu numaid="{numa}" {maker}>{switch(nic)}{switch("")}</cpu>')
    return read_nccl_topology(f"<system>{''.join(cpus)}</system>", "xeons")[0]


@pytest.mark.parametrize(
    ("model", "version", "channels", "speed"),
    [(207, (2, 23), 3, 3.0), (207, (2, 25), 3, 3.0), (207, (2, 26), 2, 20.0)],
)
def test_sockets_of_newer_xeons_count_as_skylake_s_before_2_26(model, version, channels, speed):
    """The library was asked in 2.23.4, 2.25.1, 2.26.5, 2.27.7 and 2.30.7 (2026-11-30)."""
    ring = plan(two_xeons(model), Settings(version=version)).graphs.ring

    assert (ring.count, ring.speed_intra, ring.types) == (channels, speed, "SYS/PIX")


def test_the_first_of_two_children_hangs_on_the_second_gpu():
    """Nodes of four GPUs, where a DGX-1 cannot copy directly: node 2 has nodes 1 and 3 below it."""
    at = plan(load_topology("dgx1vx2"), Settings(p2p_disable=True))
    parents = tree_parents(at.facts, at.settings)[0]

    assert [len(box.gpus) for box in at.facts.boxes] == [4] * 4
    assert [parents[first] for first in (0, 4, 8, 12)] == [-1, 9, 0, 8]


def test_switches_stay_where_gpus_cannot_copy():
    """NVLS and the order of neighbours are those of NVSwitches, with NCCL_P2P_DISABLE too."""
    at = plan(load_topology("dgx-h100"), Settings(version=(2, 27), p2p_disable=True))

    assert at.graphs.nvls is not None
    assert at.graphs.ring.channels[0].gpus == (0, 3, 2, 1)
    assert choose(at.facts, "all_reduce", 1 << 16, at.settings).algorithm == "nvlstree"
