"""Drawings of tori: a grid of routers with their devices.

A torus of three dimensions is a row of planes, with one of them in detail.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from simreduce.report.drawing.shapes import Drawing, Point
from simreduce.report.pictures.blocks import components, host_item, wire_graph
from simreduce.report.pictures.scene import Bundle, Item, LinkPair, Scene, kinds_text, make_scene
from simreduce.report.pictures.style import HEIGHT, box_size, draw_scene
from simreduce.report.pictures.wires import BoxPlace, arc_room, line_points
from simreduce.topology import Node, Topology, natural
from simreduce.topology.routing.equal_machines import EqualMachines
from simreduce.topology.routing.rules import TorusRule

_MOST = 8
"""Most places in a row of the grid; a longer row shows the first ones and the last."""
_COLUMN_GAP, _ROW, _HANGS = 56.0, 136.0, 54.0
_OVER = 36.0
"""Room above a router for the links round the ends of its row."""
_ASIDE = 30.0
"""From the middle of a router to that of the device at its lower right."""


@dataclass(frozen=True, slots=True)
class TorusGrid:
    """Routers by number, the machines or devices on each, and the size of each dimension."""

    routers: tuple[Node, ...]
    hosts: tuple[tuple[tuple[Node, ...], ...], ...]
    sizes: tuple[int, ...]


def torus_grid(topology: Topology, wires: Sequence[LinkPair]) -> TorusGrid | None:
    """The torus of a network whose routing rule is that of one.

    None for other networks, and where something hangs on several routers.
    """
    rule = topology.router.rule
    if isinstance(rule, EqualMachines):  # of machines: the rule of the network between them
        rule = rule.network
    if not isinstance(rule, TorusRule):
        return None
    # Ports are numbered router by router.
    ports = (topology.links[2 * (rule.first + port)].target for port in range(len(rule.hosts)))
    number = {name: i for i, name in enumerate(dict.fromkeys(ports))}
    graph = wire_graph(topology.nodes, wires)
    hosts: list[list[tuple[Node, ...]]] = [[] for _ in number]
    for names in components([name for name in topology.nodes if name not in number], graph):
        ends = {number[end] for name in names for end in graph[name] if end in number}
        if len(ends) != 1:
            return None
        hosts[ends.pop()].append(tuple(topology.nodes[name] for name in sorted(names, key=natural)))
    if len(number) != math.prod(rule.sizes) or not all(hosts):
        return None
    for each in hosts:
        each.sort(
            key=lambda host: (all(node.kind != "gpu" for node in host), natural(host[0].name))
        )
    return TorusGrid(
        tuple(topology.nodes[name] for name in number), tuple(map(tuple, hosts)), rule.sizes
    )


def draw_torus(
    torus: TorusGrid, wires: Sequence[LinkPair], classes: Sequence[str]
) -> list[tuple[str, Drawing]]:
    """The drawings with their headings; the first has none."""
    x, y, *deeper = torus.sizes
    planes = deeper[0] if deeper else 1
    if planes == 1:
        return [("", _draw_plane(torus, range(x * y), wires, classes))]
    heading = (
        f"The plane z = 0 of {planes}; its routers are linked to those of the planes beside it"
    )
    return [
        ("", _draw_planes(torus, planes, wires, classes)),
        (heading, _draw_plane(torus, range(x * y), wires, classes)),
    ]


def _runs(size: int) -> list[range]:
    """The places of a dimension as single ones; in a long one, one range stands for several."""
    if size <= _MOST:
        return [range(i, i + 1) for i in range(size)]
    return [
        *(range(i, i + 1) for i in range(_MOST - 2)),
        range(_MOST - 2, size - 1),
        range(size - 1, size),
    ]


def _draw_planes(
    torus: TorusGrid, planes: int, wires: Sequence[LinkPair], classes: Sequence[str]
) -> Drawing:
    """A box for every plane, in a row."""
    each = len(torus.routers) // planes
    items = []
    for run in _runs(planes):
        numbers = range(run.start * each, run.stop * each)
        nodes = tuple(torus.routers[i] for i in numbers)
        nodes += tuple(node for i in numbers for host in torus.hosts[i] for node in host)
        label = f"z = {run.start}" if len(run) == 1 else f"{len(run):,} more"
        items.append(Item(label, "machine", nodes, kinds_text(nodes), several=len(run) > 1))
    view = make_scene(wires, items)
    left, places = 0.0, []
    for item in view.items:
        width, height = box_size(item)
        places.append(BoxPlace(left + width / 2, width, height, 0))
        left += width + _COLUMN_GAP
    top = arc_room(places, view.bundles, 0, below=False)
    places = [replace(place, y=top) for place in places]
    return _draw(view, places, line_points(places, view.bundles, below=frozenset()), classes)


def _draw_plane(
    torus: TorusGrid, numbers: range, wires: Sequence[LinkPair], classes: Sequence[str]
) -> Drawing:
    """A cell for every router of a plane, with its device at the lower right.

    Further devices of the first router stand on its left.
    """
    columns, rows = _runs(torus.sizes[0]), _runs(torus.sizes[1])
    items: list[Item] = []
    cells: list[tuple[int, int]] = []
    for (r, ys), (c, xs) in itertools.product(enumerate(rows), enumerate(columns)):
        here = [numbers[x + y * torus.sizes[0]] for y in ys for x in xs]
        hosts = [host for i in here for host in torus.hosts[i][: 1 if i == numbers.start else None]]
        items += [_cell_item([(torus.routers[i],) for i in here]), _cell_item(hosts)]
        cells += [(c, r), (c, r)]
    extra = [_cell_item([host]) for host in torus.hosts[numbers.start][1:]]
    sizes = [box_size(item) for item in items]
    router, device = (max(width for width, _ in sizes[part::2]) for part in (0, 1))
    aside = max(_ASIDE, (device - router) / 2 + 26)
    pitch = router / 2 + max(router / 2, aside + device / 2) + _COLUMN_GAP
    left = 40 + router / 2 + (pitch if extra else 0.0)
    places = []
    for k, ((c, r), (_, height)) in enumerate(zip(cells, sizes, strict=True)):
        hangs = k % 2
        x, y = left + c * pitch + aside * hangs, _OVER + r * _ROW + _HANGS * hangs
        places.append(BoxPlace(x, device if hangs else router, height, 2 * r + hangs, y))
    for k, item in enumerate(extra):
        places.append(BoxPlace(left - pitch, *box_size(item), 0, _OVER + k * (HEIGHT + 21)))
        cells.append((-1, 0))
    view = make_scene(wires, [*items, *extra])
    return _draw(view, places, [_cell_line(b, places, cells) for b in view.bundles], classes)


def _cell_line(
    bundle: Bundle, places: Sequence[BoxPlace], cells: Sequence[tuple[int, int]]
) -> tuple[Point, ...]:
    """The line of a link: straight between neighbours, else an arc round the ends."""
    a, b = sorted((bundle.a, bundle.b), key=lambda i: (cells[i][::-1], places[i].row))
    one, other, across, down = (
        places[a],
        places[b],
        cells[b][0] - cells[a][0],
        cells[b][1] - cells[a][1],
    )
    if across == down == 0:
        x = max(other.x - other.width / 2 + 8, one.x + one.width / 2 - 10)
        return (x, one.bottom), (x, other.y)
    if down == 0 and across == 1:
        y = other.y + HEIGHT / 2
        return (one.x + one.width / 2, y), (other.x - other.width / 2, y)
    if down == 0:
        top = one.y - _OVER
        return (one.x + 8, one.y), (one.x + 8, top), (other.x - 8, top), (other.x - 8, one.y)
    left = one.x - one.width / 2
    if down == 1:
        return (left + 12, one.bottom), (left + 12, other.y)
    y, end = one.y + HEIGHT / 2 - 8, other.y + HEIGHT / 2 - 8
    return (left, y), (left - 36, y), (left - 36, end), (left, end)


def _cell_item(hosts: Sequence[tuple[Node, ...]]) -> Item:
    """The box of a router, device or machine, or of several in one cell."""
    first = host_item(hosts[0], "")
    if len(hosts) == 1:
        return first
    nodes = tuple(
        node for each in sorted(hosts, key=lambda each: natural(each[0].name)) for node in each
    )
    return Item(f"{first.label} ...", first.kind, nodes, f"x {len(hosts):,}", several=True)


def _draw(
    view: Scene,
    places: Sequence[BoxPlace],
    lines: Sequence[tuple[Point, ...]],
    classes: Sequence[str],
) -> Drawing:
    width = max(place.corners[2] for place in places) + 8
    height = max(place.bottom for place in places)
    return Drawing(width, height, tuple(draw_scene(view, places, lines, classes)))
