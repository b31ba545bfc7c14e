"""The ways round the GPUs that NCCL's channels take.

In a machine they are rings on the links between GPUs (`ring_search`). Without any there is one way,
in rank order.

Through several machines, every NIC has a way that begins at a GPU of it, so that all NICs send and
receive alike. Where no GPU beside it can be the last, the next machine is crossed the other way
round: what leaves by one rail arrives on the same rail.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from simreduce.algorithms.ring_search import MOST, ring_search
from simreduce.layouts import Layout

Way = tuple[int, ...]


def rings(layout: Layout, ranks: Sequence[int]) -> list[Way]:
    """Orders of `ranks` (all of one task, or of several tasks), one for each different channel."""
    found = []
    for way in ways(layout, ranks):
        turn = len({_nic(layout, end) for end in (way[0][0], way[0][-1])}) > 1
        found.append(tuple(r for i, part in enumerate(way) for r in part[:: -1 if turn & i else 1]))
    return found


def ways(layout: Layout, ranks: Sequence[int]) -> list[list[Way]]:
    """By channel and task, the ranks of the task in order. The first ones of a channel have NICs in
    the same place.
    """
    wanted = set(ranks)
    tasks = [[r for r in task if r in wanted] for task in layout.tasks]
    found = [_disjoint(layout, task) for task in tasks if task]
    if len(found) == 1 and layout.machines == 1:
        return [[order] for order in found[0]]
    return [
        [_cut(layout, each[number % len(each)], nic) for each in found]
        for number, nic in _choices(layout, found)
    ]


def _choices(layout: Layout, found: Sequence[Sequence[Way]]) -> list[tuple[int, int]]:
    """By channel, which ring of a task it takes and at which NIC it begins: as many begin at each
    NIC, as many end at each, and as many take each ring, as can be.
    """
    nics = sorted({_nic(layout, rank) for rank in found[0][0]})
    count = math.lcm(len(nics), *(len(each) for each in found))
    last = {
        (number, nic): _nic(layout, _cut(layout, ring, nic)[-1])
        for nic in nics
        for number, ring in enumerate(found[0])
    }
    begun, ended, taken = Counter[int](), Counter[int](), Counter[int]()
    chosen: list[tuple[int, int]] = []
    for _ in range(count if count <= MOST else len(nics)):
        number, nic = min(
            last, key=lambda c: (begun[c[1]], ended[last[c]], taken[c[0]], c[1], c[0])
        )
        chosen.append((number, nic))
        begun[nic] += 1
        ended[last[number, nic]] += 1
        taken[number] += 1
    return chosen


def _nic(layout: Layout, rank: int) -> int:
    return layout.nics[rank] if layout.nics else 0


def _cut(layout: Layout, ring: Way, nic: int) -> Way:
    """The ring from a GPU of the NIC on, if possible to one beside it."""
    starts = [i for i, rank in enumerate(ring) if _nic(layout, rank) == nic] or [0]
    start = next((i for i in starts if _nic(layout, ring[i - 1]) == nic), starts[0])
    return (*ring[start:], *ring[:start])


def _disjoint(layout: Layout, ranks: Sequence[int]) -> list[Way]:
    """The rings of one task; equal tasks are searched once."""
    lanes = tuple(tuple(layout.links[a][b] for b in ranks) for a in ranks)
    return [tuple(ranks[i] for i in ring) for ring in ring_search(lanes)]
