"""Drawings of networks: the hosts at the bottom, the switches above them level by level.

Tori are grids of routers with their devices. A torus of three dimensions is a row of planes, with
one of them in detail.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simreduce.report.drawing import Drawing, Point, Rect
from simreduce.report.pictures.scene import (
    Block,
    BoxTree,
    Bundle,
    Detail,
    Item,
    LinkPair,
    Scene,
    box_tree,
    components,
    host_item,
    kinds_text,
    make_scene,
    wire_graph,
)
from simreduce.report.pictures.style import (
    HEIGHT,
    BoxPlace,
    arc_room,
    box_size,
    draw_scene,
    line_points,
    stack_rows,
)
from simreduce.topology import Node, Topology, natural
from simreduce.topology.routing.rules import EqualMachines, TorusRule

_WIDEST = 1700.0
"""Pixels; a network that is wider is drawn with less detail."""
_MOST_LINES = 150
_GAP, _APART, _ROW_GAP = 12.0, 18.0, 84.0
_MARGIN = 8.0
_SHARE = 0.55
"""The width of one of several switches in a row, as a fraction of its slot."""
_DETAILS = [
    Detail(parts, hosts, tops)
    for tops in (16, 1)
    for parts in (10**9, 12, 8, 6, 5, 4, 3, 2)
    for hosts in (10**9, 8, 4, 3, 1)
]
_CROSSING, _MOST_CROSSING = 3.0, 32
"""Pixels that each crossing line adds to the gap between two rows, and the most that do."""


def draw_network(
    whole: Block, wires: Sequence[LinkPair], classes: Sequence[str], prefix: str
) -> Drawing:
    """The drawing of a block, with as much detail as stays readable."""
    whole_boxes, seen = _most_detailed(whole, wires, prefix)
    flat = list(_place_boxes(whole_boxes, 0.0))
    places = stack_rows(
        flat,
        above=lambda row: arc_room(flat, seen.bundles, row, below=False),
        below=lambda row: (
            _ROW_GAP + _CROSSING * min(_count_slanted(seen, flat, row), _MOST_CROSSING)
        ),
    )
    lines = line_points(places, seen.bundles, below=frozenset(), straight=True)
    drawn = draw_scene(seen, places, lines, classes, margin=6)
    frames = [_frame(group, places) for group in _groups(whole_boxes)]
    return Drawing(drawn.width, drawn.height + _MARGIN, (*frames, *drawn.shapes))


def _groups(boxes: BoxTree, first: int = 0) -> Iterator[range]:
    """The boxes of each group of switches that has no switch above it, as ranges of places."""
    place = first + len(boxes.tops)
    for part in boxes.parts:
        count = len(list(_items(part)))
        if not boxes.tops and not part.tops and part.parts:
            yield range(place, place + count)
        yield from _groups(part, place)
        place += count


def _frame(group: range, places: Sequence[BoxPlace]) -> Rect:
    """The frame around the boxes of a group."""
    corners = [places[i].corners for i in group]
    left, top = min(c[0] for c in corners) - _MARGIN, min(c[1] for c in corners) - _MARGIN
    right, bottom = max(c[2] for c in corners) + _MARGIN, max(c[3] for c in corners) + _MARGIN
    return Rect(left, top, right - left, bottom - top, "#fafafa", "#bbbbbb", 8)


def _most_detailed(whole: Block, wires: Sequence[LinkPair], prefix: str) -> tuple[BoxTree, Scene]:
    """The most detailed scene that is neither too wide nor too crowded, else the least detailed."""
    choices: list[tuple[int, int, BoxTree]] = []
    for detail in _DETAILS:
        boxes = box_tree(whole, detail, prefix)
        if _span(boxes) <= _WIDEST or detail == _DETAILS[-1]:
            # A switch is worth two hosts: these are alike, and it shows how they are linked.
            worth = sum(2 if item.kind == "switch" else 1 for item in _items(boxes))
            choices.append((-worth, len(choices), boxes))
    for *_, boxes in sorted(choices, key=lambda choice: choice[:2]):
        seen = make_scene(wires, list(_items(boxes)))
        if len(seen.bundles) <= _MOST_LINES:
            break
    return boxes, seen


def _items(boxes: BoxTree) -> Iterator[Item]:
    """Yield all boxes, each row from left to right."""
    yield from boxes.tops
    for part in boxes.parts:
        yield from _items(part)


def _span(boxes: BoxTree) -> float:
    """The width in pixels that some boxes and those below them need."""
    below = sum(_span(part) for part in boxes.parts) + (_APART if boxes.parts else 0.0)
    return max(sum(box_size(item)[0] + _GAP for item in boxes.tops), below)


def _place_boxes(boxes: BoxTree, left: float) -> Iterator[BoxPlace]:
    """The place of every box in the order of `_items`, at y 0; `row` is minus the level."""
    span = _span(boxes)
    sizes = [box_size(item) for item in boxes.tops]
    slack = (span - sum(width + _GAP for width, _ in sizes)) / max(len(sizes), 1)
    x = left
    for width, height in sizes:
        slot = width + _GAP + slack
        # A switch is as wide as what it stands above, so that lines go straight down.
        wide = (
            max(width, (slot - _GAP) * (1.0 if len(sizes) == 1 else _SHARE))
            if boxes.parts
            else width
        )
        yield BoxPlace(
            x + slot / 2, wide, height, -boxes.level, wide=len(sizes) == 1 and bool(boxes.parts)
        )
        x += slot
    inner = left + (span - sum(_span(part) for part in boxes.parts)) / 2
    for part in boxes.parts:
        yield from _place_boxes(part, inner)
        inner += _span(part)


def _count_slanted(seen: Scene, places: Sequence[BoxPlace], row: int) -> int:
    """Count the lines below a row that do not go straight down: they cross each other."""
    ends = [sorted((places[b.a], places[b.b]), key=lambda p: p.row) for b in seen.bundles]
    return sum(
        upper.row == row < lower.row and abs(upper.x - lower.x) > upper.width / 2
        for upper, lower in ends
    )


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
    ends = range(size + 1) if size <= _MOST else [*range(_MOST - 1), size - 1, size]
    return [range(*pair) for pair in itertools.pairwise(ends)]


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
    left, flat = 0.0, []
    for item in view.items:
        width, height = box_size(item)
        flat.append(BoxPlace(left + width / 2, width, height, 0))
        left += width + _COLUMN_GAP
    places = stack_rows(
        flat, lambda row: arc_room(flat, view.bundles, row, below=False), lambda _: 0.0
    )
    return draw_scene(view, places, line_points(places, view.bundles, below=frozenset()), classes)


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
    lines = [_cell_line(bundle, places, cells) for bundle in view.bundles]
    return draw_scene(view, places, lines, classes)


def _cell_line(
    bundle: Bundle, places: Sequence[BoxPlace], cells: Sequence[tuple[int, int]]
) -> tuple[Point, ...]:
    """The line of a link: straight between neighbours, else an arc round the ends."""
    a, b = sorted((bundle.a, bundle.b), key=lambda i: (cells[i][::-1], places[i].row))
    one, other = places[a], places[b]
    across, down = cells[b][0] - cells[a][0], cells[b][1] - cells[a][1]
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
