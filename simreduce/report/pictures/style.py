"""Colours, widths, lines and boxes.

Colour-blind readers can distinguish the colours, which are those of Okabe and Ito. A print in grey
stays readable: boxes differ in their names, and links in their widths.

The key of a picture: kinds of boxes and lines, with figures, units and counts.

Lines between boxes that stand in rows: across rows, or along a row beside or round others.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from simreduce.computing import group_by
from simreduce.report.drawing import (
    FAINT,
    WHITE,
    Area,
    Drawing,
    Line,
    Mark,
    Point,
    Rect,
    Shape,
    Text,
    along,
    dashes,
    overlap,
    polyline,
    shift,
    text_width,
)
from simreduce.report.pictures.scene import (
    WORDS,
    Bundle,
    Item,
    LinkPair,
    Scene,
    count_text,
    figures_text,
    node_text,
)
from simreduce.topology import Node, Topology
from simreduce.topology.importers.topo_m import figure_lines
from simreduce.topology.routing import GPU_LINKS

_USED = 0.72
"""The fraction of a box's edge on which lines may end."""


@dataclass(frozen=True, slots=True)
class BoxPlace:
    """The place of a box: its middle `x`, its upper edge `y`, its size; `row` 0 is uppermost.

    Lines go straight down to a `wide` box.
    """

    x: float
    width: float
    height: float
    row: int
    y: float = 0.0
    wide: bool = False

    @property
    def corners(self) -> tuple[float, float, float, float]:
        """Left, top, right, bottom."""
        return self.x - self.width / 2, self.y, self.x + self.width / 2, self.bottom

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y + self.height


def are_neighbours(places: Sequence[BoxPlace], a: int, b: int) -> bool:
    """Whether two boxes are neighbours in a row."""
    one, other = places[a], places[b]
    low, high = sorted((one.x, other.x))
    return one.row == other.row and not any(p.row == one.row and low < p.x < high for p in places)


def _reach(distance: float, *, below: bool) -> float:
    """The height of an arc over the boxes that it joins. Arcs above boxes are few, so flatter."""
    return min(14 + 0.19 * distance, 210.0) if below else min(14 + 0.09 * distance, 130.0)


def arc_room(
    places: Sequence[BoxPlace], bundles: Sequence[Bundle], row: int, *, below: bool
) -> float:
    """The height that the arcs of a row need. Arcs above join only boxes that are not adjacent."""
    spans = [
        abs(places[k.a].x - places[k.b].x)
        for k in bundles
        if places[k.a].row == places[k.b].row == row
        and (below or not are_neighbours(places, k.a, k.b))
    ]
    return _reach(max(spans), below=below) + 6 if spans else 0.0


def stack_rows(
    places: Sequence[BoxPlace], above: Callable[[int], float], below: Callable[[int], float]
) -> list[BoxPlace]:
    """The places in rows from top to bottom, with the room `above` and `below` each row."""
    y = 0.0
    tops: dict[int, float] = {}
    for row in sorted({place.row for place in places}):
        tops[row] = y + above(row)
        y = tops[row] + max(place.height for place in places if place.row == row) + below(row)
    return [replace(place, y=tops[place.row]) for place in places]


def line_points(
    places: Sequence[BoxPlace],
    bundles: Sequence[Bundle],
    *,
    below: frozenset[int],
    straight: bool = False,
) -> list[tuple[Point, ...]]:
    """The points of the line of every bundle.

    Arcs hang under the rows `below` and stand above the others. Lines across rows are `straight`,
    or curves that bend in the first gap and then go straight down.
    """
    courses = [_course(places, bundle, below) for bundle in bundles]
    ports = _ports(places, bundles, courses)
    gaps = _gaps(places)
    lanes: dict[tuple[int, int], int] = defaultdict(int)
    out: list[tuple[Point, ...]] = []
    for i, (bundle, course) in enumerate(zip(bundles, courses, strict=True)):
        a, b = places[bundle.a], places[bundle.b]
        if course == "beside":
            left, right = sorted((a, b), key=lambda place: place.x)
            pair = min(bundle.a, bundle.b), max(bundle.a, bundle.b)
            y = (max(a.y, b.y) + min(a.bottom, b.bottom)) / 2 + (0, 9, -9, 4, -4)[lanes[pair] % 5]
            lanes[pair] += 1
            out.append(((left.x + left.width / 2, y), (right.x - right.width / 2, y)))
            continue
        ax, bx = ports[i, bundle.a], ports[i, bundle.b]
        if course == "across":
            upper, lower, ux, lx = (a, b, ax, bx) if a.row < b.row else (b, a, bx, ax)
            if straight or abs(ux - lx) < 0.5:
                out.append(((ux, upper.bottom), (lx, lower.y)))
                continue
            bend = min(gaps.get(upper.row, lower.y), lower.y)
            half = (upper.bottom + bend) / 2
            curve = ((ux, upper.bottom), (ux, half), (lx, half), (lx, bend))
            out.append(
                curve if bend == lower.y else (*curve, (lx, bend), (lx, lower.y), (lx, lower.y))
            )
            continue
        hangs = course == "below"
        away = _reach(abs(a.x - b.x), below=hangs) * (4 if hangs else -4) / 3
        ay, by = (a.bottom, b.bottom) if hangs else (a.y, b.y)
        out.append(((ax, ay), (ax, ay + away), (bx, by + away), (bx, by)))
    return out


def _course(places: Sequence[BoxPlace], bundle: Bundle, below: frozenset[int]) -> str:
    """The course of a line: across, beside, above or below."""
    a, b = places[bundle.a], places[bundle.b]
    if a.row != b.row:
        return "across"
    if a.row in below:
        return "below"
    return "beside" if are_neighbours(places, bundle.a, bundle.b) else "above"


def _gaps(places: Sequence[BoxPlace]) -> Mapping[int, float]:
    """The upper edge of the next row of boxes, by row."""
    tops: dict[int, float] = {}
    for place in places:
        tops[place.row] = min(place.y, tops.get(place.row, place.y))
    return {row: tops[after] for row, after in itertools.pairwise(sorted(tops))}


def _ports(
    places: Sequence[BoxPlace], bundles: Sequence[Bundle], courses: Sequence[str]
) -> dict[tuple[int, int], float]:
    """The x at which each line ends, by (bundle, box).

    Ends are in the order of the other ends, so that few lines cross.
    """
    ends: dict[tuple[int, str], list[tuple[tuple[float, float], int]]] = defaultdict(list)
    for i, (bundle, course) in enumerate(zip(bundles, courses, strict=True)):
        for here, there in ((bundle.a, bundle.b), (bundle.b, bundle.a)):
            away = places[there].x - places[here].x
            if course in ("above", "below"):
                # Long arcs begin inside short ones of the same side, so that arcs of one box do not
                # cross.
                ends[here, course].append(((-1, -away) if away < 0 else (1, -away), i))
            elif course == "across":
                side = "below" if places[here].row < places[there].row else "above"
                ends[here, side].append(((0, places[there].x), i))
    ports: dict[tuple[int, int], float] = {}
    for (here, _), lines in ends.items():
        place = places[here]
        used = place.width * _USED
        for k, (_, i) in enumerate(sorted(lines)):
            ports[i, here] = place.x - used / 2 + used * (k + 0.5) / len(lines)
    for (here, _), lines in ends.items():
        place = places[here]
        half = place.width / 2 - 4
        others = [{bundles[i].a, bundles[i].b}.difference([here]).pop() for _, i in lines]
        # A line goes straight down to a wide box, unless some come from beside it: in a corner
        # they would meet.
        if place.wide and all(abs(places[there].x - place.x) <= half for there in others):
            for (_, i), there in zip(lines, others, strict=True):
                if not places[there].wide or place.row < places[there].row:
                    ports[i, here] = min(max(ports[i, there], place.x - half), place.x + half)
    return ports


FILLS = {
    "gpu": "#d5efe3",
    "cpu": "#fbe3d0",
    "pcie_switch": "#d6e6f5",
    "nvswitch": "#9fd8c0",
    "nic": "#fdf3c4",
    "switch": "#e4e4e4",
    "machine": "#f4f4f4",
}
_FAMILIES = (
    (GPU_LINKS, "#009e73"),
    (("pcie",), "#0072b2"),
    (("c2c",), "#cc79a7"),
    (("qpi", "upi", "xgmi", "grace_link"), "#d55e00"),
    (("cable",), "#56708a"),
)
_NETWORK = "#b07d00"
"""The colour of networks' links: darker than the palette's orange, to be seen on white."""

HEIGHT = 30.0
"""The height of a box with one line of text."""
_SECOND = 13.0
"""The height that a second line adds."""


def colour(link_class: str) -> str:
    """The colour of a link class, by its family."""
    return next((code for stems, code in _FAMILIES if link_class.startswith(stems)), _NETWORK)


def draw_line(
    points: tuple[Point, ...], link_class: str, bandwidth: float, classes: Sequence[str]
) -> Line:
    """The line of a link class. The width grows with the bytes/s, at first in proportion, below 11.

    The first class of a colour has no dashes, the next have others.
    """
    code, rate = colour(link_class), bandwidth / 1e9
    alike = [each for each in classes if colour(each) == code]
    width = 0.8 + 10 * rate / (rate + 100)
    return Line(points, code, width, dashes(alike.index(link_class)))


def box_size(item: Item) -> tuple[float, float]:
    """Width and height that the texts of an item need."""
    width = max(text_width(item.label, 11), text_width(item.note, 9))
    return max(46.0, width + 12), HEIGHT + (_SECOND if item.note else 0)


def draw_scene(
    scene: Scene,
    places: Sequence[BoxPlace],
    lines: Sequence[Sequence[Point]],
    classes: Sequence[str],
    margin: float = 8,
) -> Drawing:
    """The lines of a scene, their counts, and the boxes of its items on top, with a margin on the
    right.
    """
    marks = (
        *(_line(b, points, classes) for b, points in zip(scene.bundles, lines, strict=True)),
        *_counts(scene.bundles, lines, [place.corners for place in places]),
        *(_box(*each) for each in zip(scene.items, places, strict=True)),
    )
    width = max(place.corners[2] for place in places) + margin
    return Drawing(width, max(place.bottom for place in places), marks)


def _box(item: Item, place: BoxPlace) -> Mark:
    """The box of an item; a pile of boxes for several nodes or machines."""
    left, top, *_ = place.corners
    offsets = (4.0, 2.0, 0.0) if item.several else (0.0,)
    fill = FILLS[item.kind]
    shapes: list[Shape] = [
        Rect(left + d, top - d, place.width, place.height, fill) for d in offsets
    ]
    middle = top + place.height / 2 + (4 if not item.note else -2)
    shapes.append(Text(place.x, middle, item.label, 11, "middle"))
    if item.note:
        shapes.append(Text(place.x, middle + 13, item.note, 9, "middle", FAINT))
    memories = tuple(f"{node.name} memory" for node in item.nodes)
    return Mark(tuple(shapes), item.title, f"node {item.kind}", len(item.nodes), memories)


def _line(bundle: Bundle, points: Sequence[Point], classes: Sequence[str]) -> Mark:
    """The line of a bundle through the points of a `Line`."""
    shape = draw_line(tuple(points), bundle.link_class, bundle.bandwidth, classes)
    ways = [way for cable in bundle.cables for way in (cable.there, cable.back) if way]
    names = tuple(f"{way.name} {way.link_class}" for way in ways)
    return Mark((shape,), bundle.title, "link", len(bundle.cables), names)


def _counts(
    bundles: Sequence[Bundle],
    lines: Sequence[Sequence[Point]],
    boxes: Sequence[tuple[float, float, float, float]],
) -> Iterator[Mark]:
    """`x 32` on each line that stands for several links.

    A count covers no box (left, top, right, bottom), no other count and the fewest other lines.
    """
    paths = [polyline(points) for points in lines]
    marks = [[along(path, k / 40) for k in range(41)] for path in paths]
    taken = [(left - 1, top - 6, right + 6, bottom + 2) for left, top, right, bottom in boxes]
    for i, (bundle, path) in enumerate(zip(bundles, paths, strict=True)):
        if len(bundle.cables) < 2:
            continue
        text = f"x {len(bundle.cables):,}"
        half = text_width(text, 10) / 2 + 2
        free: list[tuple[int, int, Point, Area]] = []
        for rank, part in enumerate((0.5, 0.6, 0.4, 0.7, 0.3, 0.8, 0.2, 0.85, 0.15, 0.9, 0.1)):
            x, y = along(path, part)
            area = (x - half, y - 8, x + half, y + 8)
            if not any(overlap(area, other) for other in taken):
                others = (each for k, each in enumerate(marks) if k != i)
                crossed = sum(any(_inside(area, at) for at in each) for each in others)
                free.append((crossed, rank, (x, y), area))
        if free:
            *_, (x, y), area = min(free)
            taken.append(area)
            label = Text(x, y + 3.5, text, 10, "middle", FAINT)
            yield Mark((Rect(x - half, y - 7, 2 * half, 14, WHITE, "", 3), label))


def _inside(area: Area, at: Point) -> bool:
    return area[0] < at[0] < area[2] and area[1] < at[1] < area[3]


_MOST_ROWS, _MOST_NOTES = 24, 8
_ROW, _NOTE = 20.0, 15.0

Row = tuple[Shape, str]
"""A sample, 14 pixels high, and its meaning."""


def draw_key(topology: Topology, wires: Sequence[LinkPair], classes: Sequence[str]) -> Drawing:
    """The key: boxes on the left, lines on their right, notes below."""
    left = _column(_boxes(tuple(topology.nodes.values())), 30)
    right = _column([*_lines(wires, classes)], 44)
    aside = left.width + 30
    below = max(left.height, right.height) + 6
    notes = [
        (
            "Rates are per direction: what a large copy reaches, of the nominal rate where that "
            "differs; then the latency."
        ),
        "Wider lines carry more; a line for several (x n) is as wide as all of them.",
        *_shorten(
            [f"Besides their links, {line}." for line in figure_lines(topology)], _MOST_NOTES
        ),
    ]
    texts = [Text(0, below + _NOTE * k + 8, note, 10, fill=FAINT) for k, note in enumerate(notes)]
    width = max(aside + right.width, *(text_width(note, 10) for note in notes))
    shapes = (*left.shapes, *(shift(shape, aside, 0) for shape in right.shapes), *texts)
    return Drawing(width, below + _NOTE * len(notes), shapes)


def _column(rows: Sequence[Row], sample: float) -> Drawing:
    """Rows below each other; samples are `sample` pixels wide."""
    shapes: list[Shape] = []
    shown = rows[:_MOST_ROWS]
    for k, (shape, text) in enumerate(shown):
        shapes += [shift(shape, 0, k * _ROW), Text(sample + 10, k * _ROW + 11, text)]
    texts = [text for _, text in shown]
    if len(rows) > len(shown):
        texts.append(f"and {len(rows) - len(shown):,} more")
        shapes.append(Text(sample + 10, len(shown) * _ROW + 11, texts[-1]))
    width = max((text_width(text, 11) for text in texts), default=0.0)
    return Drawing(sample + 10 + width, len(texts) * _ROW, tuple(shapes))


def _boxes(nodes: Sequence[Node]) -> list[Row]:
    """A row for every kind and model, in the order of the kinds."""
    found = Counter((node.kind, node.model, node.memory_bandwidth) for node in nodes)
    order = list(WORDS)
    return [
        (Rect(0, 0, 30, 14, FILLS[look[0]]), f"{node_text(*look)} (x {count:,})")
        for look, count in sorted(found.items(), key=lambda e: (order.index(e[0][0]), e[0]))
    ]


def _lines(wires: Sequence[LinkPair], classes: Sequence[str]) -> Iterator[Row]:
    """A row for every kind of link, family by family, the widest first."""
    found = group_by(wires, lambda cable: cable.figures)
    for some in sorted(
        found.values(), key=lambda some: (colour(some[0].there.link_class), -some[0].bandwidth)
    ):
        cable = some[0]
        sample = draw_line(((0, 7), (44, 7)), cable.there.link_class, cable.bandwidth, classes)
        yield sample, f"{_figures_of_pair(cable)} ({count_text(len(some), 'link')})"


def _figures_of_pair(cable: LinkPair) -> str:
    if cable.back is None:
        return f"{figures_text(cable.there)}, one way"
    if len(cable.figures) == 1:
        return figures_text(cable.there)
    return f"{figures_text(cable.there)}; back {figures_text(cable.back)}"


def _shorten(lines: list[str], most: int) -> list[str]:
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], f"And {len(lines) - most + 1:,} more."]
