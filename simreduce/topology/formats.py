"""The keys of machine files, and the attributes of networkx graphs that hold machines.

Any graph is read as nodes and links, with every fault at once.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from simreduce import units
from simreduce.errors import TopologyError, did_you_mean, quote
from simreduce.files.formats import (
    ANYTHING,
    BANDWIDTH,
    FLAG,
    LATENCY,
    LINE,
    RULE,
    TEXT,
    Field,
    FieldValues,
    Format,
    ListOf,
    MapOf,
    Name,
    Scalar,
    TableOf,
    choice,
    is_name,
    number,
    quantity,
    text_of,
    whole,
)
from simreduce.files.formats.syntax import Faults
from simreduce.topology.elements import (
    BOTH_WAYS,
    CABLE,
    DEFAULT_BANDWIDTH,
    DEFAULT_LATENCY,
    DEFAULT_NIC_REACH,
    DEFAULT_REACH,
    KINDS,
    NIC_REACHES,
    REACHES,
    ROUTE,
    STAGED,
    Cable,
    Link,
    LinkClass,
    Node,
    joined,
    link_classes,
    natural,
    networks,
)
from simreduce.topology.routing.switching import (
    CHOICES,
    CONGESTIONS,
    HASHED,
    ISOLATED,
    SPLIT,
    Switching,
)

if TYPE_CHECKING:
    import networkx as nx

LANES = whole(1, 1024, "lanes")
MEMORY = quantity(
    units.size, "a size", ("80 GB", "16 GiB"), (1e6, 1e15, "between 1 MB and 1000 TB")
)


def check_forwarding(node: FieldValues, faults: Faults, path: str) -> None:
    """Note GPUs that forward, and nodes that sum and are no switches."""
    faults.check(
        node["kind"] != "gpu" or not node["transit"],
        f"{path}.transit",
        "GPUs never forward traffic for others",
    )
    faults.check(
        not node["reduces"] or node["kind"] not in ("gpu", "cpu"),
        f"{path}.reduces",
        "is for switches, which can sum what passes through them",
    )


def _check_node(node: FieldValues, faults: Faults, path: str) -> None:
    """Note keys that nodes of this kind do not have."""
    check_forwarding(node, faults, path)
    for key, owner in (
        ("peer", "gpu"),
        ("gpudirect", "gpu"),
        ("network", "nic"),
        ("memory", "gpu"),
    ):
        faults.check(
            not node["kind"] or node["kind"] == owner or key not in node.given,
            f"{path}.{key}",
            f"is for {owner.upper()}s: {_ABOUT[key]}",
        )


def node_values(node: FieldValues) -> tuple[Any, ...]:
    """The fields of `Node` after its name."""
    own = {
        "memory_bandwidth": math.inf,
        "memory": 0,
        "machine": "" if node["kind"] == "switch" else "0",
        "transit": node["kind"] != "gpu",
    }
    keys = (field.name for field in fields(Node) if field.name != "name")
    return tuple(own.get(key, "") if node[key] is None else node[key] for key in keys)


_ABOUT = {
    "peer": "the farthest path over which they copy to each other directly",
    "gpudirect": "the farthest NIC that reads and writes their memory",
    "network": "the class of the link to a network that they have a port for",
    "memory": "how much memory each has for a training step",
}
NODE = Format(
    "nodes.GROUP",
    "Nodes that are alike.",
    Field("names", ListOf(Scalar("a name or a range", {"type": "string"}, lambda value: value)),
          (
              'Names, such as `"gpu0"`, or ranges of them: `"gpu[0-7]"`, `"cpu[0-34:2]"` (every '
              'second).'
          ),
          required=True),
    Field("kind", choice(KINDS, "kind"), "What they are.", required=True),
    Field("model", LINE, "The product's name."),
    Field("memory", MEMORY, "Of GPUs: the size of the memory of each, as its data sheet says. What"
          " a training step holds is compared with it.", default_words="unknown"),
    Field("memory_bandwidth", BANDWIDTH, "Rate of the memory.", default_words="unlimited"),
    Field("machine", text_of(lambda text: text and Name(text), "a name"), "The machine that they"
          " stand in.", default_words='`"0"`; a switch stands in none'),
    Field("transit", FLAG, "Whether the traffic of others may pass; never through GPUs.",
          default_words="`true`; of GPUs `false`"),
    Field("reduces", FLAG, "Whether a switch can sum what passes through it.", default=False),
    Field("peer", choice(REACHES, "reach"), "Of GPUs: the farthest path over which they copy to"
          " each other directly. Farther copies are staged through a host.", DEFAULT_REACH),
    Field("gpudirect", choice(NIC_REACHES, "reach"), "Of GPUs: the farthest NIC that reads and"
          " writes their memory; what is farther off goes through a host. P2C is what NCCL does:"
          " below one tree of PCIe switches, or over C2C and PCIe (Grace). PHB is"
          " NCCL_NET_GDR_LEVEL=PHB.", DEFAULT_NIC_REACH),
    Field("network", choice(networks(), "class of network link"), "Of NICs: the class of the link"
          " by which they join the network of `MACHINExN` without `nic=`.",
          default_words='`"ib_edr"`'),
    check=_check_node,
)  # fmt: skip
_FIGURES = (
    Field("bandwidth", BANDWIDTH, "Rate per lane and direction.", default_words="the class's"),
    Field("achievable", BANDWIDTH, "What one large copy reaches of it.",
          default_words="the class's; all of a `bandwidth` that is given"),
    Field("latency", LATENCY, "Time one way.", default_words="the class's"),
    Field("holds_lane", FLAG, "Whether a transfer keeps its sender's queue busy for the latency;"
          " false for networks.", default_words="the class's, else `true`; in a"
          " graph, `False` for edges without a class"),
    Field("both_ways", BANDWIDTH, "Of classes that begin with `staged`: what copies out and in"
          " reach together.", default_words="the class's, else unlimited"),
)  # fmt: skip
_PAIRS = ListOf(Scalar("a pair of nodes", {"type": "array"}, lambda value: value))
LINK = Format(
    "links.CLASS",
    "Links of one class. A class that begins with `staged` joins a GPU or a PCIe switch to itself:"
    " staged copies take it there, and its latency counts at GPUs.",
    Field("pairs", _PAIRS, 'The ends of each, and a count of lanes that is not `lanes`:'
          ' `["gpu0", "gpu3", 2]`. A range pairs with another in blocks: `["gpu[0-7]", "plx[0-3]"]`'
          " joins gpu0 and gpu1 to plx0, and so on; one name pairs with all of a range.",
          required=True),
    Field("lanes", LANES, "How many in parallel.", 1),
    Field("class", LINE, "The class.", default_words="the table's key"),
    *_FIGURES,
)  # fmt: skip
_ROUTE = Format(
    "routes.NAME",
    "Figures of single pairs that no link shows, besides those of the links.",
    Field("pairs", _PAIRS, "The two ends of each.", required=True),
    Field("bandwidth", BANDWIDTH, "Rate per direction.", required=True),
    Field("latency", LATENCY, "Time added to that of the links.", default_words="none"),
)
EQUAL_COST = choice(CHOICES, "rule")
SEED = whole(0, (1 << 63) - 1)


QUEUE_PAIRS = whole(1, 128)
CONGESTION = choice(CONGESTIONS, "congestion")
PART = number(0, 1)
SWITCHING: tuple[Scalar[Any], ...] = (EQUAL_COST, SEED, QUEUE_PAIRS, CONGESTION, PART)
"""The kinds of the fields of `Switching`."""
_MORE_SWITCHING = (
    Field("seed", SEED, "Of hashed paths.", 0),
    Field("queue_pairs", QUEUE_PAIRS, "Over how many hashed paths each two ends spread what they"
          " send.", 1),
    Field("congestion", CONGESTION, "What a flow that is held back does to others on its way: none"
          " (`isolated`), it stops the links that it has passed (`tree`), or it is dropped where it"
          " is held (`lossy`).", ISOLATED),
    Field("congested", PART, "The part of the time that this is so.", 1.0),
)  # fmt: skip
"""What files of one machine and of several say of switches, besides `equal_cost`."""


def _check_switching(routing: FieldValues, faults: Faults, path: str) -> None:
    for key in ("seed", "queue_pairs"):
        faults.check(
            key not in routing.given or routing["equal_cost"] == HASHED,
            f"{path}.{key}",
            "needs equal_cost = 'hashed'",
        )
    faults.check(
        "congested" not in routing.given or routing["congestion"] != ISOLATED,
        f"{path}.congested",
        "needs congestion = 'tree' or 'lossy'",
    )


ROUTING = Format(
    "routing",
    "What switches do with transfers.",
    Field("equal_cost", EQUAL_COST, "Which of equal paths a transfer takes.", SPLIT),
    *_MORE_SWITCHING,
    check=_check_switching,
)
_HEAD = (
    Field("title", LINE, "What `simreduce topo list` prints."),
    Field("sources", ListOf(TEXT), "Where the figures were published."),
    Field("extends", LINE, "A file beside this one, or a shipped name, that is read first: tables"
          " of this file win over its tables key by key, lists are replaced, and a `bandwidth`"
          " without `achievable` drops the older `achievable`."),
)  # fmt: skip
MACHINE = Format(
    "machine",
    "A machine: its nodes and the links between them.",
    *_HEAD,
    Field("nodes", MapOf(TableOf(NODE), key="GROUP"), "Groups of nodes."),
    Field("links", MapOf(TableOf(LINK), key="CLASS"), "Links by class."),
    Field("routes", MapOf(TableOf(_ROUTE)), "Figures of single pairs."),
    Field("routing", TableOf(ROUTING), "What switches do with transfers."),
)
LINK_FIGURES = Format(
    "link figures",
    "Figures of links for `simreduce topo import --links`.",
    Field(
        "links",
        MapOf(TableOf(Format("links.CLASS", "A class of links.", *_FIGURES)), key="CLASS"),
        "Classes; one that is not shipped needs its bandwidth and latency.",
    ),
)
_SIZE = whole(1)
CLUSTER = Format(
    "machines on a network",
    "A cluster: machines of one kind on a network.",
    *_HEAD,
    Field("nodes", whole(1), "How many machines.", required=True),
    Field("machine", LINE, "A file beside this one, or a shipped machine.", required=True),
    Field("fabric", LINE, "The shape of the network.", "switch"),
    Field(
        "nic",
        choice(networks(), "class of network link"),
        "The class of all its cables.",
        default_words="that of the machine's NICs",
    ),
    Field(
        "nics",
        whole(1),
        "How many NICs of each machine are on it: those nearest to a GPU, evenly spread.",
        default_words="all",
    ),
    Field(
        "equal_cost",
        EQUAL_COST,
        "Which of equal paths transfers take.",
        default_words="`split`, of a torus `first`",
    ),
    *_MORE_SWITCHING,
    Field(
        "switch_latency",
        LATENCY,
        "Latency of a cable between switches.",
        default_words='`"0.1 us"`',
    ),
    Field(
        "radix",
        _SIZE,
        "Of a fat tree: NICs under a leaf, or with three levels ports of a switch.",
        default_words="32, or all",
    ),
    Field("oversubscription", number(0), "NICs under a leaf for each of its up-links.", 1),
    Field("levels", whole(2, 3), "Levels of switches.", 2),
    Field("pods", _SIZE, "Pods of a fat tree of three levels.", default_words="as few as hold all"),
    Field("reduce", FLAG, "Whether the switches can sum.", default=False),
    Field("unit", _SIZE, "Of rails: machines that share leaves.", default_words="32, or all"),
    Field("p", _SIZE, "Of a dragonfly: hosts of a router.", default_words="balanced"),
    Field("a", _SIZE, "Of a dragonfly: routers of a group.", default_words="balanced"),
    Field("h", _SIZE, "Of a dragonfly: global cables of a router.", default_words="balanced"),
    Field("g", _SIZE, "Of a dragonfly: groups.", default_words="as many as hosts fill"),
    Field("dims", LINE, 'Of a torus: its sizes, such as `"4x4"`.'),
    Field(
        "overrides",
        MapOf(ANYTHING, key="KEY"),
        'Keys of the machine\'s file, dotted or nested: `"links.qpi.bandwidth" = "9.6 GB/s"`.',
    ),
)


_ALIKE = 0.75
"""How alike, by the ratio of `difflib`, an attribute is to a known one that it misspells."""


def _number_or(
    kind: Scalar[Any], least: float, most: float, unknown: float | None = None
) -> Scalar[Any]:
    """A number in SI units, or text with a unit; `unknown` may be less than the `least`."""

    def read(value: object) -> Any:
        if not isinstance(value, Real) or isinstance(value, bool):
            return kind.read(value)
        if float(value) != unknown and not least <= float(value) <= most:
            raise ValueError(f"must be {kind.words}, got {quote(value)}")
        return float(value)

    return Scalar(kind.words, {}, read)


def _memory(value: object) -> int:
    """Bytes, 0 for unknown, or text with a unit."""
    return int(_number_or(MEMORY, 1e6, 1e15, 0.0).read(value))


def _equal_cost(value: object) -> Switching:
    several = isinstance(value, tuple | list) and 2 <= len(value) <= len(SWITCHING)
    values: Any = value if several else (value,)
    return Switching(*(kind.read(each) for kind, each in zip(SWITCHING, values, strict=False)))


_RATE = _number_or(BANDWIDTH, 1e3, 1e15)
_GRAPH = Format(
    "graph",
    "Attributes of a graph.",
    Field("name", LINE, "The machine's name.", ""),
    Field("title", LINE, "Its title.", ""),
    Field("source", LINE, "Where it comes from.", "a networkx graph"),
    Field("equal_cost", Scalar("a rule, or a rule and a seed and so on", {}, _equal_cost),
          "Which of equal paths transfers take.", Switching()),
)  # fmt: skip
_NODE = Format(
    "node",
    "Attributes of a node of a graph.",
    replace(NODE["kind"], required=False, default="gpu"),
    replace(NODE["memory_bandwidth"], kind=_number_or(BANDWIDTH, 1e3, math.inf)),
    replace(NODE["memory"], kind=Scalar(MEMORY.words, {}, _memory)),
    *(NODE[key] for key in NODE.keys if key not in ("names", "kind", "memory", "memory_bandwidth")),
    check=check_forwarding,
)
_EDGE = Format(
    "edge",
    "Attributes of an edge of a graph. Rates are those of all lanes together, per direction.",
    replace(LINK["bandwidth"], kind=_RATE),
    replace(LINK["latency"], kind=_number_or(LATENCY, 0.0, 10.0)),
    LINK["lanes"],
    Field("link_class", LINE, "A class of links, such as nvlink2.", CABLE),
    Field("nominal", _RATE, "Bytes/s of the wire."),
    Field("built", _RATE, "Bytes/s that it was built with, where it is slower now."),
    LINK["holds_lane"],
)


def is_graph(value: object) -> TypeGuard[nx.Graph[Any]]:
    """Whether it is a networkx graph, as nothing is before networkx is loaded."""
    networkx = sys.modules.get("networkx")
    return networkx is not None and isinstance(value, networkx.Graph)


def read_graph(graph: nx.Graph[Any], **about: object) -> tuple[FieldValues, list[Node], list[Link]]:
    """The attributes, nodes and links of a graph; raises `TopologyError` with every fault.

    `about` replaces the graph's own attributes.
    """
    if not is_graph(graph):
        raise TypeError(
            "a graph must be a networkx Graph, DiGraph, MultiGraph or MultiDiGraph, "
            f"got {quote(graph)}"
        )
    faults = Faults("graph")
    given = {key: value for key, value in about.items() if value}
    values = _read(_GRAPH, {**graph.graph, **given}, faults, "")
    nodes = _nodes(graph, faults)
    links = _links(graph, nodes, faults)
    if not faults.problems:
        faults.check(
            any(node.kind == "gpu" for node in nodes.values()),
            "",
            "0 GPUs; a node is one unless it has another kind",
        )
        check_joined(nodes.values(), links, faults)
    faults.raise_any(TopologyError)
    return values, list(nodes.values()), links


def _read(form: Format, attributes: Mapping[Any, Any], faults: Faults, place: str) -> FieldValues:
    """The values of attributes. Those of other programs, such as `pos` and `weight`, are ignored;
    one that nearly spells a known name is a fault.
    """
    own = {
        key: value.item() if isinstance(value, np.generic) else value
        for key, value in attributes.items()
        if value is not None and not (isinstance(value, str) and not value)
        if key in form.keys or (isinstance(key, str) and _is_near(key, form.keys))
    }
    return form.read(own, faults, place)


@functools.cache
def _is_near(key: str, known: tuple[str, ...]) -> bool:
    return bool(get_close_matches(key.casefold(), known, 1, _ALIKE))


def wiring(nodes: Iterable[str], links: Iterable[Link]) -> str:
    """A digest of the nodes and of the ends of the links, which a routing rule relies on."""
    content = [list(nodes), [(link.source, link.target) for link in links]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]


def _nodes(graph: nx.Graph[Any], faults: Faults) -> dict[Any, Node]:
    """By the graph's own nodes."""
    found: dict[Any, Node] = {}
    names: dict[str, Any] = {}
    for place, (label, attributes) in enumerate(graph.nodes(data=True)):
        where = f"node {quote(label)}"
        values = _read(_NODE, attributes, faults, where)
        name = label if isinstance(label, str) else f"{values['kind']}{_number(label, place)}"
        if not is_name(name):
            faults.add(where, f"must be text of {RULE}")
        elif name in names:
            faults.add(where, f"would be named {name!r}, as {quote(names[name])} is")
        names[name] = label
        found[label] = Node(name, *node_values(values))
    return found


def _number(label: object, place: int) -> str:
    """The part of a name after the kind: 3 makes `gpu3`, and (0, 1) makes `gpu0.1`.

    A label that is no number has its place in the graph.
    """
    parts = label if isinstance(label, tuple) else (label,)
    texts = [_number(p, -1) if isinstance(p, tuple) else str(p) for p in parts]
    numbers = all(isinstance(p, Real | str | tuple) for p in parts) and all(texts)
    return ".".join(texts) if numbers or place < 0 else str(place)


def _links(graph: nx.Graph[Any], nodes: Mapping[Any, Node], faults: Faults) -> list[Link]:
    """The links of all edges, in both directions.

    They keep their numbers if the keys of the edges are numbers of links.
    """
    edges = list(graph.edges(data=True))
    keys = list(range(len(edges)))
    if graph.is_directed() and graph.is_multigraph():
        own = [key for _, _, key in graph.edges(keys=True)]
        if all(isinstance(key, int) for key in own) and sorted(own) == keys:
            keys = own
    made = [
        _link(nodes[a], nodes[b], key, attributes, faults)
        for (a, b, attributes), key in zip(edges, keys, strict=True)
    ]
    made.sort(key=lambda link: link.id)
    pairs = (
        _pair(made, faults)
        if graph.is_directed()
        else [(k, replace(k, source=k.target, target=k.source)) for k in made]
    )
    seen: dict[frozenset[str], int] = {}
    links: list[Link] = []
    for pair in pairs:
        ends = frozenset((pair[0].source, pair[0].target))
        parallel = seen.get(ends, 0)
        seen[ends] = parallel + 1
        links += [replace(k, id=len(links) + i, parallel=parallel) for i, k in enumerate(pair)]
    return links


def _link(a: Node, b: Node, key: int, attributes: Mapping[Any, Any], faults: Faults) -> Link:
    place = f"edge {a.name} - {b.name}"
    values = _read(_EDGE, attributes, faults, place)
    name, lanes = values["link_class"], values["lanes"]
    faults.attempt(f"{place}.link_class", Name, name.removesuffix(BOTH_WAYS))
    known = link_classes().get(name) or LinkClass(
        name, DEFAULT_BANDWIDTH, DEFAULT_BANDWIDTH, DEFAULT_LATENCY, name != CABLE, ""
    )
    if name not in (CABLE, *link_classes()):
        lacking = [key for key in ("bandwidth", "latency") if key not in values.given]
        near = did_you_mean(name, link_classes()) if lacking else ""
        for key_lacking in lacking:
            faults.add(
                f"{place}.{key_lacking}", f"missing, as {quote(name)} is no known class{near}"
            )
    faults.check(
        a != b or (a.kind in ("gpu", "pcie_switch") and name.startswith(STAGED)),
        place,
        "joins a node to itself",
    )
    rate = values["bandwidth"]
    bandwidth = known.achievable * lanes if rate is None else rate
    wire = values["nominal"] or (known.bandwidth * lanes if rate is None else rate)
    faults.check(wire >= bandwidth, f"{place}.nominal", "must not be less than `bandwidth`")
    latency = known.latency if values["latency"] is None else values["latency"]
    holds = known.holds_lane if values["holds_lane"] is None else values["holds_lane"]
    figures = name, lanes, wire, bandwidth, latency, holds
    return Link(a.name, b.name, *figures, key, built=values["built"])


def _pair(links: Iterable[Link], faults: Faults) -> list[tuple[Link, Link]]:
    """Each link with the one back: the first between the same nodes with the same class."""
    waiting: dict[tuple[str, str, str], list[int]] = {}
    pairs: list[tuple[Link, ...]] = []
    for link in links:
        back = waiting.get((link.target, link.source, link.link_class))
        if back:
            place = back.pop(0)
            pairs[place] = (*pairs[place], link)
        else:
            waiting.setdefault((link.source, link.target, link.link_class), []).append(len(pairs))
            pairs.append((link,))
    for first, *rest in pairs:
        faults.check(
            rest,
            f"edge {first.source} - {first.target}",
            f"has no edge of class {first.link_class!r} back; every link goes both ways",
        )
    return [(pair[0], pair[-1]) for pair in pairs]


def check_joined(
    nodes: Iterable[Node], cables: Iterable[Cable], faults: Faults, path: str = ""
) -> None:
    """Note every part of a machine with GPUs that no link joins to the first GPU."""
    gpus = sorted((node.name for node in nodes if node.kind == "gpu"), key=natural)
    ends = ((k.source, k.target) for k in cables if k.link_class != ROUTE)
    parts = [sorted(part & {*gpus}, key=natural) for part in joined(gpus, ends)]
    for part in sorted(filter(None, parts), key=lambda part: natural(part[0]))[1:]:
        faults.add(
            path,
            f"{part[0]!r}{units.and_more(part)} and {gpus[0]!r} cannot reach each other: "
            "no links join them",
        )
