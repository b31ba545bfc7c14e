"""Colours, widths, lines and boxes.

Colour-blind readers can distinguish the colours, which are those of Okabe and Ito. A print in grey
stays readable: boxes differ in their names, and links in their widths.

The key of a picture: kinds of boxes and lines, with figures, units and counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from simreduce import units
from simreduce.report.drawing.shapes import (
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
)
from simreduce.report.pictures.wires import BoxPlace
from simreduce.topology import Node, Topology
from simreduce.topology.elements import group_by
from simreduce.topology.matrix import figure_lines
from simreduce.topology.routing.staging import GPU_LINKS

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
    for stems, code in _FAMILIES:
        if link_class.startswith(stems):
            return code
    return _NETWORK


def draw_line(
    points: tuple[Point, ...], link_class: str, bandwidth: float, classes: Sequence[str]
) -> Line:
    """The line of a link class. The width grows with the bytes/s, at first in proportion, below 11.

    The first class of a colour has no dashes, the next have others.
    """
    code, rate = colour(link_class), bandwidth / 1e9
    alike = [each for each in classes if colour(each) == code]
    dashes = ((), (7.0, 3.0), (2.5, 2.5), (9.0, 3.0, 2.0, 3.0))[min(alike.index(link_class), 3)]
    return Line(points, code, 0.8 + 10 * rate / (rate + 100), dashes)


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
    marks = [_line(b, points, classes) for b, points in zip(scene.bundles, lines, strict=True)]
    marks += _counts(scene.bundles, lines, [place.corners for place in places])
    marks += [_box(*each) for each in zip(scene.items, places, strict=True)]
    width = max(place.corners[2] for place in places) + margin
    return Drawing(width, max(place.bottom for place in places), tuple(marks))


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
) -> list[Mark]:
    """`x 32` on each line that stands for several links.

    A count covers no box (left, top, right, bottom), no other count and the fewest other lines.
    """
    paths = [polyline(points) for points in lines]
    marks = [[along(path, k / 40) for k in range(41)] for path in paths]
    taken = [(left - 1, top - 6, right + 6, bottom + 2) for left, top, right, bottom in boxes]
    found: list[Mark] = []
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
            found.append(Mark((Rect(x - half, y - 7, 2 * half, 14, WHITE, "", 3), label)))
    return found


def _inside(area: Area, at: Point) -> bool:
    return area[0] < at[0] < area[2] and area[1] < at[1] < area[3]


_MOST_ROWS, _MOST_NOTES = 24, 8
_ROW, _NOTE = 20.0, 15.0

Row = tuple[Shape, str]
"""A sample, 14 pixels high, and its meaning."""


def draw_key(topology: Topology, wires: Sequence[LinkPair], classes: Sequence[str]) -> Drawing:
    """The key: boxes on the left, lines on their right, notes below."""
    left = _column(_boxes(tuple(topology.nodes.values())), 30)
    right = _column(_lines(wires, classes), 44)
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
    rows: list[Row] = []
    for (kind, model, memory), count in sorted(
        found.items(), key=lambda e: (order.index(e[0][0]), e[0])
    ):
        words = f"{WORDS[kind]} {model}".strip()
        if math.isfinite(memory):
            words += f", memory {units.format_bandwidth(memory)}"
        rows.append((Rect(0, 0, 30, 14, FILLS[kind]), f"{words} (x {count:,})"))
    return rows


def _lines(wires: Sequence[LinkPair], classes: Sequence[str]) -> list[Row]:
    """A row for every kind of link, family by family, the widest first."""
    found = group_by(wires, lambda cable: cable.figures)
    rows: list[Row] = []
    for some in sorted(
        found.values(), key=lambda some: (colour(some[0].there.link_class), -some[0].bandwidth)
    ):
        cable = some[0]
        sample = draw_line(((0, 7), (44, 7)), cable.there.link_class, cable.bandwidth, classes)
        rows.append((sample, f"{_figures_of_pair(cable)} ({count_text(len(some), 'link')})"))
    return rows


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
