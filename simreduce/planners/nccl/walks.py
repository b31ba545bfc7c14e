"""Walks through all GPUs of a node on what its channels leave of the capacities."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from simreduce.planners.nccl.box import PHB, Box, BoxPath

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
class ChannelOrder:
    """A channel found, with the paths inside the node and those to and from NICs."""

    gpus: tuple[int, ...]
    net_in: str | None
    net_out: str | None
    paths: tuple[BoxPath, ...]
    outer: tuple[BoxPath, ...]


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
        dear = self.intel and between and path.kind == PHB
        cost = self.speed * (_HOST_COST if dear else 1.0)
        return {arc: times * cost for arc, times in Counter(path.arcs).items()}

    def hop(self, u: int, v: int) -> BoxPath | None:
        """The path from a GPU to the next, if its class is allowed."""
        path = self.box.between(u, v)
        return path if path and path.kind <= self.limits.intra else None


def take(left: list[float], load: dict[int, float], sign: int = 1) -> bool:
    """Take a load of what is left; False, and nothing taken, if it does not fit."""
    if sign > 0 and any(left[arc] < need - SLACK for arc, need in load.items()):
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
        return path is not None and all(
            room[arc] >= need - SLACK for arc, need in task.load(path).items()
        )

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
