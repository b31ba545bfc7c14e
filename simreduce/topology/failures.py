"""Parts of a machine that fail: its nodes, their NICs, and the switches of the network.

A part is named (`n3`, `n0.mlx5_0`, `spine2`), or meant by its class and its place among these, from
0 (`nic 5`); a class alone means its first part. A NIC or a switch that fails has no links; routes
are searched without them. GPUs of a node that fails take no part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from simreduce.errors import InputError, did_you_mean, quote
from simreduce.topology.elements import group_by
from simreduce.topology.graph import Topology

NONE = "none"
NODE, NIC, LEAF, SPINE, CORE = CLASSES = ("node", "nic", "leaf", "spine", "core")
"""A node is one of several machines; the last three are switches of a network, by its level."""


class Failed(NamedTuple):
    """A machine without a part, and the GPUs that are gone with it."""

    topology: Topology
    gone: frozenset[str] = frozenset()


def members(topology: Topology, kind: str) -> list[str]:
    """The parts of a class by name, in the machine's order; none of what it does not have."""
    nodes = topology.nodes.values()
    if kind == NODE:
        found = dict.fromkeys(node.machine for node in nodes if node.machine)
        return [f"n{name}" for name in found] if len(found) > 1 else []
    if kind == NIC:
        return [node.name for node in nodes if node.kind == "nic"]
    switches = (node.name for node in nodes if node.kind == "switch" and not node.machine)
    return [name for name in switches if re.fullmatch(rf"{kind}\d+", name)]


def distinct(topology: Topology, kinds: Iterable[str]) -> dict[str, list[str]]:
    """Of each class, the first of the parts that links tell apart, by colour refinement."""
    colours = _colours(topology)
    inside = group_by(topology.nodes, lambda name: f"n{topology.nodes[name].machine}")
    found: dict[str, list[str]] = {}
    for kind in kinds:
        seen: dict[object, str] = {}
        for name in members(topology, kind):
            own = inside[name] if kind == NODE else [name]
            seen.setdefault(tuple(sorted(colours[each] for each in own)), name)
        found[kind] = list(seen.values())
    return found


def fail(topology: Topology, text: str, where: str = "fails") -> Failed:
    """The machine without the part that `text` names or means.

    InputError names the nearest, or the classes that the machine has. `where` is what errors of
    routes point to.
    """
    if text == NONE:
        return Failed(topology)
    have = {kind: names for kind in CLASSES if (names := members(topology, kind))}
    name, nodes = _meant(topology, text, have), topology.nodes
    if name not in have.get(NODE, ()):
        return Failed(topology.without(name, where))
    gone = frozenset(gpu for gpu in topology.devices if f"n{nodes[gpu].machine}" == name)
    return Failed(topology.without(name), gone)


def _meant(topology: Topology, text: str, have: Mapping[str, list[str]]) -> str:
    """The part of a machine that a text means; InputError for what the machine does not have."""
    kind, _, place = text.partition(" ")
    known = ", ".join(have) or "nothing that can fail"
    if kind not in CLASSES:
        every = [*have, *(each for names in have.values() for each in names)]
        if text in every:
            return text
        near = did_you_mean(text, every) or f"; it has {known}"
        raise InputError(f"{topology.name}: no part {quote(text)} that fails{near}")
    if kind not in have:
        raise InputError(f"{topology.name}: has no {kind}; it has {known}")
    names = have[kind]
    if not place:
        return names[0]
    if not (place.isascii() and place.isdigit() and int(place[:9]) < len(names)):
        last = f"{kind} 0 ({names[0]}) to {kind} {len(names) - 1} ({names[-1]})"
        raise InputError(f"{topology.name}: no part {quote(text)} that fails; it has {last}")
    return names[int(place)]


def _colours(topology: Topology) -> Mapping[str, int]:
    """A number for each node; equal for those whose links lead to equal ones, ever on."""
    colour = _number({name: (node.kind, node.model) for name, node in topology.nodes.items()})
    while True:
        around: dict[str, list[tuple[str, float, int]]] = {name: [] for name in colour}
        for link in topology.links:
            around[link.source].append((link.link_class, link.bandwidth, colour[link.target]))
        finer = _number({name: (colour[name], tuple(sorted(around[name]))) for name in colour})
        if len(set(finer.values())) == len(set(colour.values())):
            return colour
        colour = finer


def _number(values: Mapping[str, object]) -> dict[str, int]:
    """Equal values as equal numbers, in the order in which they come."""
    seen: dict[object, int] = {}
    return {name: seen.setdefault(value, len(seen)) for name, value in values.items()}
