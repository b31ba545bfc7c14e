"""Maximum flow in exact arithmetic (Dinic 1970): capacities are whole numbers of any size, or
fractions.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

Amount = int | Fraction
Arc = tuple[int, int, Amount]


def max_flow(arcs: Iterable[Arc], source: int, sink: int) -> tuple[Amount, frozenset[int]]:
    """The greatest flow from `source` to `sink`, and the vertices on the source's side of a least
    cut.

    Of all least cuts the one nearest to the source is given.
    """
    head: list[int] = []
    left: list[Amount] = []
    out: dict[int, list[int]] = {source: [], sink: []}
    for a, b, capacity in arcs:
        for end, start, room in ((b, a, capacity), (a, b, 0)):
            out.setdefault(start, []).append(len(head))
            head.append(end)
            left.append(room)
    total: Amount = 0
    while True:
        level = _levels(out, head, left, source)
        if sink not in level:
            return total, frozenset(level)
        following = dict.fromkeys(out, 0)
        while pushed := _augment(out, head, left, level, following, source, sink):
            total += pushed


def _levels(
    out: dict[int, list[int]], head: list[int], left: list[Amount], source: int
) -> dict[int, int]:
    level = {source: 0}
    frontier = [source]
    while frontier:
        reached = []
        for u in frontier:
            for e in out[u]:
                if left[e] > 0 and head[e] not in level:
                    level[head[e]] = level[u] + 1
                    reached.append(head[e])
        frontier = reached
    return level


def _augment(
    out: dict[int, list[int]],
    head: list[int],
    left: list[Amount],
    level: dict[int, int],
    following: dict[int, int],
    source: int,
    sink: int,
) -> Amount:
    """Push along one path of the level graph; 0 when it is used up. `following` is the next arc to
    try per vertex.
    """
    path: list[int] = []
    u = source
    while u != sink:
        while following[u] < len(out[u]):
            e = out[u][following[u]]
            if left[e] > 0 and level.get(head[e]) == level[u] + 1:
                path.append(e)
                u = head[e]
                break
            following[u] += 1
        else:
            if not path:
                return 0
            u = head[path.pop() ^ 1]
            following[u] += 1
    amount = min(left[e] for e in path)
    for e in path:
        left[e] -= amount
        left[e ^ 1] += amount
    return amount
