"""Hamiltonian rings on the links between GPUs, as many as fit without sharing a lane.

A ring that is found is taken as often as its lanes allow, and so is its reverse, before the next
one is looked for. The search is greedy (most lanes first) and bounded; it finds all six rings of a
DGX-1 with V100 and all four of one with P100. Where no ring exists there is one plain ring in rank
order.
"""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.layouts import Layout

_MOST = 8
"""Rings taken at most; more channels do not help a model without per-channel limits."""

_VISITS = 20_000
"""Nodes visited by one search at most."""


def rings(layout: Layout, ranks: Sequence[int]) -> list[list[int]]:
    """Orders of `ranks` (all of one task, or of several tasks), one per channel."""
    by_task = [[r for r in task if r in set(ranks)] for task in layout.tasks]
    found = [_disjoint(layout, task) for task in by_task if task]
    channels = max(len(each) for each in found)
    # Through several tasks, channel c visits each task along the task's own ring c.
    return [[rank for each in found for rank in each[c % len(each)]] for c in range(channels)]


def _disjoint(layout: Layout, ranks: Sequence[int]) -> list[list[int]]:
    lanes = {(a, b): layout.links[a][b] for a in ranks for b in ranks if layout.links[a][b]}
    found: list[list[int]] = []
    while len(ranks) > 2 and len(found) < _MOST:
        ring = _search(ranks, lanes)
        if ring is None:
            break
        for order in (ring, [ring[0], *ring[:0:-1]]):
            arcs = list(zip(order, [*order[1:], order[0]], strict=True))
            times = min(lanes.get(arc, 0) for arc in arcs)
            for arc in arcs:
                lanes[arc] = lanes.get(arc, 0) - times
            found += [order] * times
    return found[:_MOST] or [list(ranks)]


def _search(ranks: Sequence[int], lanes: dict[tuple[int, int], int]) -> list[int] | None:
    """One ring over free lanes, by depth-first search; most lanes first, then lowest rank."""
    path, visits = [ranks[0]], 0
    used = {ranks[0]}

    def choices(rank: int) -> list[int]:
        free = [r for r in ranks if r not in used and lanes.get((rank, r), 0) > 0]
        return sorted(free, key=lambda r: (lanes[rank, r], -r))

    stack = [choices(ranks[0])]
    while stack:
        visits += 1
        if visits > _VISITS:
            return None
        if len(path) == len(ranks) and lanes.get((path[-1], path[0]), 0) > 0:
            return path
        if stack[-1]:
            path.append(stack[-1].pop())
            used.add(path[-1])
            stack.append(choices(path[-1]))
        else:
            stack.pop()
            used.discard(path.pop())
    return None
