"""How copies use NVLinks.

Two linked GPUs copy over their own NVLinks, as one hop beats every longer path (`search`). Other
GPUs use NVLinks only over NVSwitches, because GPUs do not forward (`Node.forwards`). A path of
NVLinks is the nearest kind of path: only GPUs whose `peer` is "off" avoid it (`reach`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simreduce.topology.elements import Link, Node

if TYPE_CHECKING:
    from simreduce.topology.graph import Topology


def is_nvlink(link: Link) -> bool:
    """Whether a link is an NVLink, by its class."""
    return link.link_class.startswith("nvlink")


def is_nvlink_path(nodes: Sequence[Node], wires: Sequence[Link]) -> bool:
    """Whether a path over `nodes`, both ends included, stays on NVLinks and crosses no CPU."""
    return all(node.kind != "cpu" for node in nodes[1:-1]) and all(map(is_nvlink, wires))


def nvlink_lanes(topology: Topology, a: str, b: str, *, direct: bool) -> int:
    """Lanes of the `direct` NVLinks between two devices, or the fewer of theirs to NVSwitches."""
    lanes = {a: 0, b: 0}
    for end in (a, b):
        for _, target, key in topology.graph.out_edges(end, keys=True):
            wanted = target in (a, b) if direct else topology.nodes[target].kind == "nvswitch"
            if wanted and is_nvlink(topology.links[key]):
                lanes[end] += topology.links[key].lanes
    return min(lanes.values())
