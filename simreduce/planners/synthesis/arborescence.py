"""Minimum spanning trees (Prim 1957) and arborescences (Chu and Liu 1965, Edmonds 1967).

networkx has both, but its arborescence takes 16 times (32 ranks) to 43 times (8 ranks) as long, and
its spanning trees cannot prefer shallow ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from simreduce.planners.synthesis.network import Edge

Costs = Sequence[Sequence[float]]
"""`costs[u][v]` of the edge from u to v; infinite where there is none."""


def spanning_tree(
    costs: Costs, root: int, close: float, deepest: float = math.inf
) -> list[Edge] | None:
    """Edges (parent, child) of a cheapest tree, parents first; `costs` are symmetric. None if it
    does not span.

    Of edges whose costs differ by less than `close`, the one nearest to the root is taken: the tree
    is shallow. No rank is deeper than `deepest`; with that, the tree is cheap but need not be the
    cheapest.
    """
    n = len(costs)
    depth = {root: 0}
    offer = [(costs[root][v], 0, root) for v in range(n)]
    edges: list[Edge] = []
    while len(depth) < n:
        outside = [v for v in range(n) if v not in depth]
        least = min(offer[v][0] for v in outside)
        if math.isinf(least):
            return None
        child = min(
            (v for v in outside if offer[v][0] <= least + close), key=lambda v: (offer[v][1], v)
        )
        parent = offer[child][2]
        edges.append((parent, child))
        depth[child] = depth[parent] + 1
        if depth[child] >= deepest:
            continue
        row = costs[child]
        for v in outside:
            cost, height, _ = offer[v]
            if row[v] < cost - close or (row[v] <= cost + close and depth[child] < height):
                offer[v] = (row[v], depth[child], child)
    return edges


def arborescence(costs: Costs, root: int) -> list[Edge] | None:
    """Edges (parent, child) of a cheapest tree that leads away from `root`, parents first. None if
    it does not span.
    """
    n = len(costs)
    weights = {
        (u, v): costs[u][v]
        for u in range(n)
        for v in range(n)
        if v not in (u, root) and costs[u][v] < math.inf
    }
    before = _cheapest(set(range(n)), weights, root, n)
    return None if before is None else in_order(before, root)


def in_order(before: Mapping[int, int], root: int) -> list[Edge]:
    """(parent, child) by child -> parent, breadth first."""
    children: dict[int, list[int]] = {}
    for child, parent in sorted(before.items()):
        children.setdefault(parent, []).append(child)
    edges: list[Edge] = []
    frontier = [root]
    while frontier:
        layer = [(parent, child) for parent in frontier for child in children.get(parent, ())]
        edges += layer
        frontier = [child for _, child in layer]
    return edges


def _cheapest(
    vertices: set[int], weights: Mapping[Edge, float], root: int, fresh: int
) -> dict[int, int] | None:
    """The parent of every child in a cheapest arborescence; `fresh` is a number for the first
    vertex made by contraction.
    """
    best: dict[int, tuple[float, int]] = {}
    for (u, v), weight in weights.items():
        if v not in best or (weight, u) < best[v]:
            best[v] = (weight, u)
    if len(best) < len(vertices) - 1:
        return None
    cycle = _cycle({v: u for v, (_, u) in best.items()}, root)
    if not cycle:
        return {v: u for v, (_, u) in best.items()}
    contracted: dict[Edge, tuple[float, Edge]] = {}
    for (u, v), weight in weights.items():
        if u in cycle and v in cycle:
            continue
        reduced = weight - best[v][0] if v in cycle else weight
        edge = (fresh if u in cycle else u, fresh if v in cycle else v)
        offer = (reduced, (u, v))
        if edge not in contracted or offer < contracted[edge]:
            contracted[edge] = offer
    inner = _cheapest(
        (vertices - cycle) | {fresh},
        {edge: cost for edge, (cost, _) in contracted.items()},
        root,
        fresh + 1,
    )
    if inner is None:
        return None
    before = {v: best[v][1] for v in cycle}
    for v, u in inner.items():
        tail, head = contracted[u, v][1]
        before[head] = tail
    return before


def _cycle(before: Mapping[int, int], root: int) -> set[int]:
    """The vertices of one cycle of child -> parent, empty if there is none."""
    clear = {root}
    for start in sorted(before):
        path: list[int] = []
        v = start
        while v not in clear and v not in path:
            path.append(v)
            v = before[v]
        if v not in clear:
            return set(path[path.index(v) :])
        clear.update(path)
    return set()
