"""Reading any networkx graph as the nodes and links of a machine, with every fault at once."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from numbers import Real
from typing import Any

import networkx as nx

from simreduce.errors import TopologyError, did_you_mean, quote
from simreduce.formats import (
    BANDWIDTH,
    FLAG,
    LATENCY,
    LINE,
    Faults,
    Field,
    Format,
    Kind,
    Values,
    choice,
    whole,
)
from simreduce.topology.classes import LinkClass, link_classes, networks
from simreduce.topology.elements import (
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
    Link,
    Node,
)
from simreduce.topology.naming import NAME, natural


def _number_or(kind: Kind[float], least: float, most: float) -> Kind[float]:
    """A number in SI units, or text with a unit."""

    def read(value: object) -> float:
        if not isinstance(value, Real) or isinstance(value, bool):
            return kind.read(value)
        if not least <= float(value) <= most:
            raise ValueError(f"must be {kind.words}, got {quote(value)}")
        return float(value)

    return Kind(kind.words, {}, read)


_RATE = _number_or(BANDWIDTH, 1e3, 1e15)
_TIME = _number_or(LATENCY, 0.0, 10.0)

NODE_ATTRIBUTES = Format(
    "node",
    "Attributes of a node of a graph.",
    Field("kind", choice(KINDS, "kind"), "What it is.", "gpu"),
    Field("model", LINE, "The product's name.", ""),
    Field("memory_bandwidth", _number_or(BANDWIDTH, 1e3, math.inf),
          "Rate of the memory, in bytes/s.", math.inf, default_words="unlimited"),
    Field("machine", LINE, "The machine that it stands in.",
          default_words='`"0"`; a switch stands in none'),
    Field("transit", FLAG, "Whether the traffic of others may pass; never through GPUs.",
          default_words="`True`; of GPUs `False`"),
    Field("reduces", FLAG, "Whether a switch can sum what passes through it.", default=False),
    Field("peer", choice(REACHES, "reach"), "Of GPUs: how far they copy to each other directly.",
          DEFAULT_REACH),
    Field("gpudirect", choice(NIC_REACHES, "reach"), "Of GPUs: how far off a NIC accesses their"
          " memory.", DEFAULT_NIC_REACH),
    Field("network", choice(("", *networks()), "class of network link"), "Of NICs: the class of"
          " their port.", ""),
)  # fmt: skip
EDGE_ATTRIBUTES = Format(
    "edge",
    "Attributes of an edge of a graph. Rates are those of all lanes together, per direction.",
    Field("bandwidth", _RATE, "Bytes/s that a large copy reaches.",
          default_words="the class's; 25 GB/s without a class"),
    Field("latency", _TIME, "Seconds one way.", default_words="the class's; 1 us without a class"),
    Field("lanes", whole(1, 1024, "lanes"), "How many in parallel.", 1),
    Field("link_class", LINE, "A class of links, such as nvlink2.", CABLE),
    Field("nominal", _RATE, "Bytes/s of the wire.", default_words="the class's, else `bandwidth`"),
    Field("holds_lane", FLAG, "Whether a transfer keeps its sender's queue busy for the latency.",
          default_words="the class's; `False` without a class"),
)  # fmt: skip


def read_graph(graph: nx.Graph[Any]) -> tuple[list[Node], list[Link]]:
    """The nodes and links of a graph; raises `TopologyError` with every fault."""
    if not isinstance(graph, nx.Graph):
        raise TypeError(
            "a graph must be a networkx Graph, DiGraph, MultiGraph or MultiDiGraph, "
            f"got {quote(graph)}"
        )
    faults = Faults("graph")
    nodes = _nodes(graph, faults)
    links = _links(graph, nodes, faults)
    if not faults.problems:
        _check_whole(list(nodes.values()), links, faults)
    faults.raise_any(TopologyError)
    return list(nodes.values()), links


def wiring(nodes: Iterable[str], links: Iterable[Link]) -> str:
    """A digest of which nodes the links join, which a routing rule relies on."""
    content = [list(nodes), [(link.source, link.target) for link in links]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]


def _nodes(graph: nx.Graph[Any], faults: Faults) -> dict[Any, Node]:
    """By the graph's own nodes."""
    found: dict[Any, Node] = {}
    names: dict[str, Any] = {}
    for label, attributes in graph.nodes(data=True):
        values = NODE_ATTRIBUTES.read(dict(attributes), faults, f"node {quote(label)}")
        name = _name(label, values["kind"])
        place = f"node {quote(label)}"
        if not NAME.fullmatch(name):
            faults.add(
                place,
                "must be text of 1 to 64 letters, digits or any of _ . : / -, a whole number or a "
                "tuple of these",
            )
        elif name in names:
            faults.add(place, f"would be named {name!r}, as {quote(names[name])} is")
        names[name] = label
        found[label] = _node(name, values, faults, place)
    return found


def _name(label: object, kind: str) -> str:
    """Text as it is; numbers behind the kind: 3 is `gpu3`, and (0, 1) is `gpu0.1`."""
    if isinstance(label, str):
        return label
    parts = label if isinstance(label, tuple) else (label,)
    if not parts or any(isinstance(p, bool) or not isinstance(p, int | str) for p in parts):
        return ""
    return kind + ".".join(map(str, parts))


def _node(name: str, values: Values, faults: Faults, place: str) -> Node:
    kind = values["kind"]
    machine = "" if kind == "switch" else "0"
    if kind == "gpu" and values["transit"]:
        faults.add(f"{place}.transit", "GPUs never forward traffic for others")
    if values["reduces"] and kind in ("gpu", "cpu"):
        faults.add(f"{place}.reduces", "is for switches, which can sum what passes through them")
    if values["machine"] and not NAME.fullmatch(values["machine"]):
        faults.add(f"{place}.machine", f"{quote(values['machine'])} is not a name")
    own: dict[str, Any] = {"machine": machine, "transit": kind != "gpu"}
    fields: dict[str, Any] = {k: own[k] if v is None else v for k, v in values.items()}
    return Node(name, **fields)


def _links(graph: nx.Graph[Any], nodes: Mapping[Any, Node], faults: Faults) -> list[Link]:
    """The links of all edges, in both directions; they keep their numbers where the keys of the
    edges are those of links.
    """
    edges = [(a, b, dict(attributes)) for a, b, attributes in graph.edges(data=True)]
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
    pairs = _pair(made, faults) if graph.is_directed() else [(k, _turn(k)) for k in made]
    seen: dict[frozenset[str], int] = {}
    links: list[Link] = []
    for pair in pairs:
        ends = frozenset((pair[0].source, pair[0].target))
        parallel = seen.get(ends, 0)
        seen[ends] = parallel + 1
        links += [replace(k, id=len(links) + i, parallel=parallel) for i, k in enumerate(pair)]
    return links


def _link(a: Node, b: Node, key: int, attributes: dict[str, Any], faults: Faults) -> Link:
    place = f"edge {a.name} - {b.name}"
    values = EDGE_ATTRIBUTES.read(attributes, faults, place)
    name, lanes = values["link_class"], values["lanes"]
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
    if a == b and not (a.kind in ("gpu", "pcie_switch") and name.startswith(STAGED)):
        faults.add(place, "joins a node to itself")
    rate = values["bandwidth"]
    bandwidth = known.achievable * lanes if rate is None else rate
    wire = values["nominal"] or (known.bandwidth * lanes if rate is None else rate)
    if wire < bandwidth:
        faults.add(f"{place}.nominal", "must not be less than `bandwidth`")
    latency = known.latency if values["latency"] is None else values["latency"]
    holds = known.holds_lane if values["holds_lane"] is None else values["holds_lane"]
    return Link(a.name, b.name, name, lanes, wire, bandwidth, latency, holds, key)


def _turn(link: Link) -> Link:
    return replace(link, source=link.target, target=link.source)


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
        if not rest:
            faults.add(
                f"edge {first.source} - {first.target}",
                f"has no edge of class {first.link_class!r} back; every link goes both ways",
            )
    return [(pair[0], pair[-1]) for pair in pairs]


def _check_whole(nodes: Iterable[Node], links: Iterable[Link], faults: Faults) -> None:
    """Note that no GPU is there, or parts that no link joins to the first."""
    gpus = sorted((node.name for node in nodes if node.kind == "gpu"), key=natural)
    if not gpus:
        faults.add("", "0 GPUs; a node is one unless it has another kind")
        return
    joined: nx.Graph[str] = nx.Graph((k.source, k.target) for k in links if k.link_class != ROUTE)
    joined.add_nodes_from(gpus)
    for part in nx.connected_components(joined):
        apart = sorted(part.intersection(gpus), key=natural)
        if apart and apart[0] != gpus[0] and gpus[0] not in part:
            faults.add("", f"no edges join {apart[0]!r} to {gpus[0]!r}")
