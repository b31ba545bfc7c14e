"""Channels that fit into a node at one speed: Hamiltonian cycles and paths within capacities."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from simreduce.computing.arrays import Floats
from simreduce.planners.nccl.box import NVL
from simreduce.planners.nccl.nics import through_nics
from simreduce.planners.nccl.walks import SLACK, ChannelOrder, Task, take, walk

_MOST_LISTED = 5
"""GPUs up to which all cycles are listed where the walks may have missed some; chains up to 4."""
_NODES = 200
"""Nodes of the integer programme's tree: complete digraphs of 6 take long to rule out."""


def fill(task: Task, least: int, most: int) -> list[ChannelOrder]:
    """Channels that fit into the node together, as many as were found, `most` at most; none where
    fewer than `least` fit.
    """
    box, limits, several = task.box, task.limits, task.several
    if several:
        return through_nics(task, most)
    if len(box.gpus) == 1:
        return [ChannelOrder((0,), None, None, (), ())] * most
    if box.switched and limits.intra >= NVL:
        return _on_switch(task, most)
    return _inside(task, most) if _bound(task) >= least else []


def _on_switch(task: Task, most: int) -> list[ChannelOrder]:
    """Rings in the order of the GPUs; chains also start elsewhere, so that each port is used."""
    box, n = task.box, len(task.box.gpus)
    room = [int((min(box.nvlink) + SLACK) / task.speed)] * n
    if task.ring:
        return [_order(task, tuple(range(n)))] * min(room[0], most)
    # A chain spares one port in and one out; the same order first, as NCCL tries it.
    same = min(room[0], most)
    if same == most or n * room[0] < most * (n - 1):
        return [_order(task, tuple(range(n)))] * same
    starts = [i * n // most if most < n else i % n for i in range(most)]
    turned = [tuple((start + i) % n for i in range(n)) for start in starts]
    out = Counter(gpu for order in turned for gpu in order[:-1])
    into = Counter(gpu for order in turned for gpu in order[1:])
    if max((*out.values(), *into.values())) > room[0]:
        return [_order(task, tuple(range(n)))] * same
    return [_order(task, order) for order in turned]


def _order(task: Task, gpus: tuple[int, ...]) -> ChannelOrder:
    ends = (*gpus, gpus[0]) if task.ring else gpus
    paths = tuple(p for u, v in itertools.pairwise(ends) if (p := task.box.between(u, v)))
    return ChannelOrder(gpus, None, None, paths, ())


def _inside(task: Task, most: int) -> list[ChannelOrder]:
    """The same order again and again, then different ones; the more of the two."""
    found = _greedy(task, most)
    same = _same(task, found, most)
    found = same if len(same) >= len(found) else found
    if len(task.box.gpus) <= _MOST_LISTED - (not task.ring) and len(found) < min(
        most, _bound(task)
    ):
        listed = _list_orders(task, most)
        found = listed if len(listed) > len(found) else found
    return sorted(found, key=lambda order: _steps(task, order)) if task.ring else found


def _steps(task: Task, order: ChannelOrder) -> list[tuple[float, int, int]]:
    """NCCL's order of trying next GPUs: the widest path, the fewest links, the nearest number
    (`ncclTopoSearchNextGpuSort`, NVIDIA/nccl src/graph/search.cc).
    """
    n = len(task.box.gpus)
    hops = zip(order.paths, itertools.pairwise(order.gpus), strict=False)
    return [(-path.rate, path.hops, (v - u) % n) for path, (u, v) in hops]


def _bound(task: Task) -> int:
    """No more channels than this fit: each leaves every GPU, or all but one."""
    n = range(len(task.box.gpus))
    slots = [
        sum(int((path.rate + SLACK) / task.speed) for v in n if u != v and (path := task.hop(u, v)))
        for u in n
    ]
    return min(slots) if task.ring else sum(slots) // max(len(slots) - 1, 1)


def _same(task: Task, found: Sequence[ChannelOrder], most: int) -> list[ChannelOrder]:
    """The first order found, as often as it fits."""
    if not found:
        return []
    best = max(set(found), key=lambda order: (_times(task, order), [-g for g in order.gpus]))
    return [best] * min(_times(task, best), most)


def _load(task: Task, order: ChannelOrder) -> dict[int, float]:
    """GB/s that a channel takes of every arc."""
    total: dict[int, float] = {}
    for path in order.paths:
        for arc, load in task.load(path).items():
            total[arc] = total.get(arc, 0.0) + load
    return total


def _times(task: Task, order: ChannelOrder) -> int:
    rooms = (task.box.capacity[arc] / load for arc, load in _load(task, order).items())
    return int(min(rooms, default=0.0) + SLACK)


def _list_orders(task: Task, most: int) -> list[ChannelOrder]:
    """The largest multiset of all orders that fit, by integer programming."""
    orders = list(_all(task))
    if not orders:
        return []
    use = np.zeros((len(task.box.capacity), len(orders)))
    for column, order in enumerate(orders):
        for arc, load in _load(task, order).items():
            use[arc, column] = load
    used = use.any(axis=1)
    counts = _largest(use[used], np.array(task.box.capacity)[used] + SLACK, most)
    return [order for order, count in zip(orders, counts, strict=True) for _ in range(count)]


def _largest(use: Floats, room: Floats, most: int) -> list[int]:
    """Whole numbers x with use x <= room and the largest sum, `most` at most."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415 - a second to load

    columns = use.shape[1]
    # Of equal sums the one with fewer different orders: earlier orders weigh a little more.
    weight = -(1.0 - 1e-6 * np.arange(columns) / columns)
    rows = [LinearConstraint(use, ub=room), LinearConstraint(np.ones((1, columns)), ub=most)]
    found = milp(
        weight,
        constraints=rows,
        integrality=np.ones(columns),
        bounds=Bounds(0, most),
        options={"node_limit": _NODES},
    )
    return [round(x) for x in found.x] if found.x is not None else [0] * columns


def _all(task: Task) -> Iterator[ChannelOrder]:
    """Every order whose paths alone fit; cycles begin at GPU 0."""
    n = len(task.box.gpus)
    starts = (0,) if task.ring else range(n)
    for start in starts:
        others = [gpu for gpu in range(n) if gpu != start]
        for rest in itertools.permutations(others):
            gpus = (start, *rest)
            ends = (*gpus, start) if task.ring else gpus
            if all(task.hop(u, v) for u, v in itertools.pairwise(ends)):
                order = _order(task, gpus)
                if _times(task, order):
                    yield order


def _greedy(task: Task, most: int) -> list[ChannelOrder]:
    """Orders over what is left, the widest hops first; several ways to begin are tried. As NCCL,
    it tries the last order again first; where that finds fewer, each order counts once.
    """
    best: list[ChannelOrder] = []
    for again, turn in itertools.product((most, 1), range(4)):
        left = list(task.box.capacity)
        found: list[ChannelOrder] = []
        while len(found) < most:
            start = 0 if task.ring else (len(found) * (turn + 1)) % len(task.box.gpus)
            gpus = walk(task, left, start, None, turn)
            if gpus is None:
                break
            order = _order(task, gpus)
            for _ in range(min(again, most - len(found))):
                if not take(left, _load(task, order)):
                    break
                found.append(order)
        if len(found) > len(best):
            best = found
    return best
