"""Writes topologies as machine files; reading one gives the same nodes and links."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from simreduce.files.formats import toml_text
from simreduce.topology.classes import LinkClass, link_classes
from simreduce.topology.elements import (
    BOTH_WAYS,
    DEFAULT_NIC_REACH,
    DEFAULT_REACH,
    MOST_NAMES,
    ROUTE,
    Link,
    Node,
)
from simreduce.topology.graph import Topology
from simreduce.topology.routing.switching import DEFAULT
from simreduce.units import exact_bandwidth, exact_duration, exact_size

_NUMBER = re.compile(r"(.*?)(0|[1-9][0-9]{0,4})")
"""A name that ends in a number."""


def to_toml(topology: Topology, comments: Sequence[str] = ()) -> str:
    """The text of the file, `comments` first.

    It leaves out figures that equal the class's, and uses ranges of names.
    """
    document: dict[str, Any] = {"title": topology.title, "sources": [topology.source]}
    taken: dict[str, int] = {}
    for fields, nodes in itertools.groupby(topology.nodes.values(), _node_fields):
        names = [name for name, _, _ in _runs([(node.name, node.name, 1) for node in nodes])]
        group = {"names": names, **dict(_node_values(fields))}
        document.setdefault("nodes", {})[_key(fields["kind"], taken)] = group
    taken = {}
    rows = _rows(topology.links)
    links = (row for row in rows if row.wire.name != ROUTE)
    for wire, run in itertools.groupby(links, lambda row: row.wire):
        key = _key(wire.name, taken)
        table = {**_wire_values(wire, taken), **_pairs([(c.a, c.b, c.lanes) for c in run])}
        document.setdefault("links", {})[key] = table
    taken = {}
    routes = (row for row in rows if row.wire.name == ROUTE)
    for wire, run in itertools.groupby(routes, lambda row: row.wire):
        table = {"bandwidth": exact_bandwidth(wire.achievable)}
        table |= {"latency": exact_duration(wire.latency)} if wire.latency else {}
        table |= _pairs([(row.a, row.b, 1) for row in run])
        document.setdefault("routes", {})[_key("pair", taken)] = table
    if topology.router.switching != DEFAULT:
        document["routing"] = topology.router.switching.stated
    return toml_text(document, [" ".join(comment.split()) for comment in comments])


class _Row(NamedTuple):
    """A cable of a table. Its class has the figures that the whole table shares."""

    a: str
    b: str
    lanes: int
    wire: LinkClass


def _rows(links: Sequence[Link]) -> list[_Row]:
    """A row for every cable; the toll of both directions belongs to the row before it."""
    found: list[_Row] = []
    latency: dict[str, float] = {}
    for link in links[::2]:
        loop = link.source == link.target
        rate = link.bandwidth / link.lanes
        if loop and link.link_class.endswith(BOTH_WAYS):
            last = found[-1]
            both = link.bandwidth / last.lanes
            found[-1] = last._replace(wire=replace(last.wire, both_ways=both))
            continue
        wire = LinkClass(
            link.link_class, link.nominal / link.lanes, rate, link.latency, link.holds_lane, ""
        )
        found.append(_Row(link.source, link.target, link.lanes, wire))
        if loop and link.latency:
            latency.setdefault(link.link_class, link.latency)
    # A switch's toll has no latency, whatever its class says: the table of the GPUs holds it.
    return [
        row._replace(wire=replace(row.wire, latency=latency.get(row.wire.name, 0.0)))
        if row.a == row.b and not row.wire.latency
        else row
        for row in found
    ]


def _node_fields(node: Node) -> dict[str, object]:
    return {key: getattr(node, key) for key in Node.__slots__ if key != "name"}


def _node_values(fields: dict[str, Any]) -> Iterator[tuple[str, object]]:
    kind, rate = fields["kind"], fields["memory_bandwidth"]
    yield "kind", kind
    if fields["model"]:
        yield "model", fields["model"]
    if fields["memory"]:
        yield "memory", _memory_text(fields["memory"])
    if math.isfinite(rate):
        yield "memory_bandwidth", exact_bandwidth(rate)
    if fields["machine"] != ("" if kind == "switch" else "0"):
        yield "machine", fields["machine"]
    if kind != "gpu" and not fields["transit"]:
        yield "transit", False
    if fields["reduces"]:
        yield "reduces", True
    if fields["peer"] != DEFAULT_REACH:
        yield "peer", fields["peer"]
    if fields["gpudirect"] != DEFAULT_NIC_REACH:
        yield "gpudirect", fields["gpudirect"]
    if fields["network"]:
        yield "network", fields["network"]


def _memory_text(nbytes: int) -> str:
    """Bytes as data sheets write them, if that is exact."""
    return f"{nbytes // 10**9} GB" if nbytes % 10**9 == 0 else exact_size(nbytes)


def _wire_values(wire: LinkClass, taken: dict[str, int]) -> dict[str, Any]:
    """The figures that differ from the class's."""
    values: dict[str, Any] = {}
    if taken[_bare(wire.name)] > 1 or _bare(wire.name) != wire.name:
        values["class"] = wire.name
    known = link_classes().get(wire.name)
    both = math.inf
    if known is None or (wire.bandwidth, wire.achievable) != (known.bandwidth, known.achievable):
        values["bandwidth"] = exact_bandwidth(wire.bandwidth)
        if wire.achievable != wire.bandwidth:
            values["achievable"] = exact_bandwidth(wire.achievable)
    else:
        both = known.both_ways
    if math.isfinite(wire.both_ways) and wire.both_ways != both:
        values["both_ways"] = exact_bandwidth(wire.both_ways)
    if known is None or wire.latency != known.latency:
        values["latency"] = exact_duration(wire.latency)
    if wire.holds_lane != (known.holds_lane if known else True):
        values["holds_lane"] = wire.holds_lane
    return values


def _pairs(cables: Sequence[tuple[str, str, int]]) -> dict[str, Any]:
    """All pairs; `lanes` first if they are all alike and not 1."""
    counts = {lanes for _, _, lanes in cables}
    shared = counts.pop() if len(counts) == 1 else 1
    pairs = [[a, b] if lanes == shared else [a, b, lanes] for a, b, lanes in _runs(cables)]
    return {**({"lanes": shared} if shared != 1 else {}), "pairs": pairs}


def _runs(cables: Sequence[tuple[str, str, int]]) -> Iterator[tuple[str, str, int]]:
    """Pairs with ranges for those that follow each other by number: on both sides, or on one while
    the other stays.
    """
    at = 0
    while at < len(cables):
        a, b, lanes = cables[at]
        best, chosen = 1, (0, 0)
        for steps in ((1, 1), (1, 0), (0, 1)):
            count = 1
            while count < MOST_NAMES and cables[at + count : at + count + 1] == [
                (_after(a, count * steps[0]), _after(b, count * steps[1]), lanes)
            ]:
                count += 1
            if count > best:
                best, chosen = count, steps
        yield _range(a, best * chosen[0]), _range(b, best * chosen[1]), lanes
        at += best


def _after(name: str, steps: int) -> str | None:
    """The name `steps` numbers later; None if the name has no number to count."""
    if steps == 0:
        return name
    match = _NUMBER.fullmatch(name)
    return match and f"{match[1]}{int(match[2]) + steps}"


def _range(name: str, count: int) -> str:
    """`gpu[0-7]` for gpu0 and 8."""
    if count < 2:
        return name
    match = _NUMBER.fullmatch(name)
    return f"{match[1]}[{match[2]}-{int(match[2]) + count - 1}]" if match else name


def _bare(name: str) -> str:
    """A TOML key for a name: letters, digits, - and _ need no quotes, and others are left out."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name) or "_"


def _key(name: object, taken: dict[str, int]) -> str:
    """The key of the next table of this name: nvlink2, then nvlink2-2, and so on."""
    bare = _bare(str(name))
    taken[bare] = taken.get(bare, 0) + 1
    return bare if taken[bare] == 1 else f"{bare}-{taken[bare]}"
