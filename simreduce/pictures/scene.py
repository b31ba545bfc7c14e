"""What is to be seen of a machine: single nodes and links, or several of them as one where they are
too many.

A scene is a quotient of the machine's graph: every node is in one `Item`, and every cable (both
directions of a link) in one `Bundle`, or inside an item. A scene in which nothing is taken together
has an item for every node.
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
class Cable:
    """What joins two nodes: a link, and the link back if there is one."""

    there: Link
    back: Link | None

    @property
    def figures(self) -> tuple[tuple[object, ...], ...]:
        """What distinguishes two cables, whatever they join. Both directions, the smaller first."""
        ways = (self.there,) if self.back is None else (self.there, self.back)
        each = [(k.link_class, k.lanes, k.nominal, k.bandwidth, k.latency) for k in ways]
        return tuple(sorted(set(each)) + [("one way",)] * (self.back is None))

    @property
    def bandwidth(self) -> float:
        """Bytes/s of the faster direction."""
        return max(self.there.bandwidth, self.back.bandwidth if self.back else 0.0)


@dataclass(frozen=True, slots=True)
class Item:
    """One box: a node, or several (`nodes` in the order of their names). `kind` is that of the box.

    `several` says that it stands for what would be several boxes, `inner` how many cables are
    inside.
    """

    label: str
    kind: str
    nodes: tuple[Node, ...]
    note: str = ""
    inner: int = 0
    several: bool = False

    @property
    def title(self) -> str:
        """Its name and what it is, for the tooltip."""
        if len(self.nodes) == 1:
            node = self.nodes[0]
            model = f" {node.model}" if node.model else ""
            memory = f", memory {units.format_bandwidth(node.memory_bandwidth)}"
            known = memory if math.isfinite(node.memory_bandwidth) else ""
            return f"{node.name}: {WORDS[node.kind]}{model}{known}"
        inside = f", {counted(self.inner, 'link')} among them" if self.inner else ""
        return f"{self.nodes[0].name} - {self.nodes[-1].name}: {kinds(self.nodes)}{inside}"


@dataclass(frozen=True, slots=True)
class Bundle:
    """Cables with equal figures between two items, which are given by their places in the scene."""

    a: int
    b: int
    cables: tuple[Cable, ...]

    @property
    def bandwidth(self) -> float:
        """Bytes/s of all cables together, in the faster direction."""
        return sum(cable.bandwidth for cable in self.cables)

    @property
    def link_class(self) -> str:
        """That of the first cable's first direction."""
        return self.cables[0].there.link_class

    @property
    def title(self) -> str:
        """Ends and figures, for the tooltip."""
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


def counted(count: int, word: str, plural: str = "") -> str:
    """`1 GPU`, `1,024 GPUs`."""
    return f"{count:,} {units.noun(count, word, plural)}"


def kinds(nodes: Iterable[Node]) -> str:
    """`8 GPUs, 4 NICs, ...` in the order of the table of kinds."""
    found = Counter[str](node.kind for node in nodes)
    return ", ".join(
        counted(found[kind], word, _PLURALS.get(kind, ""))
        for kind, word in WORDS.items()
        if found[kind]
    )


def cables(topology: Topology) -> list[Cable]:
    """Every wire of the machine once, in the order of the links; figures (`Link.is_toll`) are
    none.
    """
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
    return [Cable(topology.links[there], back) for there, back in pairs.items()]


def scene(wires: Sequence[Cable], items: Sequence[Item]) -> Scene:
    """The items, with what joins them and what is inside them. Nodes in no item are outside."""
    place = {node.name: i for i, item in enumerate(items) for node in item.nodes}
    inner = Counter[int]()
    bundles: dict[tuple[object, ...], list[Cable]] = {}
    outside: dict[int, dict[str, None]] = {}
    for cable in wires:
        a, b = place.get(cable.there.source), place.get(cable.there.target)
        if a is None and b is None:
            continue
        if a is None or b is None:
            inside, far = (b, cable.there.source) if a is None else (a, cable.there.target)
            outside.setdefault(-1 if inside is None else inside, {})[far] = None
        elif a == b:
            inner[a] += 1
        else:
            bundles.setdefault((min(a, b), max(a, b), cable.figures), []).append(cable)
    counted_items = [replace(item, inner=inner[i]) for i, item in enumerate(items)]
    drawn = []
    for some in bundles.values():
        there = some[0].there
        drawn.append(Bundle(place[there.source], place[there.target], tuple(some)))
    return Scene(
        tuple(counted_items), tuple(drawn), {i: tuple(ends) for i, ends in outside.items()}
    )
