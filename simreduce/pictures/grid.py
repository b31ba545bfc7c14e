"""A torus as what it is: a grid of routers with their devices, and of three dimensions a row of
planes and one of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from simreduce.pictures.blocks import components, host, neighbours
from simreduce.pictures.scene import Bundle, Cable, Item, Scene, kinds, scene
from simreduce.pictures.shapes import Drawing, Point
from simreduce.pictures.style import HEIGHT, box, box_size, counts, line
from simreduce.pictures.wires import Place, arc_room, routes
from simreduce.topology import Node, Topology, natural
from simreduce.topology.routing.equal_machines import EqualMachines
from simreduce.topology.routing.torus import TorusRule

_MOST = 8
"""Places in a row of the grid that are drawn one by one; of more, the first ones and the last."""
_COLUMN_GAP, _ROW, _HANGS = 56.0, 136.0, 54.0
_OVER = 36.0
"""Above a router, for what goes round the ends of its row."""
_ASIDE = 30.0
"""From the middle of a router to that of its device, which hangs on its right."""


@dataclass(frozen=True, slots=True)
class Torus:
    """Routers by their number, the machines or devices that hang on each, and the size of each
    dimension.
    """

    routers: tuple[Node, ...]
    hosts: tuple[tuple[tuple[Node, ...], ...], ...]
    sizes: tuple[int, ...]


def torus_of(topology: Topology, wires: Sequence[Cable]) -> Torus | None:
    """The torus that a network is by its rule for routes; None if it has no such rule, or something
    hangs on several routers.
    """
    rule = topology.router.rule
    if isinstance(rule, EqualMachines):  # of machines: the rule of the network between them
        rule = rule.network
    if not isinstance(rule, TorusRule):
        return None
    # Ports are numbered router by router.
    ports = (topology.links[2 * (rule.first + port)].target for port in range(len(rule.hosts)))
    number = {name: i for i, name in enumerate(dict.fromkeys(ports))}
    near = neighbours(wires)
    hosts: list[list[tuple[Node, ...]]] = [[] for _ in number]
    for names in components([name for name in topology.nodes if name not in number], near):
        ends = {number[end] for name in names for end in near[name] if end in number}
        if len(ends) != 1:
            return None
        hosts[ends.pop()].append(tuple(topology.nodes[name] for name in sorted(names, key=natural)))
    if len(number) != math.prod(rule.sizes) or not all(hosts):
        return None
    for each in hosts:
        each.sort(
            key=lambda host: (all(node.kind != "gpu" for node in host), natural(host[0].name))
        )
    return Torus(
        tuple(topology.nodes[name] for name in number), tuple(map(tuple, hosts)), rule.sizes
    )


def torus_views(
    torus: Torus, wires: Sequence[Cable], classes: Sequence[str]
) -> list[tuple[str, Drawing]]:
    """The drawings with their headings, "" for the first."""
    x, y, *deeper = torus.sizes
    planes = deeper[0] if deeper else 1
    if planes == 1:
        return [("", _plane(torus, range(x * y), wires, classes))]
    heading = (
        f"The plane z = 0 of {planes}; its routers are linked to those of the planes beside it"
    )
    return [
        ("", _planes(torus, planes, wires, classes)),
        (heading, _plane(torus, range(x * y), wires, classes)),
    ]


def _runs(size: int) -> list[range]:
    """The places of a dimension one by one, or of a long one the first ones, those between and the
    last.
    """
    if size <= _MOST:
        return [range(i, i + 1) for i in range(size)]
    return [
        *(range(i, i + 1) for i in range(_MOST - 2)),
        range(_MOST - 2, size - 1),
        range(size - 1, size),
    ]


def _planes(torus: Torus, planes: int, wires: Sequence[Cable], classes: Sequence[str]) -> Drawing:
    """A box for every plane, in a row."""
    each = len(torus.routers) // planes
    items = []
    for run in _runs(planes):
        numbers = range(run.start * each, run.stop * each)
        nodes = tuple(torus.routers[i] for i in numbers)
        nodes += tuple(node for i in numbers for host in torus.hosts[i] for node in host)
        label = f"z = {run.start}" if len(run) == 1 else f"{len(run):,} more"
        items.append(Item(label, "machine", nodes, kinds(nodes), several=len(run) > 1))
    view = scene(wires, items)
    left, places = 0.0, []
    for item in view.items:
        width, height = box_size(item)
        places.append(Place(left + width / 2, width, height, 0))
        left += width + _COLUMN_GAP
    top = arc_room(places, view.bundles, 0, below=False)
    places = [replace(place, y=top) for place in places]
    return _drawn(view, places, routes(places, view.bundles, below=frozenset()), classes)


def _plane(torus: Torus, numbers: range, wires: Sequence[Cable], classes: Sequence[str]) -> Drawing:
    """Two dimensions: a cell for every router, with its device at its lower right; other devices of
    the first on its left.
    """
    columns, rows = _runs(torus.sizes[0]), _runs(torus.sizes[1])
    items: list[Item] = []
    cells: list[tuple[int, int]] = []
    for (r, ys), (c, xs) in itertools.product(enumerate(rows), enumerate(columns)):
        here = [numbers[x + y * torus.sizes[0]] for y in ys for x in xs]
        hosts = [host for i in here for host in torus.hosts[i][: 1 if i == numbers.start else None]]
        items += [_cell([(torus.routers[i],) for i in here]), _cell(hosts)]
        cells += [(c, r), (c, r)]
    extra = [_cell([host]) for host in torus.hosts[numbers.start][1:]]
    sizes = [box_size(item) for item in items]
    router, device = (max(width for width, _ in sizes[part::2]) for part in (0, 1))
    aside = max(_ASIDE, (device - router) / 2 + 26)
    pitch = router / 2 + max(router / 2, aside + device / 2) + _COLUMN_GAP
    left = 40 + router / 2 + (pitch if extra else 0.0)
    places = []
    for k, ((c, r), (_, height)) in enumerate(zip(cells, sizes, strict=True)):
        hangs = k % 2
        x, y = left + c * pitch + aside * hangs, _OVER + r * _ROW + _HANGS * hangs
        places.append(Place(x, device if hangs else router, height, 2 * r + hangs, y))
    for k, item in enumerate(extra):
        places.append(Place(left - pitch, *box_size(item), 0, _OVER + k * (HEIGHT + 21)))
        cells.append((-1, 0))
    view = scene(wires, [*items, *extra])
    return _drawn(view, places, [_cell_line(b, places, cells) for b in view.bundles], classes)


def _cell_line(
    bundle: Bundle, places: Sequence[Place], cells: Sequence[tuple[int, int]]
) -> tuple[Point, ...]:
    """Straight between neighbours; an arc round the ends, over a row or left of a column."""
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


def _cell(hosts: Sequence[tuple[Node, ...]]) -> Item:
    """The box of a router, device or machine, or of all those that a cell stands for."""
    first = host(hosts[0], "")
    if len(hosts) == 1:
        return first
    nodes = tuple(
        node for each in sorted(hosts, key=lambda each: natural(each[0].name)) for node in each
    )
    return Item(f"{first.label} ...", first.kind, nodes, f"x {len(hosts):,}", several=True)


def _drawn(
    view: Scene, places: Sequence[Place], lines: Sequence[tuple[Point, ...]], classes: Sequence[str]
) -> Drawing:
    shapes = [line(b, points, classes) for b, points in zip(view.bundles, lines, strict=True)]
    shapes += counts(view.bundles, lines, [place.corners for place in places])
    shapes += [
        box(item, place.x, place.y, place.width, place.height)
        for item, place in zip(view.items, places, strict=True)
    ]
    width = max(place.corners[2] for place in places) + 8
    return Drawing(width, max(place.bottom for place in places), tuple(shapes))
