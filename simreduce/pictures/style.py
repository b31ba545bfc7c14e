"""Colours, widths and boxes. The colours are those of Okabe and Ito, told apart by colour-blind
eyes too; kinds of boxes differ in their names and links in their width, so that a print in grey can
be read as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.pictures.scene import Bundle, Item
from simreduce.pictures.shapes import (
    FAINT,
    WHITE,
    Group,
    Line,
    Point,
    Rect,
    Shape,
    Text,
    along,
    polyline,
    text_width,
)

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
    (("nvlink",), "#009e73"),
    (("pcie",), "#0072b2"),
    (("c2c",), "#cc79a7"),
    (("qpi", "upi", "xgmi", "grace_link"), "#d55e00"),
    (("cable",), "#56708a"),
)
_NETWORK = "#b07d00"
"""Of all other classes, which are those of networks: darker than the orange of the table, to be
seen on white.
"""

HEIGHT = 30.0
"""Of a box with one line of text."""
_SECOND = 13.0
"""What a second line adds."""


def colour(link_class: str) -> str:
    """By the family of the class."""
    for stems, code in _FAMILIES:
        if link_class.startswith(stems):
            return code
    return _NETWORK


def dashes(link_class: str, classes: Sequence[str]) -> tuple[float, ...]:
    """None for the first class of a colour in the machine, others for the next: pcie5_x16 and
    pcie4_x16 differ.
    """
    alike = [each for each in classes if colour(each) == colour(link_class)]
    return ((), (7.0, 3.0), (2.5, 2.5), (9.0, 3.0, 2.0, 3.0))[min(alike.index(link_class), 3)]


def stroke(bandwidth: float) -> float:
    """Pixels of a line of so many bytes/s: always more for more, in proportion at first, and never
    11 or more.
    """
    rate = bandwidth / 1e9
    return 0.8 + 10 * rate / (rate + 100)


def box_size(item: Item) -> tuple[float, float]:
    """Width and height that the texts of an item need."""
    width = max(text_width(item.label, 11), text_width(item.note, 9))
    return max(46.0, width + 12), HEIGHT + (_SECOND if item.note else 0)


def box(item: Item, centre: float, top: float, width: float, height: float) -> Group:
    """The box of an item; a stack of boxes for several nodes or machines."""
    fill = FILLS[item.kind]
    left = centre - width / 2
    shapes: list[Shape] = []
    if item.several:
        shapes += [Rect(left + d, top - d, width, height, fill) for d in (4.0, 2.0)]
    shapes.append(Rect(left, top, width, height, fill))
    middle = top + height / 2 + (4 if not item.note else -2)
    shapes.append(Text(centre, middle, item.label, 11, "middle"))
    if item.note:
        shapes.append(Text(centre, middle + 13, item.note, 9, "middle", FAINT))
    return Group(tuple(shapes), item.title, f"node {item.kind}", len(item.nodes))


def line(bundle: Bundle, points: Sequence[Point], classes: Sequence[str]) -> Group:
    """The line of a bundle through the points of a `Line`."""
    link_class = bundle.link_class
    shape = Line(
        tuple(points), colour(link_class), stroke(bundle.bandwidth), dashes(link_class, classes)
    )
    return Group((shape,), bundle.title, "link", len(bundle.cables))


def counts(
    bundles: Sequence[Bundle],
    lines: Sequence[Sequence[Point]],
    boxes: Sequence[tuple[float, float, float, float]],
) -> list[Group]:
    """`x 32` on each line that stands for several, where it covers no box (left, top, right,
    bottom), no other count and the fewest other lines.
    """
    paths = [polyline(points) for points in lines]
    marks = [[along(path, k / 40) for k in range(41)] for path in paths]
    taken = [(left - 1, top - 6, right + 6, bottom + 2) for left, top, right, bottom in boxes]
    found: list[Group] = []
    for i, (bundle, path) in enumerate(zip(bundles, paths, strict=True)):
        if len(bundle.cables) < 2:
            continue
        text = f"x {len(bundle.cables):,}"
        half = text_width(text, 10) / 2 + 2
        free: list[tuple[int, int, Point]] = []
        for rank, part in enumerate((0.5, 0.6, 0.4, 0.7, 0.3, 0.8, 0.2, 0.85, 0.15, 0.9, 0.1)):
            x, y = along(path, part)
            area = (x - half, y - 8, x + half, y + 8)
            if not any(_overlap(area, other) for other in taken):
                others = (each for k, each in enumerate(marks) if k != i)
                crossed = sum(any(_inside(area, at) for at in each) for each in others)
                free.append((crossed, rank, (x, y)))
        if free:
            _, _, (x, y) = min(free)
            taken.append((x - half, y - 8, x + half, y + 8))
            label = Text(x, y + 3.5, text, 10, "middle", FAINT)
            found.append(Group((Rect(x - half, y - 7, 2 * half, 14, WHITE, "", 3), label)))
    return found


_Area = tuple[float, float, float, float]


def _overlap(one: _Area, other: _Area) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _inside(area: _Area, at: Point) -> bool:
    return area[0] < at[0] < area[2] and area[1] < at[1] < area[3]
