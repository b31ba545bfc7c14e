"""Channels that fit into a node at one speed: Hamiltonian cycles and paths within capacities."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simreduce.arrays import Floats
from simreduce.nccl.box import LOC, NVL, P2C, PHB, PXB, PXN, Box, Path

if TYPE_CHECKING:
    from simreduce.nccl.search import Limits

_STEPS = 4_000
"""Steps of a walk through orders before it gives up."""
_MOST_LISTED = 5
"""GPUs up to which all cycles are listed where the walks may have missed some; chains up to 4."""
_NODES = 200
"""Nodes of the integer programme's tree: complete digraphs of 6 take long to rule out."""
_SLACK = 1e-6
_HOST_COST = 1.2
"""What copies between GPUs through an Intel host bridge take of PCIe, per byte."""


@dataclass(frozen=True, slots=True)
class Order:
    """A channel found, with the paths inside the node and those to and from NICs."""

    gpus: tuple[int, ...]
    net_in: str | None
    net_out: str | None
    paths: tuple[Path, ...]
    outer: tuple[Path, ...]


@dataclass(frozen=True)
class Task:
    """What to fill a node with."""

    box: Box
    speed: float
    ring: bool
    limits: Limits
    several: bool
    intel: bool

    def load(self, path: Path, *, between: bool = True) -> dict[int, float]:
        """GB/s that a channel takes of every arc of a path."""
        dear = self.intel and between and path.kind == PHB
        cost = self.speed * (_HOST_COST if dear else 1.0)
        return {arc: times * cost for arc, times in Counter(path.arcs).items()}

    def hop(self, u: int, v: int) -> Path | None:
        """The path from a GPU to the next, if its class is allowed."""
        path = self.box.between[u][v]
        return path if path and path.kind <= self.limits.intra else None


def fill(task: Task, least: int, most: int) -> list[Order]:
    """Channels that fit into the node together, as many as were found, `most` at most; none where
    fewer than `least` fit.
    """
    box, limits, several = task.box, task.limits, task.several
    if several:
        return _through_nics(task, most)
    if len(box.gpus) == 1:
        return [Order((0,), None, None, (), ())] * most
    if box.switched and limits.intra >= NVL:
        return _on_switch(task, most)
    return _inside(task, most) if _bound(task) >= least else []


def _on_switch(task: Task, most: int) -> list[Order]:
    """Rings in the order of the GPUs; chains also start elsewhere, so that each port is used."""
    box, n = task.box, len(task.box.gpus)
    room = [int((min(box.nvlink) + _SLACK) / task.speed)] * n
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


def _order(
    task: Task, gpus: tuple[int, ...], net_in: str | None = None, net_out: str | None = None,
    outer: tuple[Path, ...] = (),
) -> Order:  # fmt: skip
    ends = (*gpus, gpus[0]) if task.ring and not task.several and len(gpus) > 1 else gpus
    paths = tuple(p for u, v in itertools.pairwise(ends) if (p := task.box.between[u][v]))
    return Order(gpus, net_in, net_out, paths, outer)


def _inside(task: Task, most: int) -> list[Order]:
    """The same order again and again, then different ones; the more of the two."""
    found = _greedy(task, most)
    same = _same(task, found, most)
    found = same if len(same) >= len(found) else found
    if len(task.box.gpus) <= _MOST_LISTED - (not task.ring) and len(found) < min(
        most, _bound(task)
    ):
        listed = _listed(task, most)
        found = listed if len(listed) > len(found) else found
    return found


def _bound(task: Task) -> int:
    """No more channels than this fit: each leaves every GPU, or all but one."""
    n = range(len(task.box.gpus))
    slots = [
        sum(
            int((path.rate + _SLACK) / task.speed) for v in n if u != v and (path := task.hop(u, v))
        )
        for u in n
    ]
    return min(slots) if task.ring else sum(slots) // max(len(slots) - 1, 1)


def _same(task: Task, found: Sequence[Order], most: int) -> list[Order]:
    """The first order found, as often as it fits."""
    if not found:
        return []
    best = max(set(found), key=lambda order: (_times(task, order), [-g for g in order.gpus]))
    return [best] * min(_times(task, best), most)


def _times(task: Task, order: Order) -> int:
    total: dict[int, float] = {}
    for path in order.paths:
        for arc, load in task.load(path).items():
            total[arc] = total.get(arc, 0.0) + load
    rooms = (task.box.capacity[arc] / load for arc, load in total.items())
    return int(min(rooms, default=0.0) + _SLACK)


def _listed(task: Task, most: int) -> list[Order]:
    """The largest multiset of all orders that fit, by integer programming."""
    orders = list(_all(task))
    if not orders:
        return []
    use = np.zeros((len(task.box.capacity), len(orders)))
    for column, order in enumerate(orders):
        for path in order.paths:
            for arc, load in task.load(path).items():
                use[arc, column] += load
    used = use.any(axis=1)
    counts = _largest(use[used], np.array(task.box.capacity)[used] + _SLACK, most)
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


def _all(task: Task) -> Iterator[Order]:
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


def _greedy(task: Task, most: int) -> list[Order]:
    """Orders over what is left, the widest hops first; several ways to begin are tried."""
    best: list[Order] = []
    for turn in range(4):
        left = list(task.box.capacity)
        found: list[Order] = []
        while len(found) < most:
            start = 0 if task.ring else (len(found) * (turn + 1)) % len(task.box.gpus)
            gpus = walk(task, left, start, None, turn)
            if gpus is None:
                break
            order = _order(task, gpus)
            for path in order.paths:
                take(left, task.load(path))
            found.append(order)
        if len(found) > len(best):
            best = found
    return best


def take(left: list[float], load: dict[int, float], sign: int = 1) -> bool:
    """Take a load of what is left; False, and nothing taken, if it does not fit."""
    if sign > 0 and any(left[arc] < need - _SLACK for arc, need in load.items()):
        return False
    for arc, need in load.items():
        left[arc] -= sign * need
    return True


def walk(
    task: Task, left: list[float], start: int, end: int | None, turn: int = 0
) -> tuple[int, ...] | None:
    """A Hamiltonian path from `start` on what is left, home again for a ring of one node. `end` is
    the last GPU of a ring that leaves the node, or the second of a tree. `left` does not change.
    """
    n, steps = len(task.box.gpus), 0
    gpus, taken = [start], [dict[int, float]()]
    room = list(left)

    def nexts(u: int) -> list[int]:
        found = []
        for v in range(n):
            path = task.hop(u, v) if v not in gpus else None
            second = not task.ring and end is not None and len(gpus) == 1
            if path and (v == end or not second):
                free = min((room[arc] for arc in path.arcs), default=0.0)
                if free >= task.speed - _SLACK:
                    nearest = (v - u) % n if turn % 2 == 0 else (u - v) % n
                    found.append(((path.kind, -free if turn < 2 else free, path.hops, nearest), v))
        return [v for _, v in sorted(found, reverse=True)]

    def home() -> bool:
        if not task.ring or task.several:
            return not task.ring or end is None or gpus[-1] == end
        path = task.hop(gpus[-1], start)
        return path is not None and all(
            room[arc] >= need - _SLACK for arc, need in task.load(path).items()
        )

    stack = [nexts(start)]
    while stack and steps < _STEPS:
        steps += 1
        if len(gpus) == n and home():
            return tuple(gpus)
        if stack[-1] and len(gpus) < n:
            v = stack[-1].pop()
            path = task.hop(gpus[-1], v)
            load = task.load(path) if path else {}
            if take(room, load):
                gpus.append(v)
                taken.append(load)
                stack.append(nexts(v))
        else:
            stack.pop()
            gpus.pop()
            take(room, taken.pop(), -1)
    return None


def _through_nics(task: Task, most: int) -> list[Order]:
    """Channels that come in by a NIC and leave by the same one, unless others are allowed; each
    takes the NIC that has served the fewest.
    """
    nics = range(len(task.box.nics))
    left = list(task.box.capacity)
    found: list[Order] = []
    served = [0] * len(task.box.nics)
    while len(found) < most:
        for k in sorted(nics, key=lambda k: (served[k], k)):
            order = _by_nic(task, left, k)
            if order:
                served[k] += 1
                found.append(order)
                break
        else:
            break
    return found


def _by_nic(task: Task, left: list[float], k: int) -> Order | None:
    """One more channel over a NIC; what it takes is taken from `left`."""
    box = task.box
    into = [(p.kind, -p.rate, u) for u in range(len(box.gpus)) if (p := box.from_nic[k][u])]
    for kind, _, start in sorted(into):
        inward = box.from_nic[k][start]
        if kind > task.limits.inter or inward is None:
            break
        entry = task.load(inward, between=False)
        if not take(left, entry):
            continue
        for gpus, outward, out in _ways(task, left, k, start):
            paths = [p for u, v in itertools.pairwise(gpus) if (p := task.hop(u, v))]
            loads = [*map(task.load, paths), task.load(outward, between=False)]
            taken = list(itertools.takewhile(lambda load: take(left, load), loads))
            if len(taken) == len(loads):
                names = box.nics[k].name, box.nics[out].name
                return Order(gpus, *names, tuple(paths), (inward, outward))
            for load in taken:
                take(left, load, -1)
        take(left, entry, -1)
    return None


def _ways(
    task: Task, left: list[float], k: int, start: int
) -> Iterator[tuple[tuple[int, ...], Path, int]]:
    """Orders from `start`, each with its way out and its NIC: the same NIC first, near GPUs first.
    Rings leave by the last GPU, trees by the second or, plain, by the first.
    """
    n = len(task.box.gpus)
    options: list[tuple[tuple[bool, int, float, int], int, int, Path]] = []
    alone = n == 1 or task.limits.plain
    for out in range(len(task.box.nics)) if task.limits.cross else (k,):
        for end in (start,) if alone else range(n):
            path = exit_path(task, end, out)
            if path and path.kind <= task.limits.inter and (alone or end != start):
                # On a switch a tree goes up in number, a ring ends at the GPU before the first.
                far = (end - start) % n if not task.ring else (start - end) % n
                options.append(((out != k, path.kind, -path.rate, far), end, out, path))
    for _, end, out, path in sorted(options, key=lambda option: option[0]):
        gpus = _any_order(task, left, start, None if alone else end)
        if gpus:
            yield gpus, path, out


def _any_order(
    task: Task, left: list[float], start: int, end: int | None
) -> tuple[int, ...] | None:
    """An order of all GPUs from `start`; `end` is a ring's last, or a tree's second."""
    n = len(task.box.gpus)
    if n == 1:
        return (0,)
    if not task.box.switched:
        return walk(task, left, start, end)
    gpus = [(start + i) % n for i in range(n)]
    if end is not None:
        gpus.remove(end)
        gpus.insert(n if task.ring else 1, end)
    return tuple(gpus)


def exit_path(task: Task, gpu: int, k: int) -> Path | None:
    """The way from a GPU to a NIC: its own, or over NVLink through a GPU near the NIC (PXN)."""
    own = task.box.to_nic[gpu][k]
    if (own and own.kind <= PXB) or task.limits.inter < PXN:
        return own
    farthest = P2C if task.limits.pxn_c2c else PXB
    best = None
    for peer, row in enumerate(task.box.to_nic):
        first, last = task.box.between[gpu][peer], row[k]
        near = last is not None and last.kind <= farthest
        if peer != gpu and near and last and first and LOC < first.kind <= NVL:
            path = Path(
                PXN, (*first.arcs, *last.arcs), min(first.rate, last.rate), first.hops + last.hops
            )
            if best is None or path.rate > best.rate:
                best = path
    return best if best and (own is None or best.kind < own.kind) else own
