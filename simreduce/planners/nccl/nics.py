"""Channels that come into a node by a NIC and leave it by one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from simreduce.planners.nccl.box import LOC, NVL, P2C, PXB, PXN, BoxPath
from simreduce.planners.nccl.walks import ChannelOrder, Task, take, walk


def through_nics(task: Task, most: int) -> list[ChannelOrder]:
    """Channels that come in by a NIC and leave by the same one, unless others are allowed; each
    takes the NIC that has served the fewest.
    """
    nics = range(len(task.box.nics))
    left = list(task.box.capacity)
    found: list[ChannelOrder] = []
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


def _by_nic(task: Task, left: list[float], k: int) -> ChannelOrder | None:
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
                return ChannelOrder(gpus, *names, tuple(paths), (inward, outward))
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
    n = len(tour)
    if n == 1:
        return (0,)
    if not task.box.switched:
        return walk(task, left, tour[0], end)
    gpus = list(tour)
    if end is not None:
        gpus.remove(end)
        gpus.insert(n if task.ring else 1, end)
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
        near = last is not None and last.kind <= farthest
        if peer != gpu and near and last and first and LOC < first.kind <= NVL:
            path = BoxPath(
                PXN, (*first.arcs, *last.arcs), min(first.rate, last.rate), first.hops + last.hops
            )
            if best is None or path.rate > best.rate:
                best = path
    return best if best and (own is None or best.kind < own.kind) else own
