"""Folding: equal machines on one switch, one simulated for all.

Machines that hang on one switch by equal links and do the same at the same time load their links
equally. A transfer crosses the sender's links out and the receiver's links in, and these carry the
same as the sender's own links in. So one machine is enough, whatever their number: a transfer to
another machine runs over the links of this one.

A `Folded` machine holds two of them. Routes are searched between the two, and each node and link of
the second represents the one in its place in the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial

from simreduce.errors import TopologyError
from simreduce.topology.elements import Link, Node
from simreduce.topology.graph import Topology, assemble
from simreduce.topology.routing.switching import FIRST


@dataclass(frozen=True)
class Folded:
    """`machines` equal machines on one switch.

    `pair` is the graph of two of them; `devices` and `hosts` belong to the first. `one_task` says
    that the machines are single GPUs, all of one task.
    """

    name: str
    title: str
    machines: int
    one_task: bool
    pair: Topology
    devices: tuple[str, ...]
    hosts: tuple[str, ...]
    twin: Mapping[str, str] = field(repr=False)
    """The node in the second machine that is in the place of one in the first."""
    home: tuple[int, ...] = field(repr=False)
    """For each link of `pair`, the link of the first machine that represents it."""
    whole: Callable[[], Topology] | None = field(default=None, compare=False, repr=False)
    """Loads all machines. None if they are too many to hold, or are made of others."""

    @property
    def digest(self) -> str:
        """A digest of the content, like a topology's."""
        return hashlib.sha256(f"{self.machines} x {self.pair.digest}".encode()).hexdigest()[:12]


def fold(topology: Topology, machines: int | None = None) -> Folded:
    """Fold the equal machines of a topology into one.

    With `machines`, the one represents that many. Raises `TopologyError` if the machines cannot
    represent each other: if links or devices differ, if links join two machines, or if more than
    one switch does.
    """
    parts = _machines(topology)
    if len(parts) < 2:
        raise TopologyError(f"{topology.name}: one machine cannot be folded")
    hub = _hub(topology, parts)
    switching = topology.router.switching
    if topology.router.several and switching.choice != FIRST:
        raise TopologyError(
            f"{topology.name}: equal paths are {switching.choice}: equal machines are folded only "
            "if all take the first"
        )
    if not switching.isolated:
        raise TopologyError(
            f"{topology.name}: equal machines are folded only if congestion is isolated"
        )
    first, *others = [
        _Machine(topology, part, hub, links) for part, links in _links_by_machine(topology, parts)
    ]
    for other in others:
        difference = _difference(first, other)
        if difference:
            raise TopologyError(
                f"{topology.name}: {difference}, so one of the machines cannot stand for all"
            )
    second = others[0]
    links = [*first.links, *second.links]
    place = {link.id: i for i, link in enumerate(first.links)}
    place |= {twin.id: i for i, twin in enumerate(second.links)}
    nodes = [topology.nodes[name] for name in (*first.nodes, *second.nodes, hub)]
    pair = assemble(
        f"2 of {topology.name}", topology.title, topology.source, nodes,
        [replace(link, id=i) for i, link in enumerate(links)], switching=switching,
    )  # fmt: skip
    return Folded(
        name=topology.name,
        title=topology.title,
        machines=machines or len(parts),
        one_task=len({topology.nodes[name].machine for part in parts for name in part}) == 1,
        pair=pair,
        devices=tuple(name for name in topology.devices if name in first.place),
        hosts=tuple(name for name in topology.hosts if name in first.place),
        twin=dict(zip(first.nodes, second.nodes, strict=True)),
        home=tuple(place[link.id] for link in links),
        whole=None if machines not in (None, len(parts)) else partial(copy, topology),
    )


def _machines(topology: Topology) -> list[list[str]]:
    """The nodes of every machine; where there is only one, its GPUs are taken for the machines."""
    found: dict[str, list[str]] = {}
    for node in topology.nodes.values():
        if node.machine:
            found.setdefault(node.machine, []).append(node.name)
    return list(found.values()) if len(found) > 1 else [[name] for name in topology.devices]


def _hub(topology: Topology, machines: Sequence[Sequence[str]]) -> str:
    """The one node outside all machines to which they are linked."""
    machine = {name: i for i, names in enumerate(machines) for name in names}
    hubs: dict[str, None] = {}
    for link in topology.links:
        a, b = machine.get(link.source), machine.get(link.target)
        if a is not None and b is not None and a != b:
            raise TopologyError(
                f"{topology.name}: {link.source!r} is linked to {link.target!r} of another "
                "machine, so machines are nearer to some than to others and one cannot stand for "
                "all"
            )
        if a is not None and b is None:
            hubs[link.target] = None
    if len(hubs) != 1:
        named = ", ".join(repr(name) for name in list(hubs)[:3]) or "nothing"
        raise TopologyError(
            f"{topology.name}: its machines hang on {named}, not on one switch, so some are "
            "nearer to each other than to others and one cannot stand for all"
        )
    return next(iter(hubs))


def _links_by_machine(
    topology: Topology, machines: Sequence[Sequence[str]]
) -> list[tuple[Sequence[str], list[Link]]]:
    """Every machine with the links that begin or end in it."""
    machine = {name: i for i, names in enumerate(machines) for name in names}
    links: list[list[Link]] = [[] for _ in machines]
    for link in topology.links:
        at = machine.get(link.source, machine.get(link.target))
        if at is not None:
            links[at].append(link)
    return list(zip(machines, links, strict=True))


class _Machine:
    """One machine: its nodes, its links, and the place of every node, the hub's being -1."""

    def __init__(
        self, topology: Topology, nodes: Sequence[str], hub: str, links: Sequence[Link]
    ) -> None:
        self.nodes, self.links = nodes, links
        self.place = {name: i for i, name in enumerate(nodes)}
        self.makes = [replace(topology.nodes[name], name="", machine="") for name in nodes]
        ends = self.place | {hub: -1}
        self.joins = [(ends[link.source], ends[link.target], link.parallel) for link in links]


def _difference(one: _Machine, other: _Machine) -> str:
    """In words, the first difference; "" if there is none."""
    if len(one.nodes) != len(other.nodes) or one.joins != other.joins:
        return f"{other.nodes[0]!r} stands in another kind of machine than {one.nodes[0]!r}"
    for names, nodes in zip(
        zip(one.nodes, other.nodes, strict=True),
        zip(one.makes, other.makes, strict=True),
        strict=True,
    ):
        if nodes[0] != nodes[1]:
            return _describe_difference(*names, *nodes, tuple(Node.__dataclass_fields__))
    figures = ("link_class", "lanes", "nominal", "bandwidth", "latency", "holds_lane")
    for a, b in zip(one.links, other.links, strict=True):
        if any(getattr(a, name) != getattr(b, name) for name in figures):
            return _describe_difference(a.name, b.name, a, b, figures)
    return ""


def _describe_difference(one: str, other: str, a: object, b: object, fields: Sequence[str]) -> str:
    name = next(name for name in fields if getattr(a, name) != getattr(b, name))
    word = name.replace("_", " ")
    return f"{other} has {word} {getattr(b, name)} where {one} has {getattr(a, name)}"
