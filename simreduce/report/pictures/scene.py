"""Scenes: the boxes and lines of a drawing, and the nodes and links that each stands for.

A scene is a quotient of the machine's graph: every node is in one `Item`, and every cable (both
directions of a link) is in one `Bundle` or inside an item.

The layers of a network: which switches stand above which, and how much of it a picture shows.

A `Block` consists of its top switches and of the connected blocks that remain without them. A
machine, or a single device on a network of devices, is a block without tops. So a fat tree is
spines over leaves over hosts, and rails are switches over machines.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from simreduce import units
from simreduce.topology import Link, Node, Topology, natural

if TYPE_CHECKING:
    import networkx as nx

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
            return f"{node.name}: {node_text(node.kind, node.model, node.memory_bandwidth)}"
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


def node_text(kind: str, model: str, memory: float) -> str:
    """`GPU V100, memory 900 GB/s`, as far as that is known."""
    known = f", memory {units.format_bandwidth(memory)}" if math.isfinite(memory) else ""
    return f"{WORDS[kind]} {model}".strip() + known


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
    for link in topology.wires:
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


_MOST_LINES, _MOST_WIDE_LINES = 60, 24
"""Lines below a row of switches, beyond which one box stands for all of them.

The first limit is for lines of single links, the second where some lines stand for several.
"""

Graph: TypeAlias = "nx.Graph[str]"


@dataclass(frozen=True, slots=True)
class Block:
    """Part of a network; `nodes` are in the order of their names, `level` is 0 without switches."""

    nodes: tuple[Node, ...]
    tops: tuple[Node, ...]
    parts: tuple[Block, ...]
    level: int


@dataclass(frozen=True, slots=True)
class BoxTree:
    """Boxes of the drawing over those below them; a row of boxes stands on one `level`."""

    tops: tuple[Item, ...]
    parts: tuple[BoxTree, ...]
    level: int


def wire_graph(names: Iterable[str], wires: Iterable[LinkPair]) -> nx.Graph[str]:
    """The undirected graph of the wires between nodes."""
    import networkx as nx  # noqa: PLC0415 - takes long to load

    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(names)
    graph.add_edges_from((cable.there.source, cable.there.target) for cable in wires)
    return graph


def make_block(nodes: Sequence[Node], hubs: Collection[str], near: Graph) -> Block:
    """The block of some nodes, among them the switches `hubs`."""
    kind = {node.name: node for node in nodes}
    inside = [name for name in kind if name in hubs]
    if not inside:
        return Block(_by_name(nodes), (), (), 0)
    levels = _levels(kind, inside, near)
    height = max(levels.values())
    tops = [name for name in inside if levels[name] == height]
    if height == 1 and len(tops) > 1 and len(tops) == len(inside):
        groups = _groups(tops, near)
        if 1 < len(groups) < len(tops):
            # Switches of one level in groups, as of a dragonfly: each with what hangs on it.
            owner = {name: i for i, group in enumerate(groups) for name in group}
            return _beside(kind, _shares(kind, owner, near), hubs, near)
    taken = set(tops)
    below = components([name for name in kind if name not in taken], near)
    above = [
        taken.intersection(itertools.chain.from_iterable(near[n] for n in part)) for part in below
    ]
    if len(tops) > 1 and all(len(ends) == 1 for ends in above):
        # Nothing hangs on two of them: each stands above its own.
        own = {name: [name] for name in tops}
        for part, ends in zip(below, above, strict=True):
            own[next(iter(ends))] += part
        return _beside(kind, list(own.values()), hubs, near)
    parts = [make_block([kind[name] for name in part], hubs, near) for part in below]
    level = 1 + max((part.level for part in parts), default=0)
    parts.sort(key=_place)
    return Block(_by_name(nodes), _by_name(kind[name] for name in tops), tuple(parts), level)


def _beside(
    kind: Mapping[str, Node], shares: Sequence[Sequence[str]], hubs: Collection[str], near: Graph
) -> Block:
    """A block of parts that are linked to each other, with no switches above them."""
    parts = [make_block([kind[name] for name in share], hubs, near) for share in shares]
    return Block(_by_name(kind.values()), (), tuple(parts), max(part.level for part in parts))


def _by_name(nodes: Iterable[Node]) -> tuple[Node, ...]:
    return tuple(sorted(nodes, key=lambda node: natural(node.name)))


def _place(part: Block) -> tuple[object, ...]:
    """Sort key: the first switch, else the first GPU. Parts without GPUs come last."""
    gpus = [node for node in part.nodes if node.kind == "gpu"]
    return (not gpus, natural((part.tops or gpus or part.nodes)[0].name))


def _levels(kind: Mapping[str, Node], hubs: Collection[str], near: Graph) -> dict[str, int]:
    """How many links each switch is away from the nearest host; 1 where none is joined to it."""
    import networkx as nx  # noqa: PLC0415 - takes long to load

    hosts = [name for name in kind if name not in hubs]
    layers = enumerate(nx.bfs_layers(near.subgraph(kind), hosts))
    levels = {name: level for level, layer in layers for name in layer}
    return {name: levels.get(name, 1) for name in hubs}


def components(names: Sequence[str], near: Graph) -> list[list[str]]:
    """The connected components of some nodes, in the order of `names`."""
    import networkx as nx  # noqa: PLC0415 - takes long to load

    order = {name: place for place, name in enumerate(names)}
    parts = nx.connected_components(near.subgraph(names))
    in_order = (sorted(part, key=order.__getitem__) for part in parts)
    return sorted(in_order, key=lambda part: order[part[0]])


def _groups(switches: Sequence[str], near: Graph) -> list[list[str]]:
    """Groups of switches that are linked and share many neighbours, as those of a dragonfly."""
    import networkx as nx  # noqa: PLC0415 - takes long to load

    known = set(switches)
    links = {name: known.intersection(near[name]) for name in switches}
    shared = {(a, b): len(links[a] & links[b]) for a in switches for b in links[a]}
    most = {a: max((shared[a, b] for b in links[a]), default=0) for a in switches}
    graph = nx.Graph()
    graph.add_nodes_from(switches)
    graph.add_edges_from(
        pair for pair, count in shared.items() if 2 * count > max(most[end] for end in pair)
    )
    return [sorted(part, key=natural) for part in nx.connected_components(graph)]


def _shares(kind: Mapping[str, Node], owner: dict[str, int], near: Graph) -> list[list[str]]:
    """Each group with its hosts; a host on several groups goes with the first."""
    shares: dict[int, list[str]] = defaultdict(list)
    for part in components([name for name in kind if name not in owner], near):
        found = [owner[other] for name in part for other in near[name] if other in owner]
        shares[min(found, default=0)] += part
    for name, group in owner.items():
        shares[group].append(name)
    return [shares[group] for group in sorted(shares)]


@dataclass(frozen=True, slots=True)
class Detail:
    """How many boxes stand side by side: parts of a network, hosts of a switch, top switches."""

    parts: int
    hosts: int
    tops: int


def box_tree(whole: Block, detail: Detail, prefix: str) -> BoxTree:
    """The boxes of a block; labels are names without `prefix`.

    Beyond the limits of `detail` one box stands for all parts between the first and the last, or
    for all hosts if `detail.hosts` is 1.
    """
    if whole.level == 0:
        return BoxTree((host_item(whole.nodes, prefix),), (), 0)
    limit = detail.hosts if all(part.level == 0 for part in whole.parts) else detail.parts
    parts = list(whole.parts)
    if len(parts) <= limit:
        return _above(whole, [box_tree(part, detail, prefix) for part in parts], detail, prefix)
    # One of another kind at the end, such as the host of a network of GPUs, is not taken together
    # with the others.
    first, final = ([node.kind for node in part.nodes] for part in (parts[0], parts[-1]))
    tail = 0 if limit == 1 and first == final else 1
    head = max(limit - 1 - tail, 0)
    last = len(parts) - tail
    boxes = [
        *(box_tree(part, detail, prefix) for part in parts[:head]),
        _fold(parts[head:last], prefix, whole=head == 0),
        *(box_tree(part, detail, prefix) for part in parts[last:]),
    ]
    return _above(whole, boxes, detail, prefix)


def _above(whole: Block, boxes: Sequence[BoxTree], detail: Detail, prefix: str) -> BoxTree:
    """The top switches of a block above its parts; one box if they or their lines are many."""
    ends = sum(max(len(box.tops), 1) for box in boxes)
    several = any(item.several for box in boxes for item in box.tops)
    most = min(detail.tops, (_MOST_WIDE_LINES if several else _MOST_LINES) // max(ends, 1))
    tops = [host_item([node], prefix) for node in whole.tops]
    if len(tops) > max(most, 1):
        label = _range(whole.tops[0].name, whole.tops[-1].name, prefix)
        tops = [Item(label, tops[0].kind, whole.tops, f"x {len(tops):,}", several=True)]
    return BoxTree(tuple(tops), tuple(boxes), whole.level)


def _range(first: str, last: str, prefix: str) -> str:
    first, last = first.removeprefix(prefix), last.removeprefix(prefix)
    return first if first == last else f"{first} - {last}"


def host_item(nodes: Sequence[Node], prefix: str) -> Item:
    """The box of a machine or a device."""
    if len(nodes) == 1:
        return Item(nodes[0].name.removeprefix(prefix), nodes[0].kind, (nodes[0],))
    return Item(machine_name(nodes, prefix), "machine", tuple(nodes), devices_text(nodes))


def machine_name(nodes: Sequence[Node], prefix: str) -> str:
    """`n3` for n3.gpu0, n3.gpu1, ..., else the first and last GPU, without `prefix`."""
    stem = common_prefix([node.name.removeprefix(prefix) for node in nodes])
    if stem:
        return stem.removesuffix(".")
    ordered = sorted(nodes, key=lambda node: natural(node.name))
    ends = [node for node in ordered if node.kind == "gpu"] or ordered
    return _range(ends[0].name, ends[-1].name, prefix)


def common_prefix(names: Sequence[str]) -> str:
    """`n3.` if all names begin with it, else an empty text."""
    stem, dot, _ = names[0].partition(".")
    return stem + dot if dot and all(name.startswith(stem + dot) for name in names) else ""


def devices_text(nodes: Iterable[Node]) -> str:
    """The counts of GPUs and NICs: `8 GPUs, 4 NICs`."""
    return kinds_text(node for node in nodes if node.kind in ("gpu", "nic"))


def _fold(blocks: Sequence[Block], prefix: str, *, whole: bool) -> BoxTree:
    """One box for several blocks on each of their levels; `whole` if no other box stands beside."""
    if len(blocks) == 1 and blocks[0].level == 0:
        return BoxTree((host_item(blocks[0].nodes, prefix),), (), 0)
    level = max(part.level for part in blocks)
    more = f"{len(blocks):,} more"
    if level == 0:
        nodes = tuple(node for part in blocks for node in part.nodes)
        single = len(nodes) == len(blocks)
        note = _range(nodes[0].name, nodes[-1].name, prefix) if single else devices_text(nodes)
        if whole:
            ends = (machine_name(part.nodes, prefix) for part in (blocks[0], blocks[-1]))
            more = " - ".join(dict.fromkeys(ends))
            note = f"x {len(blocks):,}" + ("" if single else f": {note}")
        kind = nodes[0].kind if single else "machine"
        return BoxTree((Item(more, kind, nodes, note, several=True),), (), 0)
    groups = [part for part in blocks if not part.tops]
    # A group has no switches above its parts: theirs stand in the same row.
    heads = [head for part in blocks for head in ((part,) if part.tops else part.parts)]
    if groups:
        more += " group" if len(blocks) == 1 else " groups"
    tops = tuple(node for head in heads for node in head.tops)
    inner = [part for head in heads for part in head.parts]
    below = (_fold(inner, prefix, whole=True),) if inner else ()
    note = (
        _range(tops[0].name, tops[-1].name, prefix)
        if len(tops) == len(blocks)
        else kinds_text(tops)
    )
    return BoxTree((Item(more, tops[0].kind, tops, note, several=True),), below, level)
