"""The picture of a machine: what it is called, its network and its machines, and a key."""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.pictures.blocks import Block, block, common_prefix, machine_name, neighbours
from simreduce.pictures.fabric import network
from simreduce.pictures.grid import torus_of, torus_views
from simreduce.pictures.key import key
from simreduce.pictures.machine import MOST, machine
from simreduce.pictures.scene import Cable, cables
from simreduce.pictures.shapes import (
    FAINT,
    Drawing,
    Group,
    Rect,
    Text,
    stacked,
    text_width,
)
from simreduce.topology import Node, Topology

_MARGIN, _GAP = 24.0, 26.0
_NARROWEST = 560.0
_MOST_KINDS = 6
"""Machines that differ and are drawn one by one."""


def machine_picture(topology: Topology) -> Drawing:
    """Machines of any size; of large ones, equal parts are counted and one of each is drawn."""
    wires = cables(topology)
    classes = list(dict.fromkeys(cable.there.link_class for cable in wires))
    nodes = tuple(topology.nodes.values())
    torus = torus_of(topology, wires)
    if torus is None:
        drawings = _views(nodes, wires, classes, "")
    else:
        found = torus_views(torus, wires, classes)
        drawings = [
            _framed(heading, [drawing]) if heading else drawing for heading, drawing in found
        ]
        drawings += _details([host for hosts in torus.hosts for host in hosts], wires, classes, "")
    views = stacked(drawings, _GAP, centred=True)
    inner = stacked([_head(topology), views, key(topology, wires, classes)], _GAP)
    width = max(inner.width, _NARROWEST) + 2 * _MARGIN
    shapes = tuple(shape.moved(_MARGIN, _MARGIN) for shape in inner.shapes)
    return Drawing(width, inner.height + 2 * _MARGIN, shapes)


def _head(topology: Topology) -> Drawing:
    title = topology.title if topology.title != topology.name else ""
    texts = (
        Text(0, 16, topology.name, 18, bold=True),
        Text(0, 34, title, 12, fill=FAINT),
        Text(0, 50, f"content {topology.digest}", 9, fill=FAINT),
    )
    return Drawing(max(text_width(topology.name, 20), text_width(title, 12)), 50, texts)


def _views(
    nodes: Sequence[Node], wires: Sequence[Cable], classes: Sequence[str], prefix: str
) -> list[Drawing]:
    """A network and then one of each kind of machine on it; or a machine alone. Names stand without
    `prefix`.
    """
    hubs = _hubs(nodes)
    if not hubs:
        return [machine(nodes, wires, classes, prefix)]
    whole = block(nodes, hubs, neighbours(wires))
    views = [network(whole, wires, classes, prefix)]
    return [*views, *_details(_hosts(whole), wires, classes, prefix)]


def _details(
    hosts: Sequence[tuple[Node, ...]], wires: Sequence[Cable], classes: Sequence[str], prefix: str
) -> list[Drawing]:
    """One of each kind of machine in a frame; a device on a network has nothing to show."""
    views = []
    kinds = _kinds_of_host([host for host in hosts if len(host) > 1], wires)
    for alike in kinds[:_MOST_KINDS]:
        own = alike[0]
        name = machine_name(own, prefix)
        heading = f"{name}, one of {len(alike):,} alike" if len(alike) > 1 else name
        names = [node.name for node in own]
        inside = frozenset(names)
        touching = [c for c in wires if c.there.source in inside or c.there.target in inside]
        inner = prefix + common_prefix([each.removeprefix(prefix) for each in names])
        views.append(_framed(heading, _views(own, touching, classes, inner)))
    if len(kinds) > _MOST_KINDS:
        rest = f"{len(kinds) - _MOST_KINDS:,} more kinds of machine are not drawn one by one."
        views.append(Drawing(text_width(rest, 11), 14, (Text(0, 11, rest, 11),)))
    return views


def _hubs(nodes: Sequence[Node]) -> frozenset[str]:
    """What a drawing is split at: the switches of a network, or of many GPUs the NVSwitches."""
    hubs = frozenset(node.name for node in nodes if node.kind == "switch")
    if not hubs and sum(node.kind == "gpu" for node in nodes) > MOST:
        hubs = frozenset(node.name for node in nodes if node.kind == "nvswitch")
    return hubs


def _framed(heading: str, views: Sequence[Drawing]) -> Drawing:
    inner = stacked(views, _GAP, centred=True)
    width = max(inner.width + 32, text_width(heading, 12) + 24)
    frame = Rect(0, 0, width, inner.height + 52, stroke="#999999", radius=8)
    shapes = (frame, Text(14, 20, heading, 12, bold=True), *(s.moved(16, 34) for s in inner.shapes))
    return Drawing(width, inner.height + 52, (Group(shapes, kind="detail"),))


def _hosts(whole: Block) -> list[tuple[Node, ...]]:
    if whole.level == 0:
        return [whole.nodes]
    return [host for part in whole.parts for host in _hosts(part)]


def _kinds_of_host(
    hosts: Sequence[tuple[Node, ...]], wires: Sequence[Cable]
) -> list[list[tuple[Node, ...]]]:
    """Machines that are alike together: alike in nodes, links and ways out."""
    owner = {node.name: i for i, host in enumerate(hosts) for node in host}
    marks = _marks([node for host in hosts for node in host], owner, wires)
    found: dict[tuple[object, ...], list[tuple[Node, ...]]] = {}
    for host in hosts:
        found.setdefault(tuple(sorted(marks[node.name] for node in host)), []).append(host)
    return list(found.values())


def _marks(nodes: Sequence[Node], owner: dict[str, int], wires: Sequence[Cable]) -> dict[str, int]:
    """A number for every node of a host, equal where nodes have equal surroundings (colour
    refinement).
    """
    numbers: dict[object, int] = {}

    def number(key: object) -> int:
        return numbers.setdefault(key, len(numbers))

    marks = {n.name: number((n.kind, n.model, n.memory_bandwidth, n.peer)) for n in nodes}
    figures = [number(("cable", cable.figures)) for cable in wires]
    for _ in range(4):
        near: dict[str, list[tuple[int, int]]] = {name: [] for name in marks}
        for cable, figure in zip(wires, figures, strict=True):
            for here, there in (
                (cable.there.source, cable.there.target),
                (cable.there.target, cable.there.source),
            ):
                if here in near:
                    inside = owner.get(here) == owner.get(there)
                    near[here].append((figure, marks[there] if inside else -1))
        marks = {
            name: number((marks[name], tuple(sorted(around)))) for name, around in near.items()
        }
    return marks
