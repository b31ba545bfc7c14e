"""Pictures of machines, rings and trees: pure functions to a `Drawing`.

The picture of a topology: its name, its network, its machines and a key.

Loads over a drawing of a machine: links and boxes in the colour of how busy they are.

Drawings of where ranks are: nodes by the switches that they share, and a ring in each order.

Drawings of rings and trees: one panel each, the ranks in a circle, shares as line widths.

The ranks of a machine stand together, with an arc and the machine's name outside them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from simreduce.computing import group_by
from simreduce.planners.synthesis import Edge
from simreduce.report.drawing import (
    FAINT,
    Circle,
    Drawing,
    Line,
    Mark,
    Point,
    Polygon,
    Rect,
    Shape,
    Text,
    shift,
    stack,
    text_width,
    wrap,
)
from simreduce.report.pictures.fabric import draw_network, draw_torus, torus_grid
from simreduce.report.pictures.machine import MOST, draw_machine
from simreduce.report.pictures.scene import (
    Block,
    LinkPair,
    common_prefix,
    link_pairs,
    machine_name,
    make_block,
    wire_graph,
)
from simreduce.report.pictures.style import draw_key
from simreduce.topology import Node, Topology

UNUSED = "#c3c8d0"
LEVELS = (
    (0.25, "#f0b95b", "up to 25%"),
    (0.5, "#e5812f", "up to 50%"),
    (0.75, "#c7421b", "up to 75%"),
    (1.0, "#7f1422", "up to 100%"),
)
"""Upper ends of load, their colours and words. Darker is busier, so a print in grey stays readable.
"""

_EDGE = 2.5
"""The width of a box's edge whose memory is used."""


def heat(load: float) -> str:
    """The colour of a load from 0 to 1."""
    if load <= 0.0:
        return UNUSED
    return next((colour for end, colour, _ in LEVELS if load <= end + 5e-4), LEVELS[-1][1])


def _coloured(shapes: tuple[Shape, ...], loads: Mapping[str, float]) -> list[Shape]:
    """The shapes with links and boxes coloured; titles say the loads. Busy links lie on top of
    others.
    """
    found: list[Shape] = []
    lines: list[tuple[float, Shape]] = []
    for shape in shapes:
        if not isinstance(shape, Mark):
            found.append(shape)
        elif shape.kind == "link":
            load, drawn = _heated(shape, loads)
            lines.append((load, drawn))
        elif shape.kind.startswith("node"):
            found.append(_heated(shape, loads)[1])
        else:
            found.append(replace(shape, shapes=tuple(_coloured(shape.shapes, loads))))
    first = next((i for i, shape in enumerate(found) if isinstance(shape, Mark)), len(found))
    found[first:first] = [line for _, line in sorted(lines, key=lambda line: line[0])]
    return found


def _heated(mark: Mark, loads: Mapping[str, float]) -> tuple[float, Mark]:
    """The highest load of a mark's resources, and the mark in its colour.

    Its title gets the two highest loads.
    """
    mine = sorted(((loads.get(name, 0.0), name) for name in mark.resources), reverse=True)
    words = [f"{name}: busy {load:.0%}" for load, name in mine[:2] if load > 0.0]
    load = mine[0][0] if mine else 0.0
    shapes = tuple(_heat_shape(shape, load) for shape in mark.shapes)
    return load, replace(mark, shapes=shapes, title="\n".join([mark.title, *words]))


def _heat_shape(shape: Shape, load: float) -> Shape:
    """A line, or the edge of a box with load, in the colour of its load."""
    if isinstance(shape, Line):
        return replace(shape, stroke=heat(load))
    if isinstance(shape, Rect) and load > 0.0:
        return replace(shape, stroke=heat(load), stroke_width=_EDGE)
    return shape


def draw_scale() -> Drawing:
    """The key of the colours."""
    shapes: list[Shape] = [Text(0, 11, "Busy for this part of the time:", 11, fill=FAINT)]
    x = text_width("Busy for this part of the time:", 11) + 8
    for colour, words in ((UNUSED, "never"), *((code, text) for _, code, text in LEVELS)):
        shapes += [
            Line(((x, 7), (x + 28, 7)), colour, 7),
            Text(x + 34, 11, words, 11),
        ]
        x += 34 + text_width(words, 11) + 14
    note = "A line shows the busier of its two directions, the edge of a box its memory."
    shapes.append(Text(0, 29, note, 10, fill=FAINT))
    return Drawing(max(x, text_width(note, 10)), 34, tuple(shapes))


_MARGIN, _GAP = 24.0, 26.0
_NARROWEST = 560.0
_MOST_KINDS = 6
"""Most kinds of machine with a drawing of their own."""


def machine_picture(topology: Topology) -> Drawing:
    """The picture of a topology of any size; one of several equal parts stands for all."""
    wires, classes = _wires(topology)
    key = draw_key(topology, wires, classes)
    return _page([_draw_head(topology), _draw_nodes(topology, wires, classes), key])


def heat_picture(topology: Topology, loads: Mapping[str, float]) -> Drawing:
    """The picture of a machine under load.

    `loads` says for which part of the time, 0 to 1, each link and memory is busy, by the names that
    results have. Where one part is drawn for several, the busiest counts.
    """
    drawing = _without_loads(topology)
    return _page([replace(drawing, shapes=tuple(_coloured(drawing.shapes, loads))), draw_scale()])


@lru_cache(maxsize=4)
def _without_loads(topology: Topology) -> Drawing:
    """The nodes of a machine, drawn without loads. Pictures under any load begin with them."""
    return _draw_nodes(topology, *_wires(topology))


def _wires(topology: Topology) -> tuple[list[LinkPair], list[str]]:
    """The wires of a machine and their classes."""
    wires = link_pairs(topology)
    return wires, list(dict.fromkeys(cable.there.link_class for cable in wires))


def _page(parts: Sequence[Drawing]) -> Drawing:
    """The parts below each other, with a margin."""
    inner = stack(parts, _GAP)
    width = max(inner.width, _NARROWEST) + 2 * _MARGIN
    shapes = tuple(shift(shape, _MARGIN, _MARGIN) for shape in inner.shapes)
    return Drawing(width, inner.height + 2 * _MARGIN, shapes)


def _draw_nodes(topology: Topology, wires: Sequence[LinkPair], classes: Sequence[str]) -> Drawing:
    """Network and machines, without a head and a key."""
    nodes = tuple(topology.nodes.values())
    torus = torus_grid(topology, wires)
    if torus is None:
        drawings = _draw_views(nodes, wires, classes, "")
    else:
        drawings = [
            _frame(heading, [drawing]) if heading else drawing
            for heading, drawing in draw_torus(torus, wires, classes)
        ]
        hosts = [host for each in torus.hosts for host in each]
        drawings += _draw_details(hosts, wires, classes, "")
    return stack(drawings, _GAP, centred=True)


def _draw_head(topology: Topology) -> Drawing:
    title = topology.title if topology.title != topology.name else ""
    texts = (
        Text(0, 16, topology.name, 18, bold=True),
        Text(0, 34, title, 12, fill=FAINT),
        Text(0, 50, f"content {topology.digest}", 9, fill=FAINT),
    )
    return Drawing(max(text_width(topology.name, 20), text_width(title, 12)), 50, texts)


def _draw_views(
    nodes: Sequence[Node], wires: Sequence[LinkPair], classes: Sequence[str], prefix: str
) -> list[Drawing]:
    """A network and then one of each kind of machine on it, or a machine alone.

    Labels leave out `prefix`.
    """
    hubs = _hubs(nodes)
    if not hubs:
        return [draw_machine(nodes, wires, classes, prefix)]
    whole = make_block(nodes, hubs, wire_graph([node.name for node in nodes], wires))
    views = [draw_network(whole, wires, classes, prefix)]
    return [*views, *_draw_details(_hosts(whole), wires, classes, prefix)]


def _draw_details(
    hosts: Sequence[tuple[Node, ...]],
    wires: Sequence[LinkPair],
    classes: Sequence[str],
    prefix: str,
) -> list[Drawing]:
    """One of each kind of machine in a frame; single devices have nothing to show."""
    views = []
    kinds = _kinds_of_host([host for host in hosts if len(host) > 1], wires)
    for alike in kinds[:_MOST_KINDS]:
        own, names = alike[0], {node.name for node in alike[0]}
        heading = machine_name(own, prefix)
        if len(alike) > 1:
            heading += f", one of {len(alike):,} alike"
        touching = [c for c in wires if c.there.source in names or c.there.target in names]
        inner = prefix + common_prefix([each.removeprefix(prefix) for each in names])
        views.append(_frame(heading, _draw_views(own, touching, classes, inner)))
    if len(kinds) > _MOST_KINDS:
        rest = f"{len(kinds) - _MOST_KINDS:,} more kinds of machine are not drawn one by one."
        views.append(Drawing(text_width(rest, 11), 14, (Text(0, 11, rest, 11),)))
    return views


def _hubs(nodes: Sequence[Node]) -> frozenset[str]:
    """The switches of a network; without any, the NVSwitches of many GPUs."""
    hubs = frozenset(node.name for node in nodes if node.kind == "switch")
    if not hubs and sum(node.kind == "gpu" for node in nodes) > MOST:
        hubs = frozenset(node.name for node in nodes if node.kind == "nvswitch")
    return hubs


def _frame(heading: str, views: Sequence[Drawing]) -> Drawing:
    inner = stack(views, _GAP, centred=True)
    width = max(inner.width + 32, text_width(heading, 12) + 24)
    shapes = (
        Rect(0, 0, width, inner.height + 52, stroke="#999999", radius=8),
        Text(14, 20, heading, 12, bold=True),
        *(shift(s, 16, 34) for s in inner.shapes),
    )
    return Drawing(width, inner.height + 52, (Mark(shapes, kind="detail"),))


def _hosts(whole: Block) -> list[tuple[Node, ...]]:
    if whole.level == 0:
        return [whole.nodes]
    return [host for part in whole.parts for host in _hosts(part)]


def _kinds_of_host(
    hosts: Sequence[tuple[Node, ...]], wires: Sequence[LinkPair]
) -> list[list[tuple[Node, ...]]]:
    """Machines that are alike, together: alike in nodes, links and links to the outside.

    Weisfeiler-Lehman hashes decide: equal for alike machines, and different for most others.
    """
    import networkx as nx  # noqa: PLC0415 - takes long to load

    owner = {node.name: i for i, host in enumerate(hosts) for node in host}
    graph: nx.Graph[str] = nx.Graph()
    outside: dict[str, list[tuple[tuple[object, ...], ...]]] = {name: [] for name in owner}
    for cable in wires:
        a, b = cable.there.source, cable.there.target
        if owner.get(a) != owner.get(b):
            for end in owner.keys() & {a, b}:
                outside[end].append(cable.figures)
        elif a in owner:
            links = graph.get_edge_data(a, b, {"links": ()})["links"]
            graph.add_edge(a, b, links=sorted([*links, cable.figures]))
    for node in itertools.chain.from_iterable(hosts):
        about = (
            node.kind,
            node.model,
            node.memory_bandwidth,
            node.peer,
            sorted(outside[node.name], key=str),
        )
        graph.add_node(node.name, about=str(about))

    def look(host: tuple[Node, ...]) -> str:
        import networkx as nx  # noqa: PLC0415 - takes long to load

        inside = graph.subgraph(node.name for node in host)
        return str(nx.weisfeiler_lehman_graph_hash(inside, edge_attr="links", node_attr="about"))

    return list(group_by(hosts, look).values())


_PANEL, _COLUMNS, _HEAD, _FOOT, _LINE = 240, 4, 48, 24, 16
_APART = 0.8
"""The gap between two machines, in distances between ranks."""
_ARC = "#c9d3de"
_MARK = 15.0
_WIDEST, _THINNEST = 5.0, 1.2
_BLUE, _PALE, _ROOT = "#1b4f8a", "#6f9bd1", "#f2b134"
_FILLS = ("#e8eef5", "#d9eeda", "#f6e2d3", "#eadcf2", "#d6eef0", "#f5dde4")
"""Of the ranks of each machine, in turn."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A pattern: its title, its directed edges, its share and the rank to mark, if any."""

    title: str
    edges: Sequence[Edge]
    share: float
    root: int | None = None


def patterns_picture(
    title: str, subtitle: str, names: Sequence[str], panels: Sequence[Panel]
) -> Drawing:
    """Draw a panel for each pattern; `names` are the ranks'."""
    columns = max(1, min(_COLUMNS, len(panels)))
    width = max(columns * _PANEL, 2 * _PANEL) + 2 * _FOOT
    below = [*wrap(subtitle, width - 2 * _FOOT, 12)]
    head = _HEAD + _LINE * len(below)
    height = head + -(-len(panels) // columns) * (_PANEL + 16) + _FOOT
    size = min(16.0, 16 * (width - 2 * _FOOT) / (1.1 * text_width(title, 16)))
    most = max((panel.share for panel in panels), default=1.0)
    shapes: list[Shape] = [
        Text(_FOOT, 26, title, size, bold=True),
        *(Text(_FOOT, 46 + _LINE * i, text, 12, fill=FAINT) for i, text in enumerate(below)),
    ]
    for i, panel in enumerate(panels):
        x, y = _FOOT + i % columns * _PANEL, head + i // columns * (_PANEL + 16)
        pattern = Mark(tuple(_draw_panel(names, panel, most)), panel.title, "pattern")
        shapes.append(shift(pattern, x, y))
    return Drawing(width, height, tuple(shapes))


def _draw_panel(names: Sequence[str], panel: Panel, most: float) -> Iterator[Shape]:
    centre, radius = _PANEL / 2, _PANEL / 2 - 38
    machines = _group_ranks(names)
    several = len(machines) > 1
    apart = _APART if several else 0.0
    turn = 2 * math.pi / (len(names) + apart * len(machines))
    # Rank 0 is at the top, or a gap between two machines.
    start = (1 + apart) / 2 if several else 0.0
    angles = [
        turn * (start + i + apart * sum(first <= i for first, _ in machines[1:]))
        for i in range(len(names))
    ]
    places = [_around(centre, radius, angle) for angle in angles]
    # Many ranks need small marks.
    mark = min(_MARK, 0.42 * turn * radius)
    yield Text(centre, 14, panel.title, 12, "middle")
    if several:
        for first, last in machines:
            yield from _draw_machine(names[first], angles[first : last + 1], centre, radius + mark)
    stroke = _THINNEST + (_WIDEST - _THINNEST) * panel.share / most
    for u, v in panel.edges:
        (ax, ay), (bx, by) = places[u], places[v]
        far = math.hypot(bx - ax, by - ay)
        dx, dy = (bx - ax) / far, (by - ay) / far
        tip = bx - dx * (mark + 1), by - dy * (mark + 1)
        back = tip[0] - dx * 10, tip[1] - dy * 10
        yield Line(((ax + dx * mark, ay + dy * mark), back), _PALE, stroke)
        yield Polygon(
            (tip, (back[0] - dy * 5, back[1] + dx * 5), (back[0] + dy * 5, back[1] - dx * 5)), _BLUE
        )
    fills = [_FILLS[m % len(_FILLS)] for m, (a, b) in enumerate(machines) for _ in range(a, b + 1)]
    for i, (x, y) in enumerate(places):
        yield Circle(x, y, mark, _ROOT if i == panel.root else fills[i], _BLUE)
        if mark >= 7:
            yield Text(x, y + 4, _gpu_number(names[i]), min(12.0, mark * 0.85), "middle")


def _group_ranks(names: Sequence[str]) -> list[tuple[int, int]]:
    """The first and the last rank of each machine: of each run of ranks with one prefix."""
    found = itertools.groupby(range(len(names)), lambda i: common_prefix([names[i]]))
    return [(ranks[0], ranks[-1]) for ranks in (list(group) for _, group in found)]


def _around(centre: float, radius: float, angle: float) -> Point:
    """A place on the circle; angle 0 is at the top, and angles grow clockwise."""
    return centre + radius * math.sin(angle), centre + 14 - radius * math.cos(angle)


def _draw_machine(
    name: str, angles: Sequence[float], centre: float, radius: float
) -> Iterator[Shape]:
    """An arc outside the ranks of a machine, and its name beyond the middle of it."""
    first, last = angles[0], angles[-1]
    pieces = max(1, math.ceil((last - first) * 8))
    ends = [first + (last - first) * k / pieces for k in range(pieces + 1)]
    for pair in itertools.pairwise([_around(centre, radius + 4, angle) for angle in ends]):
        yield Line(pair, _ARC, 4)
    x, y = _around(centre, radius + 14, (first + last) / 2)
    yield Text(x, y + 4, common_prefix([name]).removesuffix("."), 10, "middle", FAINT)


def _gpu_number(name: str) -> str:
    """The number of a GPU, `3.5` for `n3.gpu5`."""
    digits = ["".join(c for c in part if c.isdigit()) for part in name.split(".")]
    return ".".join(digits) if all(digits) else name[:4]


_MOST = 12
"""Panels of a picture."""
RANKS_WORDS = (
    "A.3 is node 3, below switches A; nodes on one arc share their switches."
    " Arrows go from each node to the next in the order of ranks, as a ring does; the first is"
    " yellow."
)
"""What is to be seen."""


def ranks_picture(
    switches: Sequence[Sequence[str]],
    orders: Mapping[str, Sequence[str]],
    title: str = "Where ranks are",
    subtitle: str = "",
) -> Drawing | None:
    """Draw a panel for each of the `orders` by name, of nodes in groups that share `switches`.
    None if no order has such a node.
    """
    place = {name: i for i, name in enumerate(name for group in switches for name in group)}
    names = [
        f"{_letters(i)}.{_node_number(name)}" for i, group in enumerate(switches) for name in group
    ]
    panels = []
    for heading, some in list(orders.items())[:_MOST]:
        nodes = [name for name in some if name in place]
        if not nodes:
            continue
        ring = zip(nodes, [*nodes[1:], nodes[0]], strict=True)
        edges = [(place[a], place[b]) for a, b in ring if a != b]
        panels.append(Panel(heading, edges, 1.0, place[nodes[0]]))
    return patterns_picture(title, subtitle, names, panels) if panels else None


def _letters(number: int) -> str:
    """A, B, ... Z, AA."""
    head, rest = divmod(number, 26)
    return (_letters(head - 1) if head else "") + chr(ord("A") + rest)


def _node_number(name: str) -> str:
    """The number at the end of a name, or its first letters."""
    return name[len(name.rstrip("0123456789")) :] or name[:2]
