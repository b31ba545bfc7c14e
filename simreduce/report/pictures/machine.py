"""Drawings of one machine.

Sockets stand on top, then the PCIe tree down to GPUs and NICs, then NVLinks and NVSwitches.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from simreduce.computing import group_by
from simreduce.report.drawing import Drawing
from simreduce.report.pictures.scene import Item, LinkPair, Scene, count_text, make_scene
from simreduce.report.pictures.style import (
    BoxPlace,
    arc_room,
    box_size,
    draw_scene,
    line_points,
    stack_rows,
)
from simreduce.topology import Node, natural

MOST = 16
"""Most boxes of a kind; of more nodes, the first ones and the last have boxes."""
_ARCS, _WIDE_ARCS = 60, 16
"""Most arcs between the GPUs of a row: of single links, and where some stand for several."""
_WORTH = 0.15
"""The fraction by which NVLinks must become shorter for an order other than by name."""
_GAP, _ROW_GAP = 12.0, 44.0


def draw_machine(
    nodes: Sequence[Node], wires: Sequence[LinkPair], classes: Sequence[str], prefix: str = ""
) -> Drawing:
    """The drawing of the machine made of `nodes`; labels leave out `prefix`."""
    view = _choose_scene(nodes, wires, prefix)
    places = _place_items(view, _rows(view))
    devices = frozenset(
        place.row for place, item in zip(places, view.items, strict=True) if item.kind == "gpu"
    )
    lines = line_points(places, view.bundles, below=devices)
    drawn = draw_scene(view, places, lines, classes, margin=6)
    return replace(
        drawn, height=max(place.bottom + _under(places, view, place.row) for place in places)
    )


def _choose_scene(nodes: Sequence[Node], wires: Sequence[LinkPair], prefix: str) -> Scene:
    """The scene with as many nodes of each kind as stay readable."""
    for most in (MOST, 12, 10, 8, 6, 5):
        view = make_scene(wires, [*_items(nodes, most, prefix)])
        gpus = {i for i, item in enumerate(view.items) if item.kind == "gpu"}
        arcs = [k for k in view.bundles if k.a in gpus and k.b in gpus]
        if len(arcs) <= (_ARCS if all(len(k.cables) == 1 for k in arcs) else _WIDE_ARCS):
            break
    outside = {i: [name.removeprefix(prefix) for name in far] for i, far in view.outside.items()}
    items = [_annotate(item, outside.get(i, ())) for i, item in enumerate(view.items)]
    return replace(view, items=tuple(items))


def _items(nodes: Sequence[Node], most: int, prefix: str) -> Iterator[Item]:
    by_name = sorted(nodes, key=lambda node: natural(node.name))
    for kind, alike in group_by(by_name, lambda node: node.kind).items():
        shown = len(alike) if len(alike) <= most else most - 2
        yield from (Item(n.name.removeprefix(prefix), kind, (n,)) for n in alike[:shown])
        if shown < len(alike):
            hidden = tuple(alike[shown:-1])
            yield Item(f"{len(hidden):,} more", kind, hidden, several=True)
            yield Item(alike[-1].name.removeprefix(prefix), kind, (alike[-1],))


def _annotate(item: Item, far: Sequence[str]) -> Item:
    """The item with a note on its links to the outside and inside."""
    ends = far[0] if len(far) == 1 else count_text(len(far), "switch", "switches")
    notes = [f"to {ends}"] if far else []
    if item.inner:
        notes.append(f"{count_text(item.inner, 'link')} among them")
    return replace(item, note=", ".join(notes))


@dataclass(frozen=True, slots=True)
class _Rows:
    """The row of every item and the forest of PCIe trees; `bottom` are the NVSwitches."""

    row: dict[int, int]
    children: dict[int, list[int]]
    roots: list[int]
    bottom: list[int]


def _rows(view: Scene) -> _Rows:
    """Sockets in row 0, PCIe switches by their depth, devices below them, NVSwitches last."""
    kind = [item.kind for item in view.items]
    depth, children = _forest(view)
    level = max(depth.values(), default=-1) + 1
    row = {i: depth.get(i, level + (each == "nvswitch")) for i, each in enumerate(kind)}
    below = {i for each in children.values() for i in each}
    bottom = [i for i, each in enumerate(kind) if each == "nvswitch"]
    roots = [i for i in range(len(kind)) if i not in below and i not in bottom]
    for brothers in (roots, *children.values()):
        # By name; NICs, which have no NVLinks, after the GPUs, and sockets before what hangs on
        # none.
        brothers.sort(
            key=lambda i: (kind[i] != "cpu", kind[i] == "nic", natural(view.items[i].nodes[0].name))
        )
    found = _Rows(row, children, roots, bottom)
    _bring_near(view, found)
    return found


def _forest(view: Scene) -> tuple[dict[int, int], dict[int, list[int]]]:
    """The PCIe tree below every socket: depths of sockets and switches, and children of each.

    An item with several links hangs on the end nearest to a socket, then on the widest link.
    """
    kind = [item.kind for item in view.items]
    near: dict[int, list[int]] = defaultdict(list)
    for bundle in sorted(view.bundles, key=lambda bundle: -bundle.cables[0].bandwidth):
        near[bundle.a].append(bundle.b)
        near[bundle.b].append(bundle.a)
    depth = {i: 0 for i, each in enumerate(kind) if each == "cpu"}
    seen = {i for i, each in enumerate(kind) if each in ("cpu", "nvswitch")}
    children: dict[int, list[int]] = defaultdict(list)
    queue = list(depth)
    # PCIe switches that hang on no socket are roots of their own.
    for root in [None, *(i for i, each in enumerate(kind) if each == "pcie_switch")]:
        if root is not None and root not in seen:
            seen.add(root)
            depth[root] = 1
            queue.append(root)
        for parent in queue:
            for child in near[parent]:
                if child not in seen:
                    seen.add(child)
                    children[parent].append(child)
                    if kind[child] == "pcie_switch":
                        depth[child] = depth[parent] + 1
                        queue.append(child)
        queue = []
    return depth, children


def _bring_near(view: Scene, rows: _Rows) -> None:
    """Reorder siblings of the forest while that brings GPUs nearer to their NVLink neighbours.

    The order by name stays unless the links become shorter by the fraction `_WORTH`.
    """
    gpus = {i for i, item in enumerate(view.items) if item.kind == "gpu"}
    arcs = [(k.a, k.b, k.bandwidth) for k in view.bundles if k.a in gpus and k.b in gpus]
    brothers = [each for each in (rows.roots, *rows.children.values()) if len(each) > 1]

    def length() -> float:
        """The bytes/s of all links times how many GPUs apart their ends are."""
        place = {i: k for k, i in enumerate(i for i in _leaves(rows, rows.roots) if i in gpus)}
        return sum(rate * abs(place[a] - place[b]) for a, b, rate in arcs)

    by_name, names = length(), [list(each) for each in brothers]
    best, better = by_name, bool(arcs)
    while better:
        better = False
        for each in brothers:
            for order in _variants(tuple(each)):
                before, each[:] = list(each), order
                now = length()
                if now < best * (1 - 1e-9):
                    best, better = now, True
                else:
                    each[:] = before
    if best > (1 - _WORTH) * by_name:
        for each, order in zip(brothers, names, strict=True):
            each[:] = order


def _variants(row: tuple[int, ...]) -> Iterator[list[int]]:
    """Orders that reverse a part of a row, or move one item elsewhere."""
    for i, j in itertools.combinations(range(len(row)), 2):
        yield [*row[:i], *row[i : j + 1][::-1], *row[j + 1 :]]
        yield [*row[:i], *row[i + 1 : j + 1], row[i], *row[j + 1 :]]
        yield [*row[:i], row[j], *row[i:j], *row[j + 1 :]]


def _leaves(rows: _Rows, trees: Sequence[int]) -> Iterator[int]:
    """The leaves of the forest from left to right."""
    for i in trees:
        below = rows.children.get(i)
        if below:
            yield from _leaves(rows, below)
        else:
            yield i


def _place_items(view: Scene, rows: _Rows) -> list[BoxPlace]:
    sizes = [box_size(item) for item in view.items]
    x: dict[int, float] = {}

    def span(i: int) -> float:
        """The width that an item and all below it need."""
        return max(sizes[i][0] + _GAP, sum(span(child) for child in rows.children.get(i, ())))

    def settle(i: int, left: float) -> None:
        """Give an item the middle of its span, and those below it their parts."""
        x[i] = left + span(i) / 2
        inner = left + (span(i) - sum(span(child) for child in rows.children.get(i, ()))) / 2
        for child in rows.children.get(i, ()):
            settle(child, inner)
            inner += span(child)

    left = 0.0
    for root in rows.roots:
        settle(root, left)
        # Families of different sockets stand apart.
        left += span(root) + (10.0 if rows.children.get(root) else 0.0)
    places = {i: BoxPlace(x[i], *sizes[i], rows.row[i]) for i in x}
    places |= _place_switches(view, rows, places, sizes, left)
    flat = [places[i] for i in range(len(view.items))]
    first = min(place.row for place in flat)
    devices = {rows.row[i] for i, item in enumerate(view.items) if item.kind in ("gpu", "nic")}

    def above(row: int) -> float:
        arcs = 0.0 if row in devices else arc_room(flat, view.bundles, row, below=False)
        return arcs + (_ROW_GAP if row > first else 0.0)

    return stack_rows(flat, above, lambda row: _under(flat, view, row))


def _place_switches(
    view: Scene,
    rows: _Rows,
    places: dict[int, BoxPlace],
    sizes: Sequence[tuple[float, float]],
    width: float,
) -> dict[int, BoxPlace]:
    """Places of NVSwitches: each below its GPUs if these do not overlap, else side by side."""
    ends: dict[int, list[float]] = {i: [] for i in rows.bottom}
    for bundle in view.bundles:
        for switch, other in ((bundle.a, bundle.b), (bundle.b, bundle.a)):
            if switch in ends and other in places:
                half = places[other].width / 2
                ends[switch] += [places[other].x - half, places[other].x + half]
    spans = sorted((min(e), max(e), i) for i, e in ends.items() if e)
    row = max((rows.row[i] for i in rows.bottom), default=0)
    apart = all(one[1] < other[0] for one, other in itertools.pairwise(spans))
    if len(spans) == len(rows.bottom) and apart:
        return {
            i: BoxPlace((low + high) / 2, max(high - low, sizes[i][0]), sizes[i][1], row, wide=True)
            for low, high, i in spans
        }
    share = max(1.0, width / sum(sizes[i][0] + 2 * _GAP for i in rows.bottom))
    slots = [(sizes[i][0] + 2 * _GAP) * share for i in rows.bottom]
    return {
        i: BoxPlace(end - slot / 2, *sizes[i], row)
        for i, slot, end in zip(rows.bottom, slots, itertools.accumulate(slots), strict=True)
    }


def _under(places: Sequence[BoxPlace], view: Scene, row: int) -> float:
    """The room for the arcs that hang under a row of devices."""
    if not any(view.items[i].kind == "gpu" and place.row == row for i, place in enumerate(places)):
        return 0.0
    return arc_room(places, view.bundles, row, below=True)
