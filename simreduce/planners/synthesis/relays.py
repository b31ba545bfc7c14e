"""All-to-alls that relay over other ranks: the best rate as a multicommodity flow, as paths.

Every rank sends every other the same amount, along edges that may pass other ranks. The greatest
common amount is a linear programme (maximum concurrent flow; Shahrokhi and Matula 1990) in what
every source sends over every edge. Of all best flows the one with the least load is taken, and is
cut into paths.
"""

from __future__ import annotations

import functools
import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from simreduce.computing.arrays import Floats
from simreduce.errors import StrategyError
from simreduce.planners.synthesis.network import Edge, Network, breadth_first, way_to
from simreduce.planners.synthesis.optimum import Optimum, maximise, maximise_first
from simreduce.planners.synthesis.packing import Packing
from simreduce.planners.synthesis.trees import SpanningTree, Trees, search_in_order

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
    paths = [path for source in range(n) for path in _paths(edges, source, flows[source], least)]
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


def _paths(
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
