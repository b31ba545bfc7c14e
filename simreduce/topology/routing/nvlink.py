"""How copies use NVLinks.

Two linked GPUs copy over their own NVLinks, as one hop beats every longer path (`search`). Other
GPUs use NVLinks only over NVSwitches, because GPUs do not forward (`Node.forwards`). A path of
NVLinks is the nearest kind of path: only GPUs whose `peer` is "off" avoid it (`reach`).
"""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.topology.elements import Link, Node


def is_nvlink(link: Link) -> bool:
    """Whether a link is an NVLink, by its class."""
    return link.link_class.startswith("nvlink")


def is_nvlink_path(nodes: Sequence[Node], wires: Sequence[Link]) -> bool:
    """Whether a path over `nodes`, both ends included, stays on NVLinks and crosses no CPU."""
    return all(node.kind != "cpu" for node in nodes[1:-1]) and all(map(is_nvlink, wires))
