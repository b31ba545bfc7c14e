"""Turning a machine document into a topology, or into the list of everything that is wrong with it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import networkx as nx

from simreduce.errors import did_you_mean
from simreduce.topology.classes import link_classes
from simreduce.topology.faults import Faults, quoted
from simreduce.topology.graph import KINDS, Cable, Node, Topology, build
from simreduce.topology.naming import NAME, natural

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from simreduce.topology.files import Document

_TOP_KEYS = ("title", "sources", "extends", "nodes", "links")
_NODE_KEYS = ("names", "kind", "model", "memory_bandwidth", "machine", "transit", "reduces")
_LINK_KEYS = ("pairs", "lanes", "class", "bandwidth", "achievable", "latency", "holds_lane")


def build_machine(document: Document, name: str, source: str, problems: Sequence[str] = ()) -> Topology:
    """The topology of a document; raises `TopologyError` with every fault, `problems` found earlier first."""
    faults = Faults(document.shown, document.origin)
    faults.problems.extend(problems)
    tables = document.tables
    faults.unknown("", tables, _TOP_KEYS)
    title = faults.text("title", tables.get("title", name))
    for number, line in enumerate(faults.listing("sources", tables.get("sources", []))):
        faults.text(f"sources[{number}]", line)
    nodes = _nodes(faults, faults.table("nodes", tables.get("nodes", {})))
    cables = _cables(faults, faults.table("links", tables.get("links", {})), nodes)
    # A kind that is misspelt has been told already.
    if not any(node.kind == "gpu" or node.kind not in KINDS for node in nodes.values()):
        faults.add("nodes", "0 devices; at least one group must have kind = 'gpu'")
    if not faults.problems:
        _check_joined(faults, nodes, cables)
    faults.raise_any()
    return build(name, title, source, nodes.values(), cables)


def _nodes(faults: Faults, groups: Mapping[str, Any]) -> dict[str, Node]:
    nodes: dict[str, Node] = {}
    for group, value in groups.items():
        path = f"nodes.{group}"
        fields = faults.table(path, value)
        faults.unknown(path, fields, _NODE_KEYS)
        pattern = _group(faults, path, fields)
        if "names" not in fields:
            faults.add(path, "must give names")
        for number, name in enumerate(faults.listing(f"{path}.names", fields.get("names", []))):
            place = f"{path}.names[{number}]"
            if not isinstance(name, str) or not NAME.fullmatch(name):
                faults.add(
                    place, f"{quoted(name)} is not a name (1 to 64 letters, digits or any of _ . : / -)"
                )
            elif name in nodes:
                faults.add(place, f"there are two nodes named {name!r}")
            else:
                nodes[name] = Node(name, *pattern)
    return nodes


def _group(faults: Faults, path: str, fields: Mapping[str, Any]) -> tuple[Any, ...]:
    """What the nodes of a group share, in the order of the fields of `Node`."""
    kind = fields.get("kind")
    if "kind" not in fields:
        faults.add(path, f"must give a kind: {', '.join(KINDS)}")
    elif kind not in KINDS and faults.text(f"{path}.kind", kind) == kind:
        near = did_you_mean(kind, KINDS) or f"; known are {', '.join(KINDS)}"
        faults.add(f"{path}.kind", f"unknown kind {quoted(kind)}{near}")
    model = faults.text(f"{path}.model", fields.get("model", ""))
    memory: float | None = math.inf
    if "memory_bandwidth" in fields:
        memory = faults.bandwidth(f"{path}.memory_bandwidth", fields["memory_bandwidth"])
    machine = faults.text(f"{path}.machine", fields.get("machine", "" if kind == "switch" else "0"))
    if machine and not NAME.fullmatch(machine):
        faults.add(f"{path}.machine", f"{quoted(machine)} is not a name")
    transit = faults.flag(f"{path}.transit", fields.get("transit", kind != "gpu"), default=True)
    if kind == "gpu" and fields.get("transit") is True:
        faults.add(f"{path}.transit", "GPUs never forward traffic for others")
    reduces = faults.flag(f"{path}.reduces", fields.get("reduces", False), default=False)
    if reduces and kind in ("gpu", "cpu"):
        faults.add(f"{path}.reduces", "is for switches, that can sum what passes through them")
    return kind, model, memory or math.inf, machine, transit, reduces


@dataclass(frozen=True, slots=True)
class _Wire:
    """What the links of a table share; rates per lane."""

    link_class: str
    lanes: int
    nominal: float
    bandwidth: float
    latency: float
    holds_lane: bool

    def cable(self, a: str, b: str, lanes: int) -> Cable:
        return Cable(
            a,
            b,
            self.link_class,
            lanes,
            self.nominal * lanes,
            self.bandwidth * lanes,
            self.latency,
            self.holds_lane,
        )


def _cables(faults: Faults, tables: Mapping[str, Any], nodes: Mapping[str, Node]) -> list[Cable]:
    cables: list[Cable] = []
    places: dict[tuple[str, frozenset[str]], str] = {}
    for key, value in tables.items():
        path = f"links.{key}"
        fields = faults.table(path, value)
        faults.unknown(path, fields, _LINK_KEYS)
        wire = _wire(faults, path, key, fields)
        if "pairs" not in fields:
            faults.add(path, "must give pairs")
        for number, pair in enumerate(faults.listing(f"{path}.pairs", fields.get("pairs", []))):
            place = f"{path}.pairs[{number}]"
            ends = _ends(faults, place, pair, nodes)
            lanes = faults.lanes(place, pair[2]) if ends and len(pair) == 3 else wire.lanes
            if not ends:
                continue
            first = places.setdefault((wire.link_class, frozenset(ends)), place)
            if first != place:
                faults.add(
                    place, f"{ends[0]!r} and {ends[1]!r} are already joined by {first}; give lanes there"
                )
                continue
            cables.append(wire.cable(*ends, lanes))
    return cables


def _ends(faults: Faults, place: str, pair: object, nodes: Mapping[str, Node]) -> tuple[str, str] | None:
    if not isinstance(pair, list) or len(pair) not in (2, 3):
        faults.add(place, f"must be [node, node] or [node, node, lanes], not {quoted(pair)}")
        return None
    good = True
    for end in pair[:2]:
        if not isinstance(end, str) or end not in nodes:
            near = did_you_mean(end, nodes) if isinstance(end, str) else ""
            faults.add(place, f"no node named {quoted(end)}{near}")
            good = False
    if good and pair[0] == pair[1]:
        faults.add(place, f"{pair[0]!r} is linked to itself")
        good = False
    return (pair[0], pair[1]) if good else None


def _wire(faults: Faults, path: str, key: str, fields: Mapping[str, Any]) -> _Wire:
    """The figures of a table of links: its own, else those of its class."""
    link_class = faults.text(f"{path}.class", fields.get("class", key)) or key
    known = link_classes().get(link_class)
    lacking = [figure for figure in ("bandwidth", "latency") if figure not in fields]
    if known is None and lacking:
        near = did_you_mean(link_class, link_classes()) or f"; known are {', '.join(link_classes())}"
        faults.add(
            path, f"{quoted(link_class)} is no known class, so it must give {' and '.join(lacking)}{near}"
        )
    nominal = achievable = known.bandwidth if known else None
    if known and "bandwidth" not in fields:
        achievable = known.achievable
    if "bandwidth" in fields:
        nominal = achievable = faults.bandwidth(f"{path}.bandwidth", fields["bandwidth"])
    if "achievable" in fields:
        achievable = faults.bandwidth(f"{path}.achievable", fields["achievable"])
        if achievable and nominal and achievable > nominal:
            faults.add(f"{path}.achievable", f"{fields['achievable']!r} is more than the nominal bandwidth")
    latency = known.latency if known else None
    if "latency" in fields:
        latency = faults.latency(f"{path}.latency", fields["latency"])
    holds = fields.get("holds_lane", known.holds_lane if known else True)
    return _Wire(
        link_class=link_class,
        lanes=faults.lanes(f"{path}.lanes", fields.get("lanes", 1)),
        nominal=nominal or 1.0,
        bandwidth=achievable or 1.0,
        latency=latency or 0.0,
        holds_lane=faults.flag(f"{path}.holds_lane", holds, default=True),
    )


def _check_joined(faults: Faults, nodes: Mapping[str, Node], cables: Sequence[Cable]) -> None:
    """A fault for every part of the machine with GPUs that no link joins to the first GPU."""
    graph = nx.Graph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from((cable.a, cable.b) for cable in cables)
    gpus = sorted((node.name for node in nodes.values() if node.kind == "gpu"), key=natural)
    parts = [sorted(part.intersection(gpus), key=natural) for part in nx.connected_components(graph)]
    for part in sorted(
        (part for part in parts if part and part[0] != gpus[0]), key=lambda part: natural(part[0])
    ):
        others = f" (and {len(part) - 1} more)" if len(part) > 1 else ""
        faults.add(
            "links", f"{part[0]!r}{others} and {gpus[0]!r} cannot reach each other: no links join them"
        )
