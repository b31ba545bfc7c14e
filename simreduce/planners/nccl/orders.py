"""Channels that fit into a node at one speed: Hamiltonian cycles and paths within capacities.

Walks through all GPUs of a node on what its channels leave of the capacities.

Channels that come into a node by a NIC and leave it by one.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from simreduce.computing.arrays import Floats
from simreduce.planners.nccl.communicator import LOC, NVL, P2C, PHB, PXB, PXN, Box, BoxPath

_STEPS = 200
"""Steps of a walk through orders before it gives up."""
_FAILURES = 8
"""Walks of one task that may fail before all others do."""
SLACK = 1e-6
_HOST_COST = 1.2
"""Bytes of PCIe that a byte copied between GPUs through an Intel host bridge takes."""


@dataclass(frozen=True, slots=True)
class PathLimits:
    """The limits of a search: the paths that it may use.

    They are classes of paths inside the node and to NICs, other NICs out, and trees that leave the
    node where they came in instead of at the second GPU (`plain`).
    """

    intra: int
    inter: int
    cross: bool
    plain: bool = False
    pxn_c2c: bool = False


@dataclass(frozen=True, slots=True)
class Channel:
    """GPUs of a node in order, by their place in it, and the NICs before and after, by name; where
    it was searched for, with the paths inside the node and those to and from NICs.
    """

    gpus: tuple[int, ...]
    net_in: str | None = None
    net_out: str | None = None
    paths: tuple[BoxPath, ...] = field(default=(), repr=False)
    outer: tuple[BoxPath, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Task:
    """A node to fill with channels, and the limits to keep."""

    box: Box
    speed: float
    ring: bool
    limits: PathLimits
    several: bool
    intel: bool
    failures: list[int] = field(default_factory=lambda: [0], compare=False)
    """How many of its walks have failed."""

    def load(self, path: BoxPath, *, between: bool = True) -> dict[int, float]:
        """GB/s that a channel takes of every arc of a path."""
        cost = self.speed * (_HOST_COST if self.intel and between and path.kind == PHB else 1.0)
        return {arc: times * cost for arc, times in Counter(path.arcs).items()}

    def hop(self, u: int, v: int) -> BoxPath | None:
        """The path from a GPU to the next, if its class is allowed."""
        path = self.box.between(u, v)
        return path if path and path.kind <= self.limits.intra else None


def fits(left: list[float], load: dict[int, float]) -> bool:
    """Whether what is left has room for a load."""
    return all(left[arc] >= need - SLACK for arc, need in load.items())


def take(left: list[float], load: dict[int, float], sign: int = 1) -> bool:
    """Take a load of what is left; False, and nothing taken, if it does not fit."""
    if sign > 0 and not fits(left, load):
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
    # networkx has no search for Hamiltonian paths, and NCCL's order and its limits decide here.
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
                if free >= task.speed - SLACK:
                    nearest = (v - u) % n if turn % 2 == 0 else (u - v) % n
                    found.append(((path.kind, -free if turn < 2 else free, path.hops, nearest), v))
        return [v for _, v in sorted(found, reverse=True)]

    def home() -> bool:
        if not task.ring or task.several:
            return not task.ring or end is None or gpus[-1] == end
        path = task.hop(gpus[-1], start)
        return path is not None and fits(room, task.load(path))

    stack = [nexts(start)]
    while stack and steps < _STEPS and task.failures[0] < _FAILURES:
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
    task.failures[0] += 1
    return None


def through_nics(task: Task, most: int) -> list[Channel]:
    """Channels that come in by a NIC and leave by the same one, unless others are allowed; each
    takes the NIC that has served the fewest.
    """
    nics = range(len(task.box.nics))
    left = list(task.box.capacity)
    found: list[Channel] = []
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


def _by_nic(task: Task, left: list[float], k: int) -> Channel | None:
    """One more channel over a NIC; what it takes is taken from `left`."""
    box = task.box
    into = [(path, u) for u, path in enumerate(box.from_nic[k]) if path]
    for inward, start in sorted(into, key=lambda way: (way[0].kind, -way[0].rate, way[1])):
        if inward.kind > task.limits.inter:
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
                return Channel(gpus, *names, tuple(paths), (inward, outward))
            for load in taken:
                take(left, load, -1)
        take(left, entry, -1)
    return None


def _ways(
    task: Task, left: list[float], k: int, start: int
) -> Iterator[tuple[tuple[int, ...], BoxPath, int]]:
    """Orders from `start`, each with its way out and its NIC: the same NIC first, near GPUs first.
    Rings leave by the last GPU, trees by the second or, plain, by the first.
    """
    n = len(task.box.gpus)
    options: list[tuple[tuple[bool, int, float, int], int, int, BoxPath]] = []
    alone = n == 1 or task.limits.plain
    tour = _tour(task, start, k)
    for out in range(len(task.box.nics)) if task.limits.cross else (k,):
        for end in (start,) if alone else range(n):
            path = exit_path(task, end, out)
            if path and path.kind <= task.limits.inter and (alone or end != start):
                # A tree goes on to the next of the tour, and a ring ends at its last.
                far = tour.index(end) if not task.ring else n - tour.index(end)
                options.append(((out != k, path.kind, -path.rate, far), end, out, path))
    for _, end, out, path in sorted(options, key=lambda option: option[0]):
        gpus = _any_order(task, left, tour, None if alone else end)
        if gpus:
            yield gpus, path, out


def _tour(task: Task, start: int, k: int) -> list[int]:
    """All GPUs in the order in which NCCL tries them from a NIC (`ncclTopoSearchNextGpuSort`,
    NVIDIA/nccl src/graph/search.cc).

    Upwards; but a ring over NVSwitches goes to the GPUs far from the NIC first, downwards.
    """
    n = len(task.box.gpus)
    tour = [(start + i) % n for i in range(n)]
    if task.ring and task.box.switched:
        far = {u: (-p.rate, p.hops) for u, p in enumerate(task.box.from_nic[k]) if p}
        for place in range(1, n):
            here, rest = tour[place - 1], tour[place:]
            best = max(rest, key=lambda u: (far.get(u, (0.0, 0)), (u - here) % n))
            tour[place:] = [best, *(u for u in rest if u != best)]
    return tour


def _any_order(
    task: Task, left: list[float], tour: list[int], end: int | None
) -> tuple[int, ...] | None:
    """An order of all GPUs along a tour; `end` is a ring's last, or a tree's second."""
    if len(tour) == 1:
        return (0,)
    if not task.box.switched:
        return walk(task, left, tour[0], end)
    gpus = list(tour)
    if end is not None:
        gpus.remove(end)
        gpus.insert(len(tour) if task.ring else 1, end)
    return tuple(gpus)


def exit_path(task: Task, gpu: int, k: int) -> BoxPath | None:
    """The way from a GPU to a NIC: its own, or over NVLink through a GPU near the NIC (PXN)."""
    own = task.box.to_nic[gpu][k]
    if (own and own.kind <= PXB) or task.limits.inter < PXN:
        return own
    farthest = P2C if task.limits.pxn_c2c else PXB
    best = None
    for peer, row in enumerate(task.box.to_nic):
        first, last = task.box.between(gpu, peer), row[k]
        if peer != gpu and last and last.kind <= farthest and first and LOC < first.kind <= NVL:
            path = BoxPath(
                PXN, (*first.arcs, *last.arcs), min(first.rate, last.rate), first.hops + last.hops
            )
            if best is None or path.rate > best.rate:
                best = path
    return best if best and (own is None or best.kind < own.kind) else own


_MOST_LISTED = 5
"""GPUs up to which all cycles are listed where the walks may have missed some; chains up to 4."""
_NODES = 200
"""Nodes of the integer programme's tree: complete digraphs of 6 take long to rule out."""


def fill(task: Task, least: int, most: int) -> list[Channel]:
    """Channels that fit into the node together, as many as were found, `most` at most; none where
    fewer than `least` fit.
    """
    if task.several:
        return through_nics(task, most)
    if len(task.box.gpus) == 1:
        return [Channel((0,))] * most
    if task.box.switched and task.limits.intra >= NVL:
        return _on_switch(task, most)
    return _inside(task, most) if _bound(task) >= least else []


def _on_switch(task: Task, most: int) -> list[Channel]:
    """Rings in the order of the GPUs; chains also start elsewhere, so that each port is used."""
    n, room = len(task.box.gpus), int((min(task.box.nvlink) + SLACK) / task.speed)
    same = [_order(task, tuple(range(n)))] * min(room, most)
    # A chain spares one port in and one out; the same order first, as NCCL tries it.
    if task.ring or len(same) == most or n * room < most * (n - 1):
        return same
    starts = [i * n // most if most < n else i % n for i in range(most)]
    turned = [tuple((start + i) % n for i in range(n)) for start in starts]
    out = Counter(gpu for order in turned for gpu in order[:-1])
    into = Counter(gpu for order in turned for gpu in order[1:])
    if max((*out.values(), *into.values())) > room:
        return same
    return [_order(task, order) for order in turned]


def _order(task: Task, gpus: tuple[int, ...]) -> Channel:
    ends = (*gpus, gpus[0]) if task.ring else gpus
    paths = tuple(p for u, v in itertools.pairwise(ends) if (p := task.box.between(u, v)))
    return Channel(gpus, paths=paths)


def _inside(task: Task, most: int) -> list[Channel]:
    """The same order again and again, then different ones; the more of the two."""
    found = _greedy(task, most)
    found = max(_same(task, found, most), found, key=len)
    few = len(task.box.gpus) <= _MOST_LISTED - (not task.ring)
    if few and len(found) < min(most, _bound(task)):
        found = max(found, _list_orders(task, most), key=len)
    return sorted(found, key=lambda order: _steps(task, order)) if task.ring else found


def _steps(task: Task, order: Channel) -> list[tuple[float, int, int]]:
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


def _same(task: Task, found: Sequence[Channel], most: int) -> list[Channel]:
    """The first order found, as often as it fits."""
    if not found:
        return []
    best = max(set(found), key=lambda order: (_times(task, order), [-g for g in order.gpus]))
    return [best] * min(_times(task, best), most)


def _load(task: Task, order: Channel) -> dict[int, float]:
    """GB/s that a channel takes of every arc."""
    total: defaultdict[int, float] = defaultdict(float)
    for path in order.paths:
        for arc, load in task.load(path).items():
            total[arc] += load
    return total


def _times(task: Task, order: Channel) -> int:
    rooms = (task.box.capacity[arc] / load for arc, load in _load(task, order).items())
    return int(min(rooms, default=0.0) + SLACK)


def _list_orders(task: Task, most: int) -> list[Channel]:
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


def _all(task: Task) -> Iterator[Channel]:
    """Every order whose paths alone fit; cycles begin at GPU 0."""
    n = len(task.box.gpus)
    starts = (0,) if task.ring else range(n)
    for start in starts:
        others = [gpu for gpu in range(n) if gpu != start]
        for rest in itertools.permutations(others):
            order = _order(task, (start, *rest))
            ends = (*order.gpus, start) if task.ring else order.gpus
            allowed = all(task.hop(u, v) for u, v in itertools.pairwise(ends))
            if allowed and _times(task, order):
                yield order


def _greedy(task: Task, most: int) -> list[Channel]:
    """Orders over what is left, the widest hops first; several ways to begin are tried. As NCCL,
    it tries the last order again first; where that finds fewer, each order counts once.
    """
    best: list[Channel] = []
    for again, turn in itertools.product((most, 1), range(4)):
        left = list(task.box.capacity)
        found: list[Channel] = []
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
