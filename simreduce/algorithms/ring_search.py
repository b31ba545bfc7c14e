"""Hamiltonian rings on the links between the GPUs of a machine, as NCCL takes them.

A ring is taken once, then its reverse, then the next one that is found, while lanes are free:
greedily, most free lanes first, with a bounded search. It finds all six rings of a DGX-1 with V100
and all four of one with P100. Lanes are also counted twice, as NCCL also takes rings of half a
link's rate: the arcs between four GPUs make six such rings, but two whole ones.
"""

from __future__ import annotations

import functools
import math
from collections import Counter

MOST = 32
"""Rings that NCCL takes at most."""

_VISITS = 20_000
"""Nodes visited by one search at most."""

Way = tuple[int, ...]


@functools.lru_cache(maxsize=64)
def ring_search(lanes: tuple[Way, ...]) -> tuple[Way, ...]:
    """Rings over GPUs 0, 1, ... with these lanes from each to each; one in rank order if there is
    none. A ring is there as often as it is taken, by turns with the others.
    """
    once, twice = (_packed(lanes, copies) for copies in (1, 2))
    times = Counter(twice if len(twice) > 2 * len(once) else once)
    share = math.gcd(*times.values())
    rounds = range(max(times.values(), default=0))
    return tuple(ring for i in rounds for ring in times if i * share < times[ring]) or (
        tuple(range(len(lanes))),
    )


def _packed(links: tuple[Way, ...], copies: int) -> list[Way]:
    found: list[Way] = []
    n = range(len(links))
    free = {(a, b): links[a][b] * copies for a in n for b in n if links[a][b]}
    while len(n) > 2 and len(found) < MOST and (ring := _search(n, free)):
        for order in (ring, (ring[0], *ring[:0:-1])):
            arcs = list(zip(order, (*order[1:], order[0]), strict=True))
            if all(free.get(arc, 0) for arc in arcs):
                free |= {arc: free[arc] - 1 for arc in arcs}
                found.append(order)
    return found


def _search(n: range, lanes: dict[tuple[int, int], int]) -> Way:
    """One ring over free lanes, by depth-first search; most lanes first, then lowest rank."""
    stack: list[Way] = [(0,)]
    for _ in range(_VISITS):
        path = stack.pop() if stack else ()
        if not path or (len(path) == len(n) and lanes.get((path[-1], path[0]), 0) > 0):
            return path
        free = [r for r in n if r not in path and lanes.get((path[-1], r), 0) > 0]
        stack += [(*path, r) for r in sorted(free, key=lambda r: (lanes[path[-1], r], -r))]
    return ()
