"""Which copies go directly, and which have to go through the memory of a host.

The *reach* of a GPU is the farthest kind of path over which it copies directly: `Node.peer` to
other GPUs of its machine, where the nearer of the two counts, and `Node.gpudirect` to a NIC
(GPUDirect RDMA). A copy beyond the reach is *staged*: it goes through the memory of a host, and
pays the tolls (`[links.staged_pcie3]` in a machine file) of the GPUs and PCIe switches on its way.
"""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.topology.elements import OFF, REACHES, Link, Node
from simreduce.topology.routing.nvlink import is_nvlink_path

_BY_DISTANCE = (OFF, "NV", "PIX", "PXB", "P2C", "PHB", "SYS")


def path_kind(nodes: Sequence[Node], wires: Sequence[Link]) -> str:
    """NV, PIX, PXB, PHB, SYS or NET: the kind of path over `nodes`, both ends included, and the
    links between them.
    """
    between = [node.kind for node in nodes[1:-1]]
    if is_nvlink_path(nodes, wires):
        return "NV"
    if "switch" in between or not all(link.holds_lane for link in wires):
        return "NET"
    # A CPU at an end of the path is a host bridge that the path reaches, and counts like one in
    # between.
    bridges = sum(node.kind == "cpu" for node in nodes)
    if bridges:
        return "SYS" if bridges > 1 else "PHB"
    return "PXB" if between.count("pcie_switch") > 1 else "PIX"


def is_staged(nodes: Sequence[Node], wires: Sequence[Link]) -> bool:
    """Whether a copy along this path has to go through the memory of a host."""
    source, target = nodes[0], nodes[-1]
    if not (source.kind == target.kind == "gpu" and source.machine == target.machine):
        return False
    return is_beyond(nodes, wires, min(source.peer, target.peer, key=REACHES.index))


def is_beyond(nodes: Sequence[Node], wires: Sequence[Link], reach: str) -> bool:
    """Whether this path stays inside a machine and is farther than `reach`."""
    kind = path_kind(nodes, wires)
    if kind == "PHB" and nodes[-1].kind == "nic" and wires[0].link_class.startswith("c2c"):
        kind = "P2C"
    return kind != "NET" and _BY_DISTANCE.index(kind) > _BY_DISTANCE.index(reach)
