"""The graph in NCCL's log: what NCCL's library (2.18.3, 2.27.7) printed for shipped machines is
read as the same machines.
"""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest

from simreduce.errors import TopologyError
from simreduce.topology import Topology, load_topology
from simreduce.topology.importers import to_nccl_xml
from simreduce.topology.importers.nccl_log import to_xml
from simreduce.topology.importers.nccl_xml import read_nccl_topology
from simreduce.topology.importers.parts import model_named

DUMPS = Path(__file__).parent / "dumps"
FOUR = """n1:100:160 [0] NCCL INFO NCCL version 2.21.5+cuda12.4
n1:100:160 [0] NCCL INFO === System : maxBw 24.0 totalBw 24.0 ===
n1:100:160 [0] NCCL INFO CPU/0-0 (1/1/2)
n1:101:161 [1] NCCL INFO === System : maxBw 24.0 totalBw 24.0 ===
n1:100:160 [0] NCCL INFO + PCI[24.0] - PCI/0-4b000 (1000c0101000100b)
n1:100:160 [0] NCCL INFO               + PCI[12.0] - GPU/0-4e000 (8)
n1:100:160 [0] NCCL INFO               + PCI[6.0] - GPU/0-4f000 (9)
n1:101:161 [1] NCCL INFO CPU/0-0 (1/1/2)
n1:100:160 [0] NCCL INFO + SYS[10.0] - CPU/0-1
n1:100:160 [0] NCCL INFO CPU/0-1 (1/1/2)
n1:100:160 [0] NCCL INFO + PCI[24.0] - PCI/0-ca000 (1000c0101000100b)
n1:100:160 [0] NCCL INFO               + PCI[24.0] - GPU/0-ce000 (10)
n1:100:160 [0] NCCL INFO               + PCI[24.0] - GPU/0-cf000 (11)
n1:100:160 [0] NCCL INFO + SYS[10.0] - CPU/0-0
n1:100:160 [0] NCCL INFO ==========================================
n1:100:160 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 1, bw 10.000000/10.000000, type SYS/PIX
"""


def graph(machine: Topology, *, ports: bool) -> nx.MultiGraph:
    found = nx.MultiGraph()
    for node in machine.nodes.values():
        name = node.name if node.kind in ("gpu", "cpu") else ""
        what = node.kind, name, node.model, ports and node.network
        found.add_node(node.name, what=what)
    for link in machine.links[::2]:
        figures = link.link_class, link.lanes, link.nominal, link.bandwidth, link.latency
        found.add_edge(link.source, link.target, key=figures)
    return found


@pytest.mark.parametrize(
    ("dump", "machine", "ports"),
    [
        ("dgx-h100x2-2.27.7", "dgx-h100", True),
        ("dgx-a100x2-2.18.3", "dgx-a100", True),
        ("alps-2.27.7", "alps", False),  # one node: ports of NICs are not printed
    ],
)
def test_what_the_library_prints_is_the_machine_that_it_was_asked_for(dump, machine, ports):
    text = (DUMPS / f"{dump}-system.log").read_text("utf-8")
    read, _ = read_nccl_topology(to_xml(text, dump), dump)
    known, _ = read_nccl_topology(to_nccl_xml(load_topology(machine)), machine)

    assert nx.is_isomorphic(
        graph(read, ports=ports),
        graph(known, ports=ports),
        lambda a, b: a == b,
        lambda a, b: sorted(a) == sorted(b),
    )


def test_a_graph_of_two_sockets_amid_other_lines():
    """Ranks of a second node, lines of another rank between, and narrower links."""
    machine, _ = read_nccl_topology(to_xml(FOUR, "log"), "log")

    wires = {
        (link.source, link.target): (link.link_class, link.lanes)
        for link in machine.links
        if not link.is_toll
    }
    assert list(machine.devices) == ["gpu0", "gpu1", "gpu2", "gpu3"]
    assert wires["gpu0", "plx0"] == ("pcie3_x16", 1)
    assert wires["gpu1", "plx0"] == ("pcie3_x8", 1)
    assert wires["gpu2", "plx1"] == wires["plx0", "cpu0"] == ("pcie4_x16", 1)
    assert wires["cpu0", "cpu1"] == ("upi", 2)


def of_two(one: str, other: str) -> str:
    """The log of two GPUs with these links to each other."""
    lines = (
        "=== System : maxBw 48.0 totalBw 336.0 ===",
        "CPU/0-0 (1/2/-1)",
        "+ PCI[48.0] - GPU/0-11000 (0)",
        f"              + {one} - GPU/0-2f000",
        "+ PCI[48.0] - GPU/0-2f000 (1)",
        f"              + {other} - GPU/0-11000",
        "==========================================",
    )
    return "".join(f"n1:10:20 [0] NCCL INFO {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("rate", "model", "link", "lanes"),
    [
        ("XGMI[48.0]", "MI300X", "xgmi_cdna3", 1),
        ("XGMI[72.0]", "MI250X", "xgmi_cdna2", 2),
        ("NVL[18.0]", "P100", "nvlink1", 1),
        ("NVL[36.0]", "P100", "nvlink1", 2),
        ("NVL[60.0]", "V100", "nvlink2", 3),
        ("NVL[48.0]", "RTX3090", "nvlink3_ga102", 4),
    ],
)
def test_links_tell_the_model(rate, model, link, lanes):
    """RCCL counts 48 GB/s of an XGMI link of MI300X, and 36 of MI250X; NCCL 18, 20 and 12 of an
    NVLink of P100, V100 and GA102 (NVIDIA/nccl src/graph/topo.h).
    """
    machine, _ = read_nccl_topology(to_xml(of_two(rate, rate), "log"), "log")
    [found] = [k for k in machine.links if (k.source, k.target) == ("gpu0", "gpu1")]

    assert machine.nodes["gpu0"].model == model
    assert (found.link_class, found.lanes) == (link, lanes)


def test_a_log_without_its_graph():
    with pytest.raises(TopologyError, match="log: no graph of NCCL's in it; record with"):
        to_xml("n1:1:1 [0] NCCL INFO === System : maxBw 24.0 totalBw 24.0 ===\n", "log")


def test_a_link_of_no_known_rate_is_no_crash():
    xml = to_xml(of_two("XGMI[0.0]", "XGMI[5.0]"), "log")
    with pytest.raises(TopologyError, match="line 4: xGMI links, but no model is known that has"):
        read_nccl_topology(xml, "log")


def test_faults_have_the_lines_of_the_log():
    xml = to_xml("other\n" + of_two("NVL[48.0]", "NVL[48.0]"), "log")
    with pytest.raises(TopologyError, match=r"log: line 5: T4 has no NVLinks.*\nlog: line 7: T4 "):
        read_nccl_topology(xml, "log", model_named("T4"))
