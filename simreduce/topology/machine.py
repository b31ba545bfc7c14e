"""Turning a machine document into a topology, or into the list of everything that is wrong with it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import networkx as nx

from simreduce.errors import TopologyError, did_you_mean
from simreduce.topology.classes import link_classes, networks
from simreduce.topology.elements import (
    BOTH_WAYS,
    DEFAULT_NIC_REACH,
    DEFAULT_REACH,
    KINDS,
    NIC_REACHES,
    REACHES,
    ROUTE,
    STAGED,
    Cable,
    Node,
)
from simreduce.topology.faults import Faults, quoted
from simreduce.topology.graph import Topology, build
from simreduce.topology.naming import NAME, expanded, natural, paired
from simreduce.topology.routing.spread import CHOICES, FIRST, HASHED, EqualCost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from simreduce.topology.files import Document

_TOP_KEYS = ("title", "sources", "extends", "nodes", "links", "routes", "routing")
_NODE_KEYS = (
    "names", "kind", "model", "memory_bandwidth", "machine", "transit", "reduces", "peer", "gpudirect",
    "network",
)  # fmt: skip
_LINK_KEYS = (
    "pairs",
    "lanes",
    "class",
    "bandwidth",
    "achievable",
    "latency",
    "holds_lane",
    "both_ways",
)
_ROUTE_KEYS = ("pairs", "bandwidth", "latency")
_ROUTING_KEYS = ("equal_cost", "seed")
_MOST = 1 << 18
"""Nodes or links of the largest machine that a file may describe."""
UNREAD = 1.0
"""Bytes/s: stands in for a rate that could not be read, and is less than any that can be."""


def build_machine(
    document: Document, name: str, source: str, problems: Sequence[str] = ()
) -> Topology:
    """The topology of a document; raises `TopologyError` with every fault, `problems` found earlier
    first.
    """
    machine, found = read_machine(document, name, source, problems)
    if found:
        raise TopologyError(found)
    return machine


def read_machine(
    document: Document, name: str, source: str, problems: Sequence[str] = ()
) -> tuple[Topology, list[str]]:
    """What could be read of a document, and every fault."""
    faults = Faults(document.shown, document.origin)
    faults.problems.extend(problems)
    tables = document.tables
    faults.unknown("", tables, _TOP_KEYS)
    title = faults.text("title", tables.get("title", name))
    for number, line in enumerate(faults.listing("sources", tables.get("sources", []))):
        faults.text(f"sources[{number}]", line)
    nodes = _nodes(faults, faults.table("nodes", tables.get("nodes", {})))
    cables = _cables(faults, faults.table("links", tables.get("links", {})), nodes)
    cables += _routes(faults, faults.table("routes", tables.get("routes", {})), nodes)
    equal_cost = _routing(faults, faults.table("routing", tables.get("routing", {})))
    # A kind that is misspelt has been told already.
    if not any(node.kind == "gpu" or node.kind not in KINDS for node in nodes.values()):
        faults.add("nodes", "0 devices; at least one group must have kind = 'gpu'")
    if not faults.problems:
        _check_joined(faults, nodes, cables)
    # A kind that is none is that of nothing in particular.
    known = [
        node if node.kind in KINDS else replace(node, kind="switch") for node in nodes.values()
    ]
    return build(name, title, source, known, cables, equal_cost=equal_cost), faults.problems


def _routing(faults: Faults, fields: Mapping[str, Any]) -> EqualCost:
    """Which of equal paths transfers take."""
    faults.unknown("routing", fields, _ROUTING_KEYS)
    choice = faults.choice("routing.equal_cost", fields.get("equal_cost", FIRST), CHOICES, "rule")
    seed = fields.get("seed", 0)
    if "seed" in fields and choice != HASHED:
        faults.add("routing.seed", "is that of equal_cost = 'hashed'")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 63:
        faults.add("routing.seed", f"must be a whole number from 0, not {quoted(seed)}")
        seed = 0
    return EqualCost(choice, seed)


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
            for each in _names(faults, place, name) if len(nodes) < _MOST else ():
                if not isinstance(each, str) or not NAME.fullmatch(each):
                    faults.add(
                        place,
                        f"{quoted(each)} is not a name (1 to 64 letters, digits or any of _ . : / -)",
                    )
                elif each in nodes:
                    faults.add(place, f"there are two nodes named {each!r}")
                else:
                    nodes[each] = Node(each, *pattern)
    if len(nodes) >= _MOST:
        faults.add("nodes", f"more than {_MOST} nodes")
    return nodes


def _names(faults: Faults, place: str, name: object) -> list[Any]:
    """The names that an entry stands for, [] after a fault; what is no text as it is."""
    try:
        return expanded(name) if isinstance(name, str) else [name]
    except ValueError as error:
        faults.add(place, str(error))
        return []


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
    peer = faults.choice(f"{path}.peer", fields.get("peer", DEFAULT_REACH), REACHES, "reach")
    gpudirect = fields.get("gpudirect", DEFAULT_NIC_REACH)
    gpudirect = faults.choice(f"{path}.gpudirect", gpudirect, NIC_REACHES, "reach")
    if kind in KINDS and kind != "gpu":
        if "peer" in fields:
            faults.add(f"{path}.peer", "is for GPUs: how far they copy to each other directly")
        if "gpudirect" in fields:
            faults.add(
                f"{path}.gpudirect", "is for GPUs: how far off a NIC reads and writes their memory"
            )
    network = ""
    if "network" in fields:
        network = faults.choice(
            f"{path}.network", fields["network"], networks(), "class of network link"
        )
        if kind in KINDS and kind != "nic":
            faults.add(
                f"{path}.network",
                "is for NICs: the class of the link to a network that they have a port for",
            )
    return kind, model, memory or math.inf, machine, transit, reduces, peer, gpudirect, network


@dataclass(frozen=True, slots=True)
class Wire:
    """What the links of a table share; rates per lane."""

    link_class: str
    lanes: int
    nominal: float
    bandwidth: float
    latency: float
    holds_lane: bool
    both_ways: float

    def cables(self, a: Node, b: Node, lanes: int) -> list[Cable]:
        nominal, bandwidth = self.nominal * lanes, self.bandwidth * lanes
        # A staged copy waits at its two ends, not in between.
        latency = 0.0 if a == b and a.kind != "gpu" else self.latency
        ends = a.name, b.name
        made = [Cable(*ends, self.link_class, lanes, nominal, bandwidth, latency, self.holds_lane)]
        if a == b and math.isfinite(self.both_ways):
            both, name = self.both_ways * lanes, self.link_class + BOTH_WAYS
            made.append(Cable(*ends, name, lanes, both, both, 0.0, self.holds_lane))
        return made


def _cables(faults: Faults, tables: Mapping[str, Any], nodes: Mapping[str, Node]) -> list[Cable]:
    cables: list[Cable] = []
    places: dict[tuple[str, frozenset[str]], str] = {}
    for table, value in tables.items():
        path = f"links.{table}"
        fields = faults.table(path, value)
        faults.unknown(path, fields, _LINK_KEYS)
        wire = read_wire(faults, path, table, fields)
        if "pairs" not in fields:
            faults.add(path, "must give pairs")
        for number, pair in enumerate(faults.listing(f"{path}.pairs", fields.get("pairs", []))):
            place = f"{path}.pairs[{number}]"
            ends = _pairs(faults, place, pair, nodes, len(cables))
            lanes = faults.lanes(place, pair[2]) if ends and len(pair) == 3 else wire.lanes
            for one, other in ends:
                if one == other and not (
                    nodes[one].kind in ("gpu", "pcie_switch") and wire.link_class.startswith(STAGED)
                ):
                    faults.add(place, f"{one!r} is linked to itself")
                    continue
                key = (wire.link_class, frozenset((one, other)))
                if key in places:
                    faults.add(
                        place,
                        f"{one!r} and {other!r} are already joined by {places[key]}; give lanes there",
                    )
                    continue
                places[key] = place
                cables += wire.cables(nodes[one], nodes[other], lanes)
    return cables


def _routes(faults: Faults, tables: Mapping[str, Any], nodes: Mapping[str, Node]) -> list[Cable]:
    """What is known of copies between certain pairs: figures that no link of theirs shows."""
    cables: list[Cable] = []
    for key, value in tables.items():
        path = f"routes.{key}"
        fields = faults.table(path, value)
        faults.unknown(path, fields, _ROUTE_KEYS)
        for needed in ("pairs", "bandwidth"):
            if needed not in fields:
                faults.add(path, f"must give {needed}")
        rate = (
            faults.bandwidth(f"{path}.bandwidth", fields["bandwidth"])
            if "bandwidth" in fields
            else None
        )
        delay = (
            faults.latency(f"{path}.latency", fields["latency"]) if "latency" in fields else None
        )
        for number, pair in enumerate(faults.listing(f"{path}.pairs", fields.get("pairs", []))):
            place = f"{path}.pairs[{number}]"
            if isinstance(pair, list) and len(pair) == 3:
                faults.add(place, "must be [node, node]: a route has no lanes")
                continue
            for one, other in _pairs(faults, place, pair, nodes, len(cables)):
                if one == other:
                    faults.add(place, f"{one!r} has no route to itself")
                    continue
                cables.append(
                    Cable(one, other, ROUTE, 1, rate or UNREAD, rate or UNREAD, delay or 0.0, True)
                )
    return cables


def _pairs(
    faults: Faults, place: str, pair: object, nodes: Mapping[str, Node], before: int
) -> list[tuple[str, str]]:
    """The pairs that an entry stands for, [] after a fault."""
    if not isinstance(pair, list) or len(pair) not in (2, 3):
        faults.add(place, f"must be [node, node] or [node, node, lanes], not {quoted(pair)}")
        return []
    sides = []
    for end in pair[:2]:
        names = _names(faults, place, end)
        lacking = [name for name in names if not isinstance(name, str) or name not in nodes]
        for name in lacking[:3]:
            near = did_you_mean(name, nodes) if isinstance(name, str) else ""
            faults.add(place, f"no node named {quoted(name)}{near}")
        sides.append([] if lacking else names)
    if not all(sides):
        return []
    try:
        found = paired(*sides)
    except ValueError as error:
        faults.add(place, str(error))
        return []
    if before + len(found) > _MOST:
        if before < _MOST or not faults.problems:
            faults.add(place, f"more than {_MOST} links")
        return []
    return found


def read_wire(faults: Faults, path: str, key: str, fields: Mapping[str, Any]) -> Wire:
    """The figures of a table of links: its own, else those of its class."""
    link_class = faults.text(f"{path}.class", fields.get("class", key)) or key
    known = link_classes().get(link_class)
    lacking = [figure for figure in ("bandwidth", "latency") if figure not in fields]
    if known is None and lacking:
        near = (
            did_you_mean(link_class, link_classes()) or f"; known are {', '.join(link_classes())}"
        )
        faults.add(
            path,
            f"{quoted(link_class)} is no known class, so it must give {' and '.join(lacking)}{near}",
        )
    nominal = achievable = known.bandwidth if known else None
    if known and "bandwidth" not in fields:
        achievable = known.achievable
    if "bandwidth" in fields:
        nominal = achievable = faults.bandwidth(f"{path}.bandwidth", fields["bandwidth"])
    if "achievable" in fields:
        achievable = faults.bandwidth(f"{path}.achievable", fields["achievable"])
        if achievable and nominal and achievable > nominal:
            faults.add(
                f"{path}.achievable", f"{fields['achievable']!r} is more than the nominal bandwidth"
            )
    latency = known.latency if known else None
    if "latency" in fields:
        latency = faults.latency(f"{path}.latency", fields["latency"])
    both = known.both_ways if known and "bandwidth" not in fields else math.inf
    if "both_ways" in fields:
        both = faults.bandwidth(f"{path}.both_ways", fields["both_ways"]) or math.inf
        if not link_class.startswith(STAGED):
            faults.add(f"{path}.both_ways", f"is for classes that begin with {STAGED!r}")
    holds = fields.get("holds_lane", known.holds_lane if known else True)
    return Wire(
        link_class=link_class,
        lanes=faults.lanes(f"{path}.lanes", fields.get("lanes", 1)),
        nominal=nominal or UNREAD,
        bandwidth=achievable or UNREAD,
        latency=latency or 0.0,
        holds_lane=faults.flag(f"{path}.holds_lane", holds, default=True),
        both_ways=both,
    )


def _check_joined(faults: Faults, nodes: Mapping[str, Node], cables: Sequence[Cable]) -> None:
    """A fault for every part of the machine with GPUs that no link joins to the first GPU."""
    graph = nx.Graph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from((cable.a, cable.b) for cable in cables if cable.link_class != ROUTE)
    gpus = sorted((node.name for node in nodes.values() if node.kind == "gpu"), key=natural)
    parts = [
        sorted(part.intersection(gpus), key=natural) for part in nx.connected_components(graph)
    ]
    for part in sorted(
        (part for part in parts if part and part[0] != gpus[0]), key=lambda part: natural(part[0])
    ):
        others = f" (and {len(part) - 1} more)" if len(part) > 1 else ""
        faults.add(
            "links",
            f"{part[0]!r}{others} and {gpus[0]!r} cannot reach each other: no links join them",
        )
