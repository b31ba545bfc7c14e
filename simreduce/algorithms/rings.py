"""The ways round the GPUs that NCCL's channels take.

In a machine they are Hamiltonian rings on the links between GPUs. A ring is taken once, then its
reverse, then the next one that is found, while lanes are free: greedily, most free lanes first,
with a bounded search. Rings are also looked for with every lane counted twice, as NCCL also takes
rings of half a link's rate: all arcs of four GPUs of which every two are linked make six such rings
and no more than two whole ones. Without any ring there is one way, in rank order.

Through several machines, every NIC has a way that begins at a GPU of it, so that all NICs send and
receive alike. Where no GPU beside it can be the last, the next machine is crossed the other way
round: what leaves by one rail arrives on the same rail.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from simreduce.layouts import Layout

_MOST = 32
"""Rings that NCCL takes at most."""

_VISITS = 20_000
"""Nodes visited by one search at most."""

Way = tuple[int, ...]


def rings(layout: Layout, ranks: Sequence[int]) -> list[Way]:
    """Orders of `ranks` (all of one task, or of several tasks), one for each different channel."""
    found = []
    for way in ways(layout, ranks):
        turn = len({_nic(layout, end) for end in (way[0][0], way[0][-1])}) > 1
        found.append(tuple(r for i, part in enumerate(way) for r in part[:: -1 if turn & i else 1]))
    return found


def ways(layout: Layout, ranks: Sequence[int]) -> list[list[Way]]:
    """By channel and task, the ranks of the task in order; the first of all tasks have like NICs.
    The channels are all different or as often there as their lanes allow.
    """
    wanted = set(ranks)
    tasks = [[r for r in task if r in wanted] for task in layout.tasks]
    found = [_disjoint(layout, task) for task in tasks if task]
    if len(found) == 1 and layout.machines == 1:
        return [[order] for order in found[0]]
    nics = sorted({_nic(layout, rank) for rank in found[0][0]})
    count = math.lcm(len(nics), *(len(each) for each in found))
    if count > _MOST:
        count = len(nics)
    return [
        [_cut(layout, each[c % len(each)], nics[c % len(nics)]) for each in found]
        for c in range(count)
    ]


def _nic(layout: Layout, rank: int) -> int:
    return layout.nics[rank] if layout.nics else 0


def _cut(layout: Layout, ring: Way, nic: int) -> Way:
    """The ring from a GPU of the NIC on, if possible to one beside it."""
    starts = [i for i, rank in enumerate(ring) if _nic(layout, rank) == nic] or [0]
    start = next((i for i in starts if _nic(layout, ring[i - 1]) == nic), starts[0])
    return (*ring[start:], *ring[:start])


def _disjoint(layout: Layout, ranks: Sequence[int]) -> list[Way]:
    once, twice = (_packed(layout, ranks, copies) for copies in (1, 2))
    found = twice if len(twice) > 2 * len(once) else once
    share = math.gcd(*Counter(found).values()) if found else 1
    kept = {ring: times // share for ring, times in Counter(found).items()}
    rounds = range(max(kept.values(), default=0))
    return [ring for i in rounds for ring, times in kept.items() if i < times] or [tuple(ranks)]


def _packed(layout: Layout, ranks: Sequence[int], copies: int) -> list[Way]:
    links = layout.links
    lanes = {(a, b): links[a][b] * copies for a in ranks for b in ranks if links[a][b]}
    found: list[Way] = []
    while len(ranks) > 2 and len(found) < _MOST and (ring := _search(ranks, lanes)):
        for order in (ring, (ring[0], *ring[:0:-1])):
            arcs = list(zip(order, (*order[1:], order[0]), strict=True))
            if all(lanes.get(arc, 0) for arc in arcs):
                lanes |= {arc: lanes[arc] - 1 for arc in arcs}
                found.append(order)
    return found


def _search(ranks: Sequence[int], lanes: dict[tuple[int, int], int]) -> Way:
    """One ring over free lanes, by depth-first search; most lanes first, then lowest rank."""
    stack = [(ranks[0],)]
    for _ in range(_VISITS):
        path = stack.pop() if stack else ()
        if not path or (len(path) == len(ranks) and lanes.get((path[-1], path[0]), 0) > 0):
            return path
        free = [r for r in ranks if r not in path and lanes.get((path[-1], r), 0) > 0]
        stack += [(*path, r) for r in sorted(free, key=lambda r: (lanes[path[-1], r], -r))]
    return ()
