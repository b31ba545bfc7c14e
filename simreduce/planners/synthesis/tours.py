"""Cheapest tours (Hamiltonian cycles): exact up to 16 ranks (Held and Karp 1962), beyond that task
by task or by insertion. networkx only approximates tours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from simreduce.computing.arrays import Floats

Tour = tuple[int, ...]

MOST_EXACT = 16
"""Ranks up to which a cheapest tour is found for certain."""
_STARTS = 8


def tours(costs: Floats, tasks: Sequence[Sequence[int]]) -> Iterator[Tour]:
    """Cheap tours over all ranks, each starting at rank 0; only such as have a finite cost.

    Up to `MOST_EXACT` ranks a cheapest one is among them. Beyond, with several tasks of up to so
    many ranks each, it is the cheapest of those that go through the tasks one after another, in
    order or against it. Otherwise it is what inserting ranks where they cost least comes to.
    """
    n = len(costs)
    if n == 1:
        yield (0,)
    elif n <= MOST_EXACT:
        yield from _exact(costs)
    elif len(tasks) > 1 and max(map(len, tasks)) <= MOST_EXACT:
        for order in (tasks, tasks[::-1]):
            yield from _through_tasks(costs, order)
    else:
        yield from _insert_ranks(costs)


def length(costs: Floats, tour: Tour) -> float:
    """The cost of all hops, the last one home included."""
    return float(sum(costs[a, b] for a, b in pairwise((*tour, tour[0]))))


def _exact(costs: Floats) -> Iterator[Tour]:
    """For every last rank the cheapest tour that ends there."""
    n = len(costs)
    table = _paths(costs, 0)
    full = (1 << n) - 1
    closed = table[full] + costs[:, 0]
    for last in np.argsort(closed, kind="stable"):
        if np.isfinite(closed[last]) and last != 0:
            yield _walk_back(costs, table, full, int(last))


def _paths(costs: Floats, start: int) -> Floats:
    """`[visited, last]`: the least cost of a path from `start` through the set of bits `visited`,
    ending at `last`.
    """
    n = len(costs)
    masks = np.arange(1 << n)
    size = np.array([mask.bit_count() for mask in range(1 << n)])
    table = np.full((1 << n, n), math.inf)
    table[1 << start, start] = 0.0
    for count in range(2, n + 1):
        layer = masks[(size == count) & (masks >> start & 1 == 1)]
        for last in range(n):
            if last != start:
                some = layer[layer >> last & 1 == 1]
                table[some, last] = (table[some ^ (1 << last)] + costs[:, last]).min(axis=1)
    return table


def _walk_back(costs: Floats, table: Floats, visited: int, last: int) -> Tour:
    """The path that `table` has for a set and its last rank."""
    path = [last]
    while visited & (visited - 1):
        visited ^= 1 << path[-1]
        path.append(int(np.argmin(table[visited] + costs[:, path[-1]])))
    return tuple(reversed(path))


def _through_tasks(costs: Floats, tasks: Sequence[Sequence[int]]) -> Iterator[Tour]:
    """For every rank of the first task, the cheapest tour that enters there and visits one task
    after another.
    """
    inside = [_through_task(costs[np.ix_(task, task)]) for task in tasks]
    for entry in range(len(tasks[0])):
        # For each rank of the task at hand: the cost to leave from there, and the steps so far.
        least, steps = inside[0][0][entry], []
        for (before, task), (through, _) in zip(pairwise(tasks), inside[1:], strict=True):
            enter = (least[:, None] + costs[np.ix_(before, task)]).min(axis=0)
            came = (least[:, None] + costs[np.ix_(before, task)]).argmin(axis=0)
            least = (enter[:, None] + through).min(axis=0)
            steps.append(((enter[:, None] + through).argmin(axis=0), came))
        home = least + costs[list(tasks[-1]), tasks[0][entry]]
        out = int(home.argmin())
        if not np.isfinite(home[out]):
            continue
        parts: list[Tour] = []
        for (_, paths), task, (into, came) in zip(
            inside[:0:-1], tasks[:0:-1], steps[::-1], strict=True
        ):
            door = int(into[out])
            parts.append(tuple(task[i] for i in paths[door, out]))
            out = int(came[door])
        parts.append(tuple(tasks[0][i] for i in inside[0][1][entry, out]))
        yield _from_zero([rank for part in reversed(parts) for rank in part])


def _through_task(costs: Floats) -> tuple[Floats, dict[tuple[int, int], Tour]]:
    """The least cost of a path through all of a task, by its two ends, and the paths."""
    n, full = len(costs), (1 << len(costs)) - 1
    least = np.full((n, n), math.inf)
    paths: dict[tuple[int, int], Tour] = {}
    for start in range(n):
        table = _paths(costs, start)
        for last in range(n):
            if np.isfinite(table[full, last]):
                least[start, last] = table[full, last]
                paths[start, last] = _walk_back(costs, table, full, last)
    return least, paths


def _insert_ranks(costs: Floats) -> Iterator[Tour]:
    """Nearest next rank from several starts, then every rank is moved to where it costs least until
    nothing changes.
    """
    n = len(costs)
    top = costs[np.isfinite(costs)].max(initial=1.0) * n
    filled = np.where(np.isfinite(costs), costs, top)
    for start in range(0, n, -(-n // _STARTS)):
        tour = [start]
        while len(tour) < n:
            onward = filled[tour[-1]].copy()
            onward[tour] = math.inf
            tour.append(int(onward.argmin()))
        for _ in range(n):
            before = list(tour)
            for rank in range(n):
                tour.remove(rank)
                here, there = np.array(tour), np.array([*tour[1:], tour[0]])
                extra = filled[here, rank] + filled[rank, there] - filled[here, there]
                tour.insert(int(extra.argmin()) + 1, rank)
            if _from_zero(tour) == _from_zero(before):
                break
        found = _from_zero(tour)
        if math.isfinite(length(costs, found)):
            yield found


def _from_zero(tour: Sequence[int]) -> Tour:
    at = list(tour).index(0)
    return (*tour[at:], *tour[:at])
