"""Turns a machine document into a topology, or lists every fault of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from simreduce.errors import TopologyError, did_you_mean, near_or_all, quote, refuse
from simreduce.files.formats import FieldValues, Name
from simreduce.files.formats.syntax import Faults
from simreduce.topology.elements import (
    KINDS,
    ROUTE,
    STAGED,
    Cable,
    LinkClass,
    Node,
    expand_range,
    link_classes,
    pair_names,
)
from simreduce.topology.formats import LANES, MACHINE, check_joined, node_values
from simreduce.topology.graph import Topology, build
from simreduce.topology.routing.switching import DEFAULT, KEYS, Switching

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from simreduce.topology.machine_files import MergedFile

_MOST = 1 << 18
"""Nodes or links of the largest machine that a file may describe."""
UNREAD = 1.0
"""Bytes/s in place of a rate that could not be read; less than any that can be."""


def build_machine(
    document: MergedFile, name: str, source: str, problems: Sequence[str] = ()
) -> Topology:
    """The topology of a document; raises `TopologyError` with every fault, `problems` found earlier
    first.
    """
    machine, found = read_machine(document, name, source, problems)
    refuse(found, TopologyError)
    return machine


def read_machine(
    document: MergedFile, name: str, source: str, problems: Sequence[str] = ()
) -> tuple[Topology, list[str]]:
    """Read what can be read of a document, and return it with every fault."""
    faults = Faults(document.shown, document.origin)
    faults.problems.extend(problems)
    values = MACHINE.read(document.tables, faults)
    nodes = _nodes(faults, values["nodes"] or {})
    cables = _cables(faults, values["links"] or {}, nodes)
    cables += _routes(faults, values["routes"] or {}, nodes)
    # A group whose kind is misspelt may be that of the GPUs.
    faults.check(
        any(node.kind == "gpu" or node.kind not in KINDS for node in nodes.values()),
        "nodes",
        "0 devices; at least one group must have kind = 'gpu'",
    )
    if not faults.problems:
        check_joined(nodes.values(), cables, faults, "links")
    known = [
        node if node.kind in KINDS else replace(node, kind="switch") for node in nodes.values()
    ]
    title = name if values["title"] is None else values["title"]
    routing = values["routing"] or {}
    switching = Switching(*(routing[key] for key in KEYS)) if routing else DEFAULT
    return build(name, title, source, known, cables, switching=switching), faults.problems


def _nodes(faults: Faults, groups: Mapping[str, FieldValues]) -> dict[str, Node]:
    nodes: dict[str, Node] = {}
    for group, values in groups.items():
        alike = node_values(values)
        for number, name in enumerate(values["names"] or ()):
            place = f"nodes.{group}.names[{number}]"
            for each in _names(faults, place, name) if len(nodes) < _MOST else ():
                own = faults.attempt(place, Name, each)
                if own in nodes:
                    faults.add(place, f"there are two nodes named {own!r}")
                elif own is not None:
                    nodes[own] = Node(own, *alike)
    faults.check(len(nodes) < _MOST, "nodes", f"more than {_MOST} nodes")
    return nodes


def _names(faults: Faults, place: str, name: object) -> list[Any]:
    """Return the names that an entry means, [] after a fault; an entry that is no text as it is."""
    if not isinstance(name, str):
        return [name]
    return faults.attempt(place, expand_range, name) or []


def _cables(
    faults: Faults, tables: Mapping[str, FieldValues], nodes: Mapping[str, Node]
) -> list[Cable]:
    cables: list[Cable] = []
    places: dict[tuple[str, frozenset[str]], str] = {}
    for table, values in tables.items():
        path = f"links.{table}"
        wire = read_link_class(faults, path, table, values)
        for number, pair in enumerate(values["pairs"] or ()):
            place = f"{path}.pairs[{number}]"
            ends = _pairs(faults, place, pair, nodes, len(cables))
            own = LANES.take(pair[2], faults, place) or 1 if ends and len(pair) == 3 else None
            lanes = own or values.get("lanes", 1)
            for one, other in ends:
                key = (wire.name, frozenset((one, other)))
                staged = nodes[one].kind in ("gpu", "pcie_switch") and wire.name.startswith(STAGED)
                if one == other and not staged:
                    faults.add(place, f"{one!r} is linked to itself")
                elif key in places:
                    faults.add(
                        place,
                        f"{one!r} and {other!r} are already joined by {places[key]}"
                        "; give lanes there",
                    )
                else:
                    places[key] = place
                    a, b = nodes[one], nodes[other]
                    cables += wire.tolls(a, lanes) if a == b else [wire.cable(a, b, lanes)]
    return cables


def _routes(
    faults: Faults, tables: Mapping[str, FieldValues], nodes: Mapping[str, Node]
) -> list[Cable]:
    """The tolls between single pairs, which no link of theirs shows."""
    cables: list[Cable] = []
    for key, values in tables.items():
        rate, delay = values["bandwidth"] or UNREAD, values["latency"] or 0.0
        for number, pair in enumerate(values["pairs"] or ()):
            place = f"routes.{key}.pairs[{number}]"
            if not faults.check(
                not isinstance(pair, list) or len(pair) != 3,
                place,
                "must be [node, node]: a route has no lanes",
            ):
                continue
            for one, other in _pairs(faults, place, pair, nodes, len(cables)):
                if one == other:
                    faults.add(place, f"{one!r} has no route to itself")
                else:
                    cables.append(Cable(one, other, ROUTE, 1, rate, rate, delay, True))
    return cables


def _pairs(
    faults: Faults, place: str, pair: object, nodes: Mapping[str, Node], before: int
) -> list[tuple[str, str]]:
    """Return the pairs that an entry means, [] after a fault."""
    if not isinstance(pair, list) or len(pair) not in (2, 3):
        faults.add(place, f"must be [node, node] or [node, node, lanes], got {quote(pair)}")
        return []
    sides = []
    for end in pair[:2]:
        names = _names(faults, place, end)
        lacking = [name for name in names if not isinstance(name, str) or name not in nodes]
        for name in lacking[:3]:
            near = did_you_mean(name, nodes) if isinstance(name, str) else ""
            faults.add(place, f"no node named {quote(name)}{near}")
        sides.append([] if lacking else names)
    if not all(sides):
        return []
    found = faults.attempt(place, pair_names, *sides) or []
    if before + len(found) > _MOST:
        faults.check(before >= _MOST and faults.problems, place, f"more than {_MOST} links")
        return []
    return found


def read_link_class(
    faults: Faults, path: str, key: str, values: FieldValues, source: str = ""
) -> LinkClass:
    """The figures of a table of links: its own, else the class's."""
    link_class = values.get("class") or key
    faults.attempt(path, Name, link_class)
    known = link_classes().get(link_class)
    lacking = [figure for figure in ("bandwidth", "latency") if figure not in values.given]
    if known is None and lacking:
        near = near_or_all(link_class, link_classes())
        faults.add(
            path,
            f"{quote(link_class)} is no known class, so it must give {' and '.join(lacking)}{near}",
        )
    own = "bandwidth" in values.given
    nominal = values["bandwidth"] if own or not known else known.bandwidth
    achievable = values["achievable"] or (nominal if own or not known else known.achievable)
    faults.check(
        not nominal or achievable <= nominal,
        f"{path}.achievable",
        "must be at most the nominal bandwidth",
    )
    latency, holds_lane = values["latency"], values["holds_lane"]
    both = values["both_ways"] or (known.both_ways if known and not own else math.inf)
    faults.check(
        "both_ways" not in values.given or link_class.startswith(STAGED),
        f"{path}.both_ways",
        f"is for classes that begin with {STAGED!r}",
    )
    if known:
        latency = known.latency if latency is None else latency
        holds_lane = known.holds_lane if holds_lane is None else holds_lane
    return LinkClass(
        name=link_class,
        bandwidth=nominal or UNREAD,
        achievable=achievable or UNREAD,
        latency=latency or 0.0,
        holds_lane=holds_lane is not False,
        source=source,
        both_ways=both,
    )
