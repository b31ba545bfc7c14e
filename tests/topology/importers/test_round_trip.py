"""What we write as NCCL's XML or as the table of `nvidia-smi topo -m` is read back as the same
machine.
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import networkx as nx
from hypothesis import given, settings, strategies as st

from simreduce.topology import Link, Topology, build, load_topology, matrix_text, shipped
from simreduce.topology.elements import OFF, link_classes
from simreduce.topology.importers import machine_file_in, to_nccl_xml, with_machine_file
from simreduce.topology.importers.nccl_xml import read_nccl_topology
from simreduce.topology.importers.parts import MachineBuilder, model_in, model_named
from simreduce.topology.importers.topo_m import read_topo_m
from simreduce.topology.routing import GPU_LINKS
from tests.thorough import examples

NETWORKS = ("", "tcp_10", "tcp_25", "ib_fdr", "ib_edr", "ib_hdr", "ib_ndr")
"""Of each rate that a NIC may have, the class that is taken for it."""


@st.composite
def boxes(draw: st.DrawFn) -> Topology:
    """One or two sockets, each with GPUs and NICs on root ports or below trees of switches, and
    some NVLinks.
    """
    parts, sockets = MachineBuilder(), draw(st.integers(1, 2))
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


@settings(max_examples=examples(100), deadline=None)
@given(boxes())
def test_nccl_xml_comes_back_as_the_same_graph(machine):
    again, _ = read_nccl_topology(to_nccl_xml(machine), "again.xml")

    assert same(machine, again)
    assert matrix_text(again) == matrix_text(machine)


@settings(max_examples=examples(100), deadline=None)
@given(boxes())
def test_the_table_comes_back_as_itself(machine):
    """It says less than the graph, and the machine made of it says the same."""
    model = model_named(machine.nodes["gpu0"].model)
    text = matrix_text(machine)

    assert matrix_text(read_topo_m(text, "again", model)[0]) == text


def said(machine: Topology) -> nx.MultiGraph:
    """What NCCL's XML has words for: devices, NICs' rates, compute capabilities, and links but
    those between sockets. NVSwitches are one, as in NCCL.
    """
    found = nx.MultiGraph()
    one = {
        name: "nvswitch" if node.kind == "nvswitch" else name
        for name, node in machine.nodes.items()
    }
    for node in machine.nodes.values():
        what: tuple[object, ...] = (node.kind,)
        if node.kind == "gpu":
            known = model_in(node.model)
            what = node.kind, node.name, known.sm if known else 0, node.gpudirect == OFF
        if node.kind == "nic":
            what = node.kind, node.name, link_classes()[node.network].bandwidth
        found.add_node(one[node.name], what=what)
    for link in machine.links[::2]:
        a, b = one[link.source], one[link.target]
        if a != b and not link.is_toll and not is_between_sockets(machine, link):
            found.add_edge(a, b, key=(link.link_class, link.lanes, link.nominal))
    return found


def is_between_sockets(machine: Topology, link: Link) -> bool:
    return machine.nodes[link.source].kind == machine.nodes[link.target].kind == "cpu"


def lost(machine: Topology) -> dict[str, object]:
    """What it has no words for, as `xml_writer` lists it. Switches are told apart by what hangs on
    them.
    """
    nodes = machine.nodes.values()
    gpus = [node for node in nodes if node.kind == "gpu"]
    pairs = [link for link in machine.links if is_between_sockets(machine, link)]
    nvlinks = [link for link in machine.links if link.link_class.startswith(GPU_LINKS)]
    figures = Counter(
        (machine.nodes[k.source].kind, k.link_class, k.bandwidth, k.latency)
        for k in machine.links
        if k.is_toll
    )
    return {
        "which sockets are joined, and how": {
            (k.source, k.target, k.link_class, k.nominal) for k in pairs
        },
        "rates and latencies of single NVLinks": {
            (k.source, k.target, k.bandwidth, k.latency) for k in nvlinks
        },
        "figures of staged copies": figures,
        "several NVSwitches": {node.name for node in nodes if node.kind == "nvswitch"},
        "class of network": {(node.name, node.network) for node in nodes if node.kind == "nic"},
        "memory of GPUs": {node.memory_bandwidth for node in gpus},
        "peer": {node.peer for node in gpus},
        "gpudirect": {node.gpudirect for node in gpus},
        "switches that sum": {node.name for node in nodes if node.reduces},
        "memory of CPUs": {node.memory_bandwidth for node in nodes if node.kind == "cpu"},
    }


LOST = {
    "which sockets are joined, and how": "abci-a gb200-nvl72 oci-gb200",
    "memory of CPUs": (
        "abci-v frontier gce-8xv100 k80-8 mi350x mi355x ndv4 oci-mi355x p4d p4de v100-mesh-4"
    ),
    "rates and latencies of single NVLinks": "dgx2",
    "figures of staged copies": "abci-a rtx2080ti-2",
    "several NVSwitches": "dgx2",
    "class of network": (
        "a3mega a3ultra a4 alps dgx1v-2nic frontier mi300x mi308x mi325x mi350x mi355x oci-a100 "
        "oci-gb200 oci-h100 oci-mi300x oci-mi355x p6-b200 polaris"
    ),
    "peer": (
        "a100-mesh-4 a3mega a3ultra a4 dgx-h100 frontier h100-mesh-4 hgx-b200 hgx-h200 hgx-h800 "
        "mi300x mi308x mi325x mi350x mi355x ndv5 ndv5-h200 ndv5-mi300x oci-h100 oci-mi300x "
        "oci-mi355x p5en p6-b200 polaris snellius"
    ),
    "gpudirect": "a6000-8 l40s-8 polaris",
}
"""By what NCCL has no words for, the shipped machines that do not get it back from these alone."""


OTHER = {"abci-a", "frontier", "l40s-8"}
"""Machines whose PCIe switches form loops, where XML has a tree; whose ports are faster than PCIe's
and whose CPU has xGMI links with the GPUs too; or whose GPUs copy to each other,
where another model of their compute capability, which is all that XML has, does not.
"""


def test_every_shipped_machine_comes_back_from_its_export():
    """A machine of its digest has the same times. The comment that says it all holds only while the
    rest is what it stands for.
    """
    for name, _ in shipped():
        machine = load_topology(name)
        text = with_machine_file(machine)
        again = machine_file_in(text, "again.xml")
        assert again is not None, name
        assert again.digest == machine.digest, name
        assert again.title == machine.title, name

    assert 'numaid="0"' in text
    assert machine_file_in(text.replace('numaid="0"', 'numaid="2"'), "x") is None
    assert machine_file_in(text.replace("title = ", "title "), "x") is None
    assert machine_file_in(to_nccl_xml(machine), "x") is None
    assert machine_file_in(text.replace("sources = [", "sources = [1, "), "x") is None


def test_names_with_two_dashes_come_back_from_an_export(tmp_path: Path) -> None:
    """XML allows no two dashes in a comment."""
    file = tmp_path / "two--dashes.toml"
    file.write_text(
        'title = "a --> b"\n[nodes.gpu]\nnames = ["gpu--[0-1]"]\nkind = "gpu"\nmodel = "V100"\n'
        '[nodes.cpu]\nnames = ["cpu"]\nkind = "cpu"\n'
        '[links.pcie3_x16]\npairs = [["gpu--[0-1]", "cpu"]]\n'
        '[links.a--b]\nbandwidth = "12 GB/s"\nlatency = "1 us"\npairs = [["gpu--0", "gpu--1"]]\n'
    )
    machine = load_topology(str(file))
    again = machine_file_in(with_machine_file(machine), "again.xml")
    assert again is not None
    assert again.digest == machine.digest


def test_what_nccl_has_no_words_for_is_in_no_comment_of_its_own_files():
    missing: dict[str, set[str]] = {}
    for name, _ in shipped():
        machine = load_topology(name)
        again = read_nccl_topology(to_nccl_xml(machine), name)[0]
        if name not in OTHER:
            assert nx.is_isomorphic(
                said(machine), said(again), lambda a, b: a == b, lambda a, b: sorted(a) == sorted(b)
            ), name
        before, after = lost(machine), lost(again)
        for what in before:
            if before[what] != after[what]:
                missing.setdefault(what, set()).add(name)
    assert {what: " ".join(sorted(names)) for what, names in missing.items()} == LOST


def test_gpudirect_is_kept_in_xml():
    text = """<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200">
    <gpu dev="0" sm="80" gdr="0"/></pci></cpu></system>"""
    machine = read_nccl_topology(text, "x")[0]

    assert machine.nodes["gpu0"].gpudirect == OFF
    assert read_nccl_topology(to_nccl_xml(machine), "x")[0].nodes["gpu0"].gpudirect == OFF
