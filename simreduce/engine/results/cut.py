"""The maximum flow from one node of a graph to another, for a bound of every simulation.

Not networkx: importing it costs 0.13 s of CPU, where `simreduce bench switch:8 --algo ring` takes
0.75 s, and its fastest algorithm takes twice as long (0.25 s, not 0.13 s, for torus:8x8).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import pairwise
from typing import TypeVar

N = TypeVar("N", bound=Hashable)


def max_flow(capacity: Mapping[N, Mapping[N, int]], source: N, target: N) -> int:
    """Dinitz: paths of fewest hops, all of one length before longer ones.

    Capacities are whole numbers, so the flow is exact.
    """
    left: dict[N, dict[N, int]] = {a: dict(row) for a, row in capacity.items()}
    for a, row in capacity.items():
        for b in row:
            left.setdefault(b, {}).setdefault(a, 0)
    total = 0
    while target in (level := _levels(left, source, target)):
        ways = {a: iter(left.get(a, ())) for a in level}
        path = [source]
        while path:
            a = path[-1]
            if a == target:
                hops = list(pairwise(path))
                amount = min(left[x][y] for x, y in hops)
                for x, y in hops:
                    left[x][y] -= amount
                    left[y][x] += amount
                total += amount
                full = next(i for i, (x, y) in enumerate(hops) if not left[x][y])
                for dropped in path[full + 1 :]:  # what they lead to may have room yet
                    ways[dropped] = iter(left[dropped])
                del path[full + 1 :]
                continue
            step = next(
                (b for b in ways[a] if left[a][b] and level.get(b, 0) == level[a] + 1), None
            )
            if step is None:
                path.pop()
            else:
                path.append(step)
    return total


def _levels(left: Mapping[N, Mapping[N, int]], source: N, target: N) -> dict[N, int]:
    """Hops from the source over what is left, up to the target."""
    level, edge = {source: 0}, [source]
    while edge and target not in level:
        found = dict.fromkeys(b for a in edge for b, room in left.get(a, {}).items() if room)
        near = [b for b in found if b not in level]
        level |= dict.fromkeys(near, level[edge[0]] + 1)
        edge = near
    return level
