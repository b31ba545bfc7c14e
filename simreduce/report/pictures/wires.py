"""Lines between boxes that stand in rows: across rows, or along a row beside or round others."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from simreduce.report.drawing.shapes import Point
from simreduce.report.pictures.scene import Bundle

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
