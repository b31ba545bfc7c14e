"""A topology as a machine file: read back it is the same, node by node and link by link."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from simreduce.formats import toml_text
from simreduce.topology.classes import link_classes
from simreduce.topology.elements import (
    BOTH_WAYS,
    DEFAULT_NIC_REACH,
    DEFAULT_REACH,
    ROUTE,
    Link,
    Node,
)
from simreduce.topology.graph import Topology
from simreduce.topology.routing.spread import EqualCost
from simreduce.units import exact_bandwidth, exact_duration


def to_toml(topology: Topology, comments: Sequence[str] = ()) -> str:
    """The text of the file, `comments` first. What is as the class says is left out; ranges stand
    for many names.
    """
    document: dict[str, Any] = {"title": topology.title, "sources": [topology.source]}
    taken: dict[str, int] = {}
    for fields, nodes in itertools.groupby(topology.nodes.values(), _shared):
        names = _ranges([node.name for node in nodes])
        group = {"names": names, **dict(_node_values(fields))}
        document.setdefault("nodes", {})[_key(fields["kind"], taken)] = group
    taken = {}
    cables = _cables(topology.links)
    links = (cable for cable in cables if cable.wire.link_class != ROUTE)
    for wire, run in itertools.groupby(links, lambda cable: cable.wire):
        key = _key(wire.link_class, taken)
        table = {**_wire_values(wire, taken), **_pairs([(c.a, c.b, c.lanes) for c in run])}
        document.setdefault("links", {})[key] = table
    taken = {}
    routes = (cable for cable in cables if cable.wire.link_class == ROUTE)
    for wire, run in itertools.groupby(routes, lambda cable: cable.wire):
        table = {"bandwidth": exact_bandwidth(wire.bandwidth)}
        table |= {"latency": exact_duration(wire.latency)} if wire.latency else {}
        table |= _pairs([(cable.a, cable.b, 1) for cable in run])
        document.setdefault("routes", {})[_key("pair", taken)] = table
    rule = topology.router.equal_cost
    if rule != EqualCost():
        seed = {"seed": rule.seed} if rule.seed else {}
        document["routing"] = {"equal_cost": rule.choice, **seed}
    return toml_text(document, [" ".join(comment.split()) for comment in comments])


class _Wire(NamedTuple):
    """What cables of one table share; rates per lane."""

    link_class: str
    nominal: float
    bandwidth: float
    latency: float | None
    holds_lane: bool
    both_ways: float


class _Cable(NamedTuple):
    a: str
    b: str
    lanes: int
    wire: _Wire


def _cables(links: Sequence[Link]) -> list[_Cable]:
    """Every first direction, with what a self-link's two directions share beside it."""
    found: list[_Cable] = []
    for link in links[::2]:
        loop = link.source == link.target
        if loop and link.link_class.endswith(BOTH_WAYS):
            last = found[-1]
            both = link.bandwidth / last.lanes
            found[-1] = last._replace(wire=last.wire._replace(both_ways=both))
            continue
        # A switch's self-link has no latency, whatever its class says.
        latency = None if loop and link.latency == 0 else link.latency
        wire = _Wire(
            link.link_class,
            link.nominal / link.lanes,
            link.bandwidth / link.lanes,
            latency,
            link.holds_lane,
            math.inf,
        )
        found.append(_Cable(link.source, link.target, link.lanes, wire))
    return _settled(found)


def _settled(cables: list[_Cable]) -> list[_Cable]:
    """Self-links of switches with the latency of the table that they stand in, so that they share
    it.
    """
    latency: dict[str, float] = {}
    for cable in cables:
        if cable.a == cable.b and cable.wire.latency is not None:
            latency.setdefault(cable.wire.link_class, cable.wire.latency)
    return [
        cable._replace(wire=cable.wire._replace(latency=latency.get(cable.wire.link_class, 0.0)))
        if cable.wire.latency is None
        else cable
        for cable in cables
    ]


def _shared(node: Node) -> dict[str, object]:
    return {key: getattr(node, key) for key in Node.__slots__ if key != "name"}


def _node_values(fields: dict[str, Any]) -> Iterator[tuple[str, object]]:
    kind, memory = fields["kind"], fields["memory_bandwidth"]
    yield "kind", kind
    if fields["model"]:
        yield "model", fields["model"]
    if math.isfinite(memory):
        yield "memory_bandwidth", exact_bandwidth(memory)
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


def _wire_values(wire: _Wire, taken: dict[str, int]) -> dict[str, Any]:
    """The figures that are not those of the class."""
    values: dict[str, Any] = {}
    if taken[_bare(wire.link_class)] > 1 or not _plain(wire.link_class):
        values["class"] = wire.link_class
    known = link_classes().get(wire.link_class)
    both = math.inf
    if known is None or (wire.nominal, wire.bandwidth) != (known.bandwidth, known.achievable):
        values["bandwidth"] = exact_bandwidth(wire.nominal)
        if wire.bandwidth != wire.nominal:
            values["achievable"] = exact_bandwidth(wire.bandwidth)
    else:
        both = known.both_ways
    if math.isfinite(wire.both_ways) and wire.both_ways != both:
        values["both_ways"] = exact_bandwidth(wire.both_ways)
    latency = wire.latency or 0.0
    if known is None or latency != known.latency:
        values["latency"] = exact_duration(latency)
    if wire.holds_lane != (known.holds_lane if known else True):
        values["holds_lane"] = wire.holds_lane
    return values


def _pairs(cables: Sequence[tuple[str, str, int]]) -> dict[str, Any]:
    """All pairs; `lanes` first if they are all alike and not 1."""
    counts = {lanes for _, _, lanes in cables}
    shared = counts.pop() if len(counts) == 1 else 1
    pairs = [[a, b] if lanes == shared else [a, b, lanes] for a, b, lanes in _runs(cables)]
    return {**({"lanes": shared} if shared != 1 else {}), "pairs": pairs}


def _runs(cables: Sequence[tuple[str, str, int]]) -> Iterable[tuple[str, str, int]]:
    """Pairs with ranges for those that follow each other by number: on both sides, or on one while
    the other stays.
    """
    at = 0
    while at < len(cables):
        a, b, lanes = cables[at]
        best = 1
        for steps in ((1, 1), (1, 0), (0, 1)):
            count = 1
            while at + count < len(cables) and cables[at + count] == (
                _after(a, count * steps[0]), _after(b, count * steps[1]), lanes,
            ):  # fmt: skip
                count += 1
            if count > best:
                best, chosen = count, steps
        if best == 1:
            yield a, b, lanes
        else:
            yield _range(a, best * chosen[0]), _range(b, best * chosen[1]), lanes
        at += best


def _after(name: str, steps: int) -> str | None:
    """The name `steps` numbers later; None if the name has no number to count."""
    if steps == 0:
        return name
    match = re.fullmatch(r"(.*?)(0|[1-9][0-9]{0,4})", name)
    return match and f"{match[1]}{int(match[2]) + steps}"


def _range(name: str, count: int) -> str:
    """`gpu[0-7]` for gpu0 and 8."""
    if count < 2:
        return name
    match = re.fullmatch(r"(.*?)(0|[1-9][0-9]{0,4})", name)
    return f"{match[1]}[{match[2]}-{int(match[2]) + count - 1}]" if match else name


def _ranges(names: Sequence[str]) -> list[str]:
    """Names with ranges for those that follow each other by number."""
    found, at = [], 0
    while at < len(names):
        count = 1
        while (
            at + count < len(names)
            and names[at + count] == _after(names[at], count)
            and count < 4096
        ):
            count += 1
        found.append(_range(names[at], count))
        at += count
    return found


def _bare(name: str) -> str:
    """A TOML key for a name: letters, digits, - and _ need no quotes, and others are left out."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name) or "_"


def _plain(name: str) -> bool:
    return _bare(name) == name


def _key(name: object, taken: dict[str, int]) -> str:
    """The key of the next table of this name: nvlink2, then nvlink2-2, and so on."""
    bare = _bare(str(name))
    taken[bare] = taken.get(bare, 0) + 1
    return bare if taken[bare] == 1 else f"{bare}-{taken[bare]}"
