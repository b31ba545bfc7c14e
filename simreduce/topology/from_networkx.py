"""Reading any networkx graph as the nodes and links of a machine, with every fault at once."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from simreduce.errors import TopologyError, did_you_mean, quote
from simreduce.files.formats import (
    BANDWIDTH,
    LATENCY,
    LINE,
    Faults,
    Field,
    FieldValues,
    Format,
    Scalar,
)
from simreduce.files.names import RULE, Name, is_name
from simreduce.topology.classes import LinkClass, link_classes
from simreduce.topology.elements import (
    BOTH_WAYS,
    CABLE,
    DEFAULT_BANDWIDTH,
    DEFAULT_LATENCY,
    ROUTE,
    STAGED,
    Cable,
    Link,
    Node,
    natural,
)
from simreduce.topology.file_formats import (
    LINK,
    MEMORY,
    NODE,
    SWITCHING,
    check_forwarding,
    node_values,
)
from simreduce.topology.joined import joined
from simreduce.topology.routing.switching import Switching

if TYPE_CHECKING:
    import networkx as nx

_ALIKE = 0.75
"""How alike, by the ratio of `difflib`, an attribute is to a known one that it misspells."""


def _number_or(kind: Scalar[float], least: float, most: float) -> Scalar[float]:
    """A number in SI units, or text with a unit."""

    def read(value: object) -> float:
        if not isinstance(value, Real) or isinstance(value, bool):
            return kind.read(value)
        if not least <= float(value) <= most:
            raise ValueError(f"must be {kind.words}, got {quote(value)}")
        return float(value)

    return Scalar(kind.words, {}, read)


def _memory(value: object) -> int:
    """Bytes, 0 for unknown, or text with a unit."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return MEMORY.read(value)
    if value and not 1e6 <= float(value) <= 1e15:
        raise ValueError(f"must be {MEMORY.words}, got {quote(value)}")
    return int(float(value))


def _equal_cost(value: object) -> Switching:
    if isinstance(value, tuple | list) and 2 <= len(value) <= len(SWITCHING):
        values = tuple(value)
    else:
        values = (value,)
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
        if not any(node.kind == "gpu" for node in nodes.values()):
            faults.add("", "0 GPUs; a node is one unless it has another kind")
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
    pairs = _pair(made, faults) if graph.is_directed() else [(k, _turn(k)) for k in made]
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
    if a == b and not (a.kind in ("gpu", "pcie_switch") and name.startswith(STAGED)):
        faults.add(place, "joins a node to itself")
    rate = values["bandwidth"]
    bandwidth = known.achievable * lanes if rate is None else rate
    wire = values["nominal"] or (known.bandwidth * lanes if rate is None else rate)
    if wire < bandwidth:
        faults.add(f"{place}.nominal", "must not be less than `bandwidth`")
    latency = known.latency if values["latency"] is None else values["latency"]
    holds = known.holds_lane if values["holds_lane"] is None else values["holds_lane"]
    figures = name, lanes, wire, bandwidth, latency, holds
    return Link(a.name, b.name, *figures, key, built=values["built"])


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


def check_joined(
    nodes: Iterable[Node], cables: Iterable[Cable], faults: Faults, path: str = ""
) -> None:
    """Note every part of a machine with GPUs that no link joins to the first GPU."""
    gpus = sorted((node.name for node in nodes if node.kind == "gpu"), key=natural)
    ends = ((k.source, k.target) for k in cables if k.link_class != ROUTE)
    parts = [sorted(part & {*gpus}, key=natural) for part in joined(gpus, ends)]
    for part in sorted(filter(None, parts), key=lambda part: natural(part[0]))[1:]:
        others = f" (and {len(part) - 1} more)" if len(part) > 1 else ""
        words = "cannot reach each other: no links join them"
        faults.add(path, f"{part[0]!r}{others} and {gpus[0]!r} {words}")
