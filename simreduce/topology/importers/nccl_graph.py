"""Reads NCCL's graph XML (`NCCL_GRAPH_DUMP_FILE`): the rings and trees that NCCL found.

<graphs> <graph id pattern nchannels speedintra speedinter typeintra typeinter> <channel> <net dev/>
<gpu dev/> ...
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from simreduce.errors import TopologyError, quote
from simreduce.files.formats import Faults
from simreduce.files.formats.xml import Element, read_xml

PATTERNS: Mapping[str, str] = {
    "1": "balanced_tree",
    "2": "split_tree",
    "3": "tree",
    "4": "ring",
    "5": "nvls",
    "6": "collnet_direct",
}
"""Names of NCCL's patterns. A tree of one machine is a chain of its GPUs."""


@dataclass(frozen=True, slots=True)
class NcclChannel:
    """GPUs in order by their `dev`, and the NICs before and after them, None on one machine."""

    gpus: tuple[int, ...]
    net_in: str | None
    net_out: str | None


@dataclass(frozen=True, slots=True)
class NcclGraph:
    """One search result; speeds per channel in bytes/s, inside the machine and to the network."""

    id: int
    pattern: str
    speed_intra: float
    speed_inter: float
    type_intra: str
    type_inter: str
    channels: tuple[NcclChannel, ...]


def read_nccl_graphs(text: str, name: str) -> tuple[NcclGraph, ...]:
    """The graphs of a file; raises `TopologyError` with every fault."""
    root = read_xml(text, name, TopologyError)
    if root.tag != "graphs":
        raise TopologyError(
            f"{name}: line {root.line}: graphs begin with <graphs>, not <{root.tag}>"
        )
    faults = Faults(name)
    found = [_graph(element, faults) for element in root.all("graph")]
    if not found:
        faults.add(f"line {root.line}", "no <graph>")
    faults.raise_any(TopologyError)
    return tuple(found)


def _graph(element: Element, faults: Faults) -> NcclGraph:
    place = f"line {element.line}"
    channels = tuple(_channel(child, faults) for child in element.all("channel"))
    pattern = PATTERNS.get(element.get("pattern"), "")
    if not pattern:
        faults.add(
            place, f"pattern {quote(element.get('pattern'))} is none of {', '.join(PATTERNS)}"
        )
    stated = element.get("nchannels")
    # The file lists a copied channel once and counts it twice.
    if stated and _number(stated) not in (len(channels), 2 * len(channels)):
        faults.add(place, f"nchannels is {quote(stated)}, but there are {len(channels)}")
    members = {frozenset(channel.gpus) for channel in channels}
    if pattern == "ring" and len(members) > 1:
        faults.add(place, "the rings are not of the same GPUs")
    return NcclGraph(
        id=int(_number(element.get("id", "0")) or 0),
        pattern=pattern,
        speed_intra=_speed(element, "speedintra", faults),
        speed_inter=_speed(element, "speedinter", faults),
        type_intra=element.get("typeintra"),
        type_inter=element.get("typeinter"),
        channels=channels,
    )


def _channel(element: Element, faults: Faults) -> NcclChannel:
    place = f"line {element.line}"
    gpus: list[int] = []
    nets: dict[bool, str] = {}
    for child in element.children:
        dev = child.get("dev")
        if child.tag == "gpu" and re.fullmatch(r"[0-9]{1,6}", dev):
            gpus.append(int(dev))
        elif child.tag == "net" and dev:
            nets[bool(gpus)] = dev
        else:
            faults.add(
                f"line {child.line}",
                f"<{child.tag}> with dev {quote(dev)} is neither a GPU nor a net",
            )
    if len(set(gpus)) != len(gpus):
        faults.add(place, "a GPU stands twice in one channel")
    if not gpus:
        faults.add(place, "a channel without GPUs")
    return NcclChannel(tuple(gpus), nets.get(False), nets.get(True))


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) else None


def _speed(element: Element, key: str, faults: Faults) -> float:
    value = _number(element.get(key, "0"))
    if value is None:
        faults.add(
            f"line {element.line}", f"{key} {quote(element.get(key))} is not a number of GB/s"
        )
    return (value or 0.0) * 1e9
