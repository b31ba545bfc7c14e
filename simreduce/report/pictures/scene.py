"""Scenes: the boxes and lines of a drawing, and the nodes and links that each stands for.

A scene is a quotient of the machine's graph: every node is in one `Item`, and every cable (both
directions of a link) is in one `Bundle` or inside an item.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from simreduce import units
from simreduce.topology import Link, Node, Topology

WORDS = {
    "gpu": "GPU",
    "cpu": "CPU",
    "pcie_switch": "PCIe switch",
    "nvswitch": "NVSwitch",
    "nic": "NIC",
    "switch": "switch",
}
_PLURALS = {"pcie_switch": "PCIe switches", "nvswitch": "NVSwitches", "switch": "switches"}


@dataclass(frozen=True, slots=True)
class LinkPair:
    """A link, and the link back if there is one."""

    there: Link
    back: Link | None

    @property
    def figures(self) -> tuple[tuple[object, ...], ...]:
        """The figures of both directions, the smaller first; equal for cables that are alike."""
        ways = (self.there,) if self.back is None else (self.there, self.back)
        each = [(k.link_class, k.lanes, k.nominal, k.bandwidth, k.latency) for k in ways]
        return tuple(sorted(set(each)) + [("one way",)] * (self.back is None))

    @property
    def bandwidth(self) -> float:
        """Bytes/s of the faster direction."""
        return max(self.there.bandwidth, self.back.bandwidth if self.back else 0.0)


@dataclass(frozen=True, slots=True)
class Item:
    """One box of kind `kind`, for one node or several in the order of their names.

    `several` marks a box that stands for several boxes; `inner` counts the cables inside.
    """

    label: str
    kind: str
    nodes: tuple[Node, ...]
    note: str = ""
    inner: int = 0
    several: bool = False

    @property
    def title(self) -> str:
        """The tooltip: names, kinds and memory."""
        if len(self.nodes) == 1:
            node = self.nodes[0]
            model = f" {node.model}" if node.model else ""
            memory = f", memory {units.format_bandwidth(node.memory_bandwidth)}"
            known = memory if math.isfinite(node.memory_bandwidth) else ""
            return f"{node.name}: {WORDS[node.kind]}{model}{known}"
        inside = f", {count_text(self.inner, 'link')} among them" if self.inner else ""
        return f"{self.nodes[0].name} - {self.nodes[-1].name}: {kinds_text(self.nodes)}{inside}"


@dataclass(frozen=True, slots=True)
class Bundle:
    """Cables with equal figures between two items, which are given by their places in the scene."""

    a: int
    b: int
    cables: tuple[LinkPair, ...]

    @property
    def bandwidth(self) -> float:
        """Bytes/s of all cables together, in the faster direction."""
        return sum(cable.bandwidth for cable in self.cables)

    @property
    def link_class(self) -> str:
        """The link class of the first cable's first direction."""
        return self.cables[0].there.link_class

    @property
    def title(self) -> str:
        """The tooltip: ends and figures."""
        first = self.cables[0]
        ends = f"{first.there.source} - {first.there.target}"
        if len(self.cables) > 1:
            ends += f" and {len(self.cables) - 1} more, each"
        if first.back is None:
            return f"{ends}\none way: {figures_text(first.there)}"
        if len(first.figures) == 1:
            return f"{ends}\n{figures_text(first.there)}, per direction"
        return f"{ends}\nthere: {figures_text(first.there)}\nback: {figures_text(first.back)}"


@dataclass(frozen=True, slots=True)
class Scene:
    """Items, the bundles between them, and by item the names of far ends `outside`."""

    items: tuple[Item, ...]
    bundles: tuple[Bundle, ...]
    outside: Mapping[int, tuple[str, ...]]


def figures_text(link: Link) -> str:
    """`nvlink2 x 2: 48 GB/s of nominal 50 GB/s, 1.8 us`."""
    lanes = f" x {link.lanes}" if link.lanes > 1 else ""
    rate = units.format_bandwidth(link.bandwidth)
    if link.nominal != link.bandwidth:
        rate += f" of nominal {units.format_bandwidth(link.nominal)}"
    return f"{link.link_class}{lanes}: {rate}, {units.format_duration(link.latency)}"


def count_text(count: int, word: str, plural: str = "") -> str:
    """`1 GPU`, `1,024 GPUs`."""
    return f"{count:,} {units.noun(count, word, plural)}"


def kinds_text(nodes: Iterable[Node]) -> str:
    """`8 GPUs, 4 NICs, ...` in the order of the table of kinds."""
    found = Counter[str](node.kind for node in nodes)
    return ", ".join(
        count_text(found[kind], word, _PLURALS.get(kind, ""))
        for kind, word in WORDS.items()
        if found[kind]
    )


def link_pairs(topology: Topology) -> list[LinkPair]:
    """Every wire of the machine once, in the order of the links; tolls are no wires."""
    first: dict[tuple[str, str, str, int], Link] = {}
    pairs: dict[int, Link | None] = {}
    for link in topology.links:
        if link.is_toll:
            continue
        there = first.pop((link.target, link.source, link.link_class, link.parallel), None)
        if there is None:
            first[link.source, link.target, link.link_class, link.parallel] = link
            pairs[link.id] = None
        else:
            pairs[there.id] = link
    return [LinkPair(topology.links[there], back) for there, back in pairs.items()]


def make_scene(wires: Sequence[LinkPair], items: Sequence[Item]) -> Scene:
    """The scene of some items: links between them, inside them, and to nodes in no item."""
    place = {node.name: i for i, item in enumerate(items) for node in item.nodes}
    inner = Counter[int]()
    bundles: dict[tuple[object, ...], list[LinkPair]] = {}
    outside: dict[int, dict[str, None]] = {}
    for cable in wires:
        a, b = place.get(cable.there.source), place.get(cable.there.target)
        if a is None:
            if b is not None:
                outside.setdefault(b, {})[cable.there.source] = None
        elif b is None:
            outside.setdefault(a, {})[cable.there.target] = None
        elif a == b:
            inner[a] += 1
        else:
            bundles.setdefault((min(a, b), max(a, b), cable.figures), []).append(cable)
    return Scene(
        tuple(replace(item, inner=inner[i]) for i, item in enumerate(items)),
        tuple(
            Bundle(place[some[0].there.source], place[some[0].there.target], tuple(some))
            for some in bundles.values()
        ),
        {i: tuple(ends) for i, ends in outside.items()},
    )
