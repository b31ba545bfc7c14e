"""Which GPUs copy to each other directly, and what it costs those that do not.

`peer` of a GPU is the farthest way on which it copies to another GPU of its machine directly; the nearer of the two
counts. A pair that is farther apart is *staged*: the copy goes through the memory of a host, and takes besides the links
the self-links (`[links.staged_pcie3]` in a machine file) of the GPUs and PCIe switches on the way that have such.

`gpudirect` of a GPU is likewise the farthest way to a NIC on which that reads and writes the GPU's memory (GPUDirect
RDMA). Farther off, a transfer over a network goes through the memory of a host at that end, and pays for it in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simreduce.topology.graph import Link, Node

OFF = "off"
"""Peer access is switched off, on NVLink too."""
REACHES = (OFF, "NV", "PIX", "PXB", "PHB", "SYS")
"""Nearest first: nothing, only NVLink, below one PCIe switch, below PCIe switches, one socket, the whole machine."""
NIC_REACHES = (OFF, "PIX", "PXB", "PHB", "SYS")
"""What `gpudirect` may be: no NVLink leads to a NIC."""
DEFAULT_REACH = "SYS"

ROUTE = "route"
"""The class of a cable that is no way through but a figure: the least that every copy between its ends takes."""
STAGED = "staged"
"""Begins the classes of self-links."""
TCP = "tcp"
"""Begins the classes of networks that send from the memory of hosts and into it, whatever `gpudirect` says."""
BOTH_WAYS = " both ways"
"""Ends the class of the self-links that copies in and out of a GPU share."""


def way_class(nodes: Sequence[Node], used: Sequence[Link]) -> str:
    """NV, PIX, PXB, PHB, SYS or NET: the kind of way over `nodes`, both ends included, and the links between them."""
    between = [node.kind for node in nodes[1:-1]]
    if "cpu" not in between and all(link.link_class.startswith("nvlink") for link in used):
        return "NV"
    if "switch" in between or not all(link.holds_lane for link in used):
        return "NET"
    # A CPU at an end of the path is a host bridge that the path reaches, and counts like one in between.
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
    return kind != "NET" and REACHES.index(kind) > REACHES.index(reach)
