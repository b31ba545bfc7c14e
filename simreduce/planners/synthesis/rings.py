"""Rings that share a network: the best shares of Hamiltonian rings, and the best ring alone.

Every ring is directed, and carries a reduce-scatter and an all-gather of its share of the tensor.
Shares may be parts of a link: rings that share links at half rate win where no set of link-disjoint
rings uses all of them. Every ring crosses every cut, so the narrowest cut bounds the rate. Up to 16
ranks the packing is the best there is; beyond, the best of the tours found.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from simreduce.computing.arrays import Floats
from simreduce.planners.synthesis.network import Edge, Network
from simreduce.planners.synthesis.optimum import narrowest_cut
from simreduce.planners.synthesis.packing import GAP, LOST, Packing, PackingProblem, pack
from simreduce.planners.synthesis.tours import MOST_EXACT, tours

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
            price=functools.partial(_cheap, network),
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
        for each in (ring, (ring[0], *ring[:0:-1])):
            load = network.load(hops(each))
            if all(network.paths[u][v] for u, v in hops(each)):
                rate = min(left[arc] / times for arc, times in load.items())
                if rate > _LEAST * max(network.capacity):
                    found[each] = found.get(each, 0.0) + rate
                    for arc, times in load.items():
                        left[arc] -= rate * times
    return list(found.items())


def _widest(network: Network, left: Sequence[float]) -> Ring | None:
    """A ring whose slowest hop has the most left, of those one on links with much left; None if
    there is none.
    """
    rooms = [
        [min(left[arc] for arc in path) if path else 0.0 for path in row] for row in network.paths
    ]
    costs = _costs(network, [1.0 / max(room, 1e-300) for room in left])
    levels = sorted(
        {room for row in rooms for room in row if room > _LEAST * max(network.capacity)},
        reverse=True,
    )
    low, high = 0, len(levels) - 1
    best: Ring | None = None
    while low <= high:
        middle = (low + high) // 2
        wide = np.where(np.array(rooms) >= levels[middle], costs, math.inf)
        ring = next(iter(tours(wide, network.tasks)), None)
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
        ring = (0, *(1 + (step + turn) % (n - 1) for step in path))
        for each in (ring, (0, *ring[:0:-1])):
            if all(network.paths[u][v] for u, v in hops(each)):
                yield each


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


def _costs(network: Network, prices: Sequence[float]) -> Floats:
    return np.array(
        [
            [sum(prices[a] for a in path) if path else math.inf for path in row]
            for row in network.paths
        ]
    )


def _cheap(network: Network, prices: Sequence[float]) -> Iterator[Ring]:
    return tours(_costs(network, prices), network.tasks)
