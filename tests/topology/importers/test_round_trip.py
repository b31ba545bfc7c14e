"""What we write as NCCL's XML or as the table of `nvidia-smi topo -m` is read back as the same machine."""

from __future__ import annotations

import itertools

import networkx as nx
from hypothesis import given, settings, strategies as st

from simreduce.topology import Topology, build, matrix_text
from simreduce.topology.importers import model_named, read_nccl_topology, read_topo_m, to_nccl_xml
from simreduce.topology.importers.parts import Parts
from simreduce.topology.peer import OFF

NETWORKS = ("", "tcp_10", "tcp_25", "ib_fdr", "ib_edr", "ib_hdr", "ib_ndr")
"""Of each rate that a NIC may have, the class that is taken for it."""


@st.composite
def boxes(draw: st.DrawFn) -> Topology:
    """One or two sockets, each with GPUs and NICs on root ports or below trees of switches, and some NVLinks."""
    parts, sockets = Parts(), draw(st.integers(1, 2))
    model = model_named(draw(st.sampled_from(["V100", "A100", "H100"])))
    gpus: list[str] = []
    for socket in range(sockets):
        cpu = parts.add(f"cpu{socket}", "cpu")
        above = [cpu]
        for _ in range(draw(st.integers(0, 3))):
            switch = parts.add(parts.free("plx"), "pcie_switch")
            parts.link(switch, draw(st.sampled_from(above)), model.pcie)
            above.append(switch)
        # Every switch holds something, or the file would not show it.
        places = above[1:] + draw(
            st.lists(st.sampled_from(above), min_size=0 if above[1:] else 1, max_size=3)
        )
        for place in places:
            gpu = place == places[0] or draw(st.booleans())
            name = f"gpu{len(gpus)}" if gpu else parts.free("mlx5_")
            if gpu:
                parts.add(name, "gpu", model)
            else:
                parts.add(name, "nic", network=draw(st.sampled_from(NETWORKS)))
            parts.link(name, place, model.pcie)
            gpus += [name] if gpu else []
    if sockets == 2:
        parts.link("cpu0", "cpu1", "upi", 2)
    if draw(st.booleans()):
        parts.add("nvswitch0", "nvswitch")
        for gpu in gpus:
            parts.link(gpu, "nvswitch0", model.nvlink, model.nvlinks)
    else:
        left = dict.fromkeys(gpus, model.nvlinks)
        for a, b in itertools.combinations(gpus, 2):
            lanes = draw(st.integers(0, min(2, left[a], left[b])))
            if lanes:
                parts.link(a, b, model.nvlink, lanes)
                left[a] -= lanes
                left[b] -= lanes
    for name, node in list(parts.nodes.items()):
        if node.kind in ("gpu", "pcie_switch"):
            parts.staging(name, model.pcie)
    return build("box", "", "a test", parts.nodes.values(), parts.cables)


def graph(machine: Topology) -> nx.MultiGraph:
    """Devices by name, switches by kind, and cables by class, lanes and figures."""
    found = nx.MultiGraph()
    for node in machine.nodes.values():
        switch = node.kind == "pcie_switch"
        figures = node.name, node.kind, node.model, node.gpudirect, node.network
        found.add_node(node.name, what=node.kind if switch else figures)
    for link in machine.links[::2]:
        figures = link.link_class, link.lanes, link.nominal, link.bandwidth, link.latency
        found.add_edge(link.source, link.target, key=figures)
    return found


def same(one: Topology, other: Topology) -> bool:
    return nx.is_isomorphic(
        graph(one), graph(other), lambda a, b: a == b, lambda a, b: sorted(a) == sorted(b)
    )


@settings(max_examples=100, deadline=None)
@given(boxes())
def test_nccl_xml_comes_back_as_the_same_graph(machine):
    again, _ = read_nccl_topology(to_nccl_xml(machine), "again.xml")

    assert same(machine, again)
    assert matrix_text(again) == matrix_text(machine)


@settings(max_examples=100, deadline=None)
@given(boxes())
def test_the_table_comes_back_as_itself(machine):
    """It says less than the graph, but what it says of the machine that is made of it is the same."""
    model = model_named(machine.nodes["gpu0"].model)
    text = matrix_text(machine)

    assert matrix_text(read_topo_m(text, "again", model)[0]) == text


def test_gpudirect_is_kept_in_xml():
    text = """<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200">
    <gpu dev="0" sm="80" gdr="0"/></pci></cpu></system>"""
    machine = read_nccl_topology(text, "x")[0]

    assert machine.nodes["gpu0"].gpudirect == OFF
    assert read_nccl_topology(to_nccl_xml(machine), "x")[0].nodes["gpu0"].gpudirect == OFF
