"""Which GPUs copy to each other directly, and what it costs those that do not.

`peer` of a GPU is the farthest way on which it copies to another GPU of its machine directly; the
nearer of the two counts. A pair that is farther apart is *staged*: the copy goes through the memory
of a host, and takes besides the links the self-links (`[links.staged_pcie3]` in a machine file) of
the GPUs and PCIe switches on the way that have such.

`gpudirect` of a GPU is likewise the farthest way to a NIC on which that reads and writes the GPU's
memory (GPUDirect RDMA). Farther off, a transfer over a network goes through the memory of a host at
that end, and pays for it in the same way. Unless a file says otherwise that is P2C, as NCCL does
when NCCL_NET_GDR_LEVEL is not set: below one tree of PCIe switches (PXB), or where the GPU is
joined to the NIC's host by C2C, as on Grace (NCCL_NET_GDR_C2C).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simreduce.topology.graph import Link, Node

OFF = "off"
"""Peer access is switched off, on NVLink too."""
REACHES = (OFF, "NV", "PIX", "PXB", "PHB", "SYS")
"""Nearest first: nothing, only NVLink, below one PCIe switch, below PCIe switches, one socket, the
whole machine.
"""
NIC_REACHES = (OFF, "PIX", "PXB", "P2C", "PHB", "SYS")
"""What `gpudirect` may be: no NVLink leads to a NIC, but C2C and then PCIe may (P2C)."""
DEFAULT_REACH = "SYS"
DEFAULT_NIC_REACH = "P2C"
_BY_DISTANCE = (OFF, "NV", "PIX", "PXB", "P2C", "PHB", "SYS")

ROUTE = "route"
"""The class of a cable that is no way through but a figure: the least that every copy between its
ends takes.
"""
STAGED = "staged"
"""Begins the classes of self-links."""
TCP = "tcp"
"""Begins the classes of networks that send from the memory of hosts and into it, whatever
`gpudirect` says.
"""
BOTH_WAYS = " both ways"
"""Ends the class of the self-links that copies in and out of a GPU share."""


def way_class(nodes: Sequence[Node], used: Sequence[Link]) -> str:
    """NV, PIX, PXB, PHB, SYS or NET: the kind of way over `nodes`, both ends included, and the
    links between them.
    """
    between = [node.kind for node in nodes[1:-1]]
    if "cpu" not in between and all(link.link_class.startswith("nvlink") for link in used):
        return "NV"
    if "switch" in between or not all(link.holds_lane for link in used):
        return "NET"
    # A CPU at an end of the path is a host bridge that the path reaches, and counts like one in
    # between.
    bridges = sum(node.kind == "cpu" for node in nodes)
    if bridges:
        return "SYS" if bridges > 1 else "PHB"
    return "PXB" if between.count("pcie_switch") > 1 else "PIX"


def staged(nodes: Sequence[Node], used: Sequence[Link]) -> bool:
    """Whether a copy along this way has to go through the memory of a host."""
    source, target = nodes[0], nodes[-1]
    if not (source.kind == target.kind == "gpu" and source.machine == target.machine):
        return False
    return beyond(nodes, used, min(source.peer, target.peer, key=REACHES.index))


def beyond(nodes: Sequence[Node], used: Sequence[Link], reach: str) -> bool:
    """Whether this way, if it is one inside a machine, is farther than `reach`."""
    kind = way_class(nodes, used)
    if kind == "PHB" and nodes[-1].kind == "nic" and used[0].link_class.startswith("c2c"):
        kind = "P2C"
    return kind != "NET" and _BY_DISTANCE.index(kind) > _BY_DISTANCE.index(reach)
