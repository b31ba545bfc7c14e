"""Networks to search, and slow, obviously right answers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations

import networkx as nx
from hypothesis import strategies as st

from simreduce.planners.synthesis import Network, direct_network, is_connected

DOUBLE = ((0, 3), (3, 2), (2, 1), (1, 5), (5, 6), (6, 7), (7, 4), (4, 0))
SINGLE = ((0, 1), (1, 3), (3, 7), (7, 5), (5, 4), (4, 6), (6, 2), (2, 0))


def dgx1(gpus=range(8), double=2.0, single=1.0, without=()) -> Network:
    """The NVLinks of a DGX-1 among `gpus`, in units of one link; `without` are directed links left
    out.
    """
    place = {gpu: i for i, gpu in enumerate(gpus)}
    lanes = {}
    for cables, rate in ((DOUBLE, double), (SINGLE, single)):
        for a, b in cables:
            lanes.update({(a, b): rate, (b, a): rate})
    kept = {
        (place[a], place[b]): c
        for (a, b), c in lanes.items()
        if {a, b} <= set(place) and (a, b) not in without
    }
    return direct_network([f"gpu{gpu}" for gpu in gpus], kept)


def subsets(sizes=range(2, 9)) -> Iterator[tuple[int, ...]]:
    """The sets of GPUs that their NVLinks connect."""
    for size in sizes:
        for gpus in combinations(range(8), size):
            if is_connected(size, dgx1(gpus).edges):
                yield gpus


@cache
def unlike_subsets(sizes=range(2, 8)) -> list[tuple[int, ...]]:
    """One of each set of subsets that are the same graph."""
    found: list[tuple[nx.Graph, tuple[int, ...]]] = []
    for gpus in subsets(sizes):
        graph = nx.Graph()
        graph.add_weighted_edges_from(dgx1(gpus).arcs)
        if not any(
            nx.is_isomorphic(graph, other, edge_match=lambda a, b: a == b) for other, _ in found
        ):
            found.append((graph, gpus))
    return [gpus for _, gpus in found]


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    """Every partition of a list."""
    if not items:
        yield []
        return
    first, *rest = items
    for blocks in partitions(rest):
        for i, block in enumerate(blocks):
            yield [*blocks[:i], [first, *block], *blocks[i + 1 :]]
        yield [[first], *blocks]


def brute_strength(network: Network) -> float:
    """The strength, by trying every partition of the ranks."""
    best = float("inf")
    for blocks in partitions(list(range(network.ranks))):
        if len(blocks) > 1:
            home = {v: i for i, block in enumerate(blocks) for v in block}
            joining = sum(c for a, b, c in network.arcs if home[a] != home[b]) / 2
            best = min(best, joining / (len(blocks) - 1))
    return best


def brute_all_gather(network: Network) -> float:
    """M/t of the narrowest set of ranks, by trying every one (direct networks only)."""
    n = network.ranks
    sets = (set(s) for size in range(1, n) for s in combinations(range(n), size))
    return min(
        n * sum(c for a, b, c in network.arcs if a in s and b not in s) / len(s) for s in sets
    )


def flow(network: Network, source: int, target: int) -> float:
    """networkx's maximum flow."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(network.names)))
    for a, b, c in network.arcs:
        graph.add_edge(a, b, capacity=c)
    return float(nx.maximum_flow_value(graph, source, target))


@st.composite
def digraphs(draw: st.DrawFn, most: int = 6) -> Network:
    """Strongly connected weighted digraphs: a ring through all ranks, and arcs besides."""
    n = draw(st.integers(2, most))
    weights = st.sampled_from([1.0, 2.0, 3.0, 0.5, 24 / 7])
    lanes = {(v, (v + 1) % n): draw(weights) for v in range(n)}
    pairs = [(u, v) for u in range(n) for v in range(n) if u != v]
    for pair in draw(st.lists(st.sampled_from(pairs), max_size=2 * n, unique=True)):
        lanes[pair] = draw(weights)
    return direct_network([f"gpu{i}" for i in range(n)], lanes)


@st.composite
def graphs(draw: st.DrawFn, most: int = 6) -> Network:
    """As `digraphs`, both directions alike."""
    one_way = draw(digraphs(most))
    lanes = {}
    for a, b, c in one_way.arcs:
        lanes.update({(a, b): c, (b, a): c})
    return direct_network(one_way.names, lanes)
