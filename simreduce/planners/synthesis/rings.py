"""Rings that share a network, and all-to-alls that relay over other ranks.

Every ring is directed, and carries a reduce-scatter and an all-gather of its share of the tensor.
Shares may be parts of a link: rings that share links at half rate win where no set of link-disjoint
rings uses all of them. Every ring crosses every cut, so the narrowest cut bounds the rate. Up to 16
ranks the packing is the best there is; beyond, the best of the tours found.

In an all-to-all, every rank sends every other the same amount, along edges that may pass other
ranks. The greatest common amount is a linear programme (maximum concurrent flow; Shahrokhi and
Matula 1990) in what every source sends over every edge. Of all best flows the one with the least
load is taken, and is cut into paths.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np

from simreduce.computing import breadth_first
from simreduce.computing.arrays import Floats
from simreduce.errors import StrategyError
from simreduce.planners.synthesis import Edge, Network, way_to
from simreduce.planners.synthesis.optimum import Optimum, maximise, maximise_first, narrowest_cut
from simreduce.planners.synthesis.packing import GAP, LOST, Packing, PackingProblem, pack
from simreduce.planners.synthesis.trees import SpanningTree, Trees, search_in_order

Tour = tuple[int, ...]

MOST_EXACT = 16
"""Ranks up to which a cheapest tour is found for certain."""
_STARTS = 8


def tours(costs: Floats, tasks: Sequence[Sequence[int]]) -> Iterator[Tour]:
    """Cheap tours over all ranks, each starting at rank 0; only such as have a finite cost.

    Up to `MOST_EXACT` ranks a cheapest one is among them. Beyond, with several tasks of up to so
    many ranks each, it is the cheapest of those that go through the tasks one after another, in
    order or against it. Otherwise it is what inserting ranks where they cost least comes to.

    Exact up to 16 ranks (Held and Karp 1962), beyond that task by task or by insertion. networkx
    only approximates tours.
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
    table, full = _paths(costs, 0), (1 << len(costs)) - 1
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
            enter = least[:, None] + costs[np.ix_(before, task)]
            leave = enter.min(axis=0)[:, None] + through
            least = leave.min(axis=0)
            steps.append((leave.argmin(axis=0), enter.argmin(axis=0)))
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


Ring = tuple[int, ...]
Rings = Packing[Ring]

_LEAST = 1e-6
"""Rings of less than this part of the widest link are left out."""
_ROUNDS, _ROUNDS_BEYOND = 200, 20
"""How often a better ring is looked for, up to `MOST_EXACT` ranks and beyond."""


def hops(ring: Ring) -> list[Edge]:
    """The transfers of a ring, the one home included."""
    return [] if len(ring) == 1 else list(pairwise((*ring, ring[0])))


def all_reduce_rate(ranks: int, rate: float) -> float:
    """The algorithm bandwidth of rings of `rate` in total: each link carries 2(n-1)/n of the
    tensor.
    """
    return math.inf if ranks == 1 else rate * ranks / (2 * (ranks - 1))


@functools.lru_cache(maxsize=32)
def ring_packing(network: Network) -> Rings:
    """Rings with shares; the rate is their sum. No rings, and a rate of 0, where paths allow none.

    Rings that share no link are taken where they reach what the best shares do.
    """
    if network.ranks == 1:
        return Packing((((0,), 1.0),), math.inf, math.inf)
    apart = _greedy(network)
    if not apart:
        return Packing((), 0.0, 0.0)
    rate, bound = sum(share for _, share in apart), narrowest_cut(network)
    if rate < bound * (1 - GAP):
        exact = network.ranks <= MOST_EXACT
        problem = PackingProblem(
            capacity=network.capacity,
            groups=1,
            load=functools.cache(lambda ring: network.load(hops(ring))),
            group=lambda _: 0,
            weight=functools.cache(lambda ring: float(sum(network.load(hops(ring)).values()))),
            price=lambda prices: tours(np.array(network.costs(prices)), network.tasks),
            exact=exact,
            bound=bound,
            rounds=_ROUNDS if exact else _ROUNDS_BEYOND,
        )
        shared = pack(problem, [*(ring for ring, _ in apart), *_zigzags(network)])
        if shared.rate * (1 - LOST) > rate:
            return shared
        bound = shared.bound
    return Packing(tuple(apart), rate, bound)


def _greedy(network: Network) -> list[tuple[Ring, float]]:
    """The widest ring on what is left, and its reverse, again and again."""
    left = list(network.capacity)
    found: dict[Ring, float] = {}
    while ring := _widest(network, left):
        for each in _either_way(network, ring):
            load = network.load(hops(each))
            rate = min(left[arc] / times for arc, times in load.items())
            if rate > _LEAST * max(network.capacity):
                found[each] = found.get(each, 0.0) + rate
                for arc, times in load.items():
                    left[arc] -= rate * times
    return list(found.items())


def _either_way(network: Network, ring: Ring) -> list[Ring]:
    """The ring and its reverse, as far as they have paths."""
    both = ring, (ring[0], *ring[:0:-1])
    return [each for each in both if all(network.paths[u][v] for u, v in hops(each))]


def _widest(network: Network, left: Sequence[float]) -> Ring | None:
    """A ring whose slowest hop has the most left, of those one on links with much left; None if
    there is none.
    """
    rooms = [
        [min(left[arc] for arc in path) if path else 0.0 for path in row] for row in network.paths
    ]
    costs = network.costs([1.0 / max(room, 1e-300) for room in left])
    levels = sorted(
        {room for row in rooms for room in row if room > _LEAST * max(network.capacity)},
        reverse=True,
    )
    low, high = 0, len(levels) - 1
    best: Ring | None = None
    while low <= high:
        middle = (low + high) // 2
        wide = np.where(np.array(rooms) >= levels[middle], costs, math.inf)
        ring = next(tours(wide, network.tasks), None)
        if ring is None:
            low = middle + 1
        else:
            best, high = ring, middle - 1
    return best


def _zigzags(network: Network) -> Iterator[Ring]:
    """Rings that use all pairs of ranks equally (Walecki 1892): one rank stays and the others
    rotate.
    """
    n = network.ranks
    path = [(i + 1) // 2 if i % 2 else -(i // 2) for i in range(n - 1)]
    for turn in range(n - 1):
        yield from _either_way(network, (0, *(1 + (step + turn) % (n - 1) for step in path)))


@functools.lru_cache(maxsize=32)
def best_order(network: Network) -> Ring | None:
    """The ring that alone is fastest; of equals, the one that crosses the fewest links. None if
    there is none.

    Among the rings of `ring_packing`, and the shortest rings that avoid links of less than some
    rate. If links are direct and ranks are 16 at most, no ring is better.
    """
    candidates = [ring for ring, _ in ring_packing(network).patterns]
    in_order = tuple(range(network.ranks))
    candidates += [in_order] * all(network.paths[u][v] for u, v in hops(in_order))
    for least in sorted({network.rate([edge]) for edge in network.edges}):
        costs = [
            [
                len(path) if path and network.rate([(u, v)]) >= least else math.inf
                for v, path in enumerate(row)
            ]
            for u, row in enumerate(network.paths)
        ]
        candidates += tours(np.array(costs), network.tasks)

    def merit(ring: Ring) -> tuple[float, int, Ring]:
        return -network.rate(hops(ring)), sum(network.load(hops(ring)).values()), ring

    return min(candidates, key=merit, default=None)


def sample_size(each: int) -> int:
    """The number of machines of `each` ranks to search.

    It is large enough that rings visit one machine after another.
    """
    return max(3, MOST_EXACT // each + 1)


def continue_ring(ring: Ring, tasks: Sequence[Sequence[int]], few: int) -> Ring | None:
    """The ring over the ranks of the first `few` of `tasks`, which are equal, taken through all of
    them. None if it visits a machine twice.

    A ring that visits one machine after another crosses each by some path. Where all machines are
    equal, machine j of many is crossed as machine j mod c of the c that were searched. So the links
    of every machine and of its NICs carry what they carry there. What lies between the machines may
    carry more, which is not checked.
    """
    home = {rank: (task, at) for task in range(few) for at, rank in enumerate(tasks[task])}
    start = next(i for i, rank in enumerate(ring) if home[rank][0] != home[ring[i - 1]][0])
    visits = [
        (task, [home[rank][1] for rank in ranks])
        for task, ranks in groupby((*ring[start:], *ring[:start]), key=lambda rank: home[rank][0])
    ]
    paths = dict(visits)
    if len(visits) > few:
        return None
    order = [task for task, _ in visits]
    forwards = (order[1] - order[0]) % few == 1
    machines = range(len(tasks)) if forwards else range(len(tasks) - 1, -1, -1)
    through = [tasks[machine][at] for machine in machines for at in paths[machine % few]]
    return _from_zero(through)


MOST_FLOWS = 20_000
"""Upper limit of the linear programme's variables: 28 GPUs with a path between every pair."""
_CLOSE, _EXACT = 1e-7, 1e-9

Path = tuple[Edge, ...]


class Flow(NamedTuple):
    """The rate of every pair of ranks, paths with their shares, and the arcs that limit it."""

    rate: float
    paths: tuple[tuple[Path, float], ...]
    tight: tuple[int, ...]


def concurrent_flow(network: Network) -> Flow:
    """The best rate from every rank to every other at once, and paths that reach it.

    Raises `StrategyError` for networks of more than `MOST_FLOWS` flows.
    """
    n, edges = network.ranks, network.edges
    if n * len(edges) > MOST_FLOWS:
        raise StrategyError(
            f"relays are found for up to {MOST_FLOWS:,} flows, GPUs times linked pairs, and these "
            f"are {n * len(edges):,}; try fewer GPUs"
        )
    if n == 1:
        return Flow(math.inf, (), ())
    unit = max(network.capacity)
    table = _table(network)
    limit = np.concatenate([np.array(network.capacity) / unit, np.zeros(n * (n - 1))])
    rate, _, price = maximise_first(table, limit)
    tight = np.flatnonzero(price[: len(network.arcs)] > _CLOSE)
    lengths = np.array([len(network.paths[u][v]) for u, v in edges], dtype=float)
    limit[len(network.arcs) :] = -rate * (1 - _EXACT)
    _, point, _ = maximise(-np.tile(lengths, n), table[:, 1:], limit)
    flows = point.reshape(n, len(edges)) * unit
    least = _CLOSE * rate * unit
    paths = [
        path for source in range(n) for path in _relays_paths(edges, source, flows[source], least)
    ]
    return Flow(rate * unit, tuple(paths), tuple(int(arc) for arc in tight))


def all_to_all(network: Network) -> Optimum:
    """The best rate of an all-to-all, in bytes of a rank's whole tensor, its own part included."""
    flow = concurrent_flow(network)
    return Optimum(flow.rate * network.ranks, (), flow.tight)


@functools.lru_cache(maxsize=16)
def all_to_all_paths(network: Network) -> Trees:
    """Paths from every rank to every other, as trees; the rate is that of one pair."""
    return search_in_order(network, _search)


def _search(network: Network) -> Trees:
    flow = concurrent_flow(network)
    trees = tuple((SpanningTree(path[0][0], (), path), share) for path, share in flow.paths)
    return Packing(trees, flow.rate, flow.rate)


def _table(network: Network) -> Any:
    """Rows: the load of every arc; then, by source and other rank, the rate minus what stays there.
    Columns: the rate; then, by source and edge, the flow.
    """
    from scipy import sparse  # noqa: PLC0415 - takes a second to load

    n, edges, m = network.ranks, network.edges, len(network.arcs)
    crossed = [(arc, e) for e, (u, v) in enumerate(edges) for arc in network.paths[u][v]]
    places = tuple(np.array(crossed, dtype=np.int64).T)
    load = sparse.coo_array((np.ones(len(crossed)), places), shape=(m, len(edges)))
    stays = np.zeros((n, len(edges)))
    for e, (u, v) in enumerate(edges):
        stays[u, e] += 1.0
        stays[v, e] -= 1.0
    others = [sparse.coo_array(np.delete(stays, source, axis=0)) for source in range(n)]
    return sparse.block_array(
        [
            [sparse.coo_array((m, 1)), sparse.hstack([load] * n)],
            [sparse.coo_array(np.ones((n * (n - 1), 1))), sparse.block_diag(others)],
        ],
        format="csr",
    )


def _relays_paths(
    edges: tuple[Edge, ...], source: int, flow: Floats, least: float
) -> list[tuple[Path, float]]:
    """The paths of one source, shortest first, that `flow` over the edges is made of."""
    left = {edge: float(x) for edge, x in zip(edges, flow, strict=True) if x > least}
    arrived: dict[int, float] = {}
    for (u, v), x in left.items():
        arrived[v] = arrived.get(v, 0.0) + x
        arrived[u] = arrived.get(u, 0.0) - x
    found: list[tuple[Path, float]] = []
    while True:
        # Not networkx's: arcs leave with every path, and ties go by their order here.
        before = breadth_first(source, lambda u: [v for a, v in left if a == u])
        ends = [v for v in before if v != source and arrived.get(v, 0.0) > least]
        if not ends:
            return found
        path = tuple(pairwise(way_to(before, ends[0])))
        share = min(arrived[ends[0]], *(left[edge] for edge in path))
        found.append((path, share))
        arrived[ends[0]] -= share
        for edge in path:
            left[edge] -= share
            if left[edge] <= least:
                del left[edge]
