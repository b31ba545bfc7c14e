"""How copies use NVLinks, and AMD's xGMI links between GPUs, which count as NVLinks everywhere.

Two linked GPUs copy over their own NVLinks, as one hop beats every longer path (`search`). Other
GPUs use NVLinks only over NVSwitches, because GPUs do not forward (`Node.forwards`). A path of
NVLinks is the nearest kind of path: only GPUs whose `peer` is "off" avoid it (`reach`).
"""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.topology.elements import Link, Node

XGMI = "xgmi_cdna"
"""Prefix of the classes of xGMI links between GPUs; xGMI between CPUs has another."""
HOST_XGMI = "xgmi_cpu_gpu"
"""The class of xGMI links between a CPU and a GPU."""
GPU_LINKS = ("nvlink", XGMI)
"""Prefixes of the classes of links that GPUs have for each other."""


def is_nvlink(link: Link) -> bool:
    """Whether a link is an NVLink or an xGMI link of GPUs, by its class."""
    return link.link_class.startswith(GPU_LINKS)


def links_name(link_class: str) -> str:
    """What the links of a class are called: NVLinks, or xGMI links."""
    return "xGMI links" if link_class.startswith(XGMI) else "NVLinks"


def is_nvlink_path(nodes: Sequence[Node], wires: Sequence[Link]) -> bool:
    """Whether a path over `nodes`, both ends included, stays on NVLinks and crosses no CPU."""
    return all(node.kind != "cpu" for node in nodes[1:-1]) and all(map(is_nvlink, wires))
