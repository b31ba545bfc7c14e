"""Drawings of networks: the hosts at the bottom, the switches above them level by level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from simreduce.report.drawing.shapes import Drawing, Rect
from simreduce.report.pictures.blocks import Block, BoxTree, Detail, box_tree
from simreduce.report.pictures.scene import Item, LinkPair, Scene, make_scene
from simreduce.report.pictures.style import box_size, draw_scene
from simreduce.report.pictures.wires import BoxPlace, arc_room, line_points

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
    places = _stack_rows(seen, list(_place_boxes(whole_boxes, 0.0)))
    lines = line_points(places, seen.bundles, below=frozenset(), straight=True)
    width = max(place.corners[2] for place in places) + 6
    height = max(place.bottom for place in places)
    frames = [_frame(group, places) for group in _groups(whole_boxes)]
    return Drawing(width, height + _MARGIN, (*frames, *draw_scene(seen, places, lines, classes)))


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


def _stack_rows(seen: Scene, places: Sequence[BoxPlace]) -> list[BoxPlace]:
    y = 0.0
    tops: dict[int, float] = {}
    for row in sorted({place.row for place in places}):
        y += arc_room(places, seen.bundles, row, below=False)
        tops[row] = y
        y += max(place.height for place in places if place.row == row) + _ROW_GAP
        y += _CROSSING * min(_count_slanted(seen, places, row), _MOST_CROSSING)
    return [replace(place, y=tops[place.row]) for place in places]


def _count_slanted(seen: Scene, places: Sequence[BoxPlace], row: int) -> int:
    """Count the lines below a row that do not go straight down: they cross each other."""
    ends = [sorted((places[b.a], places[b.b]), key=lambda p: p.row) for b in seen.bundles]
    return sum(
        upper.row == row < lower.row and abs(upper.x - lower.x) > upper.width / 2
        for upper, lower in ends
    )
