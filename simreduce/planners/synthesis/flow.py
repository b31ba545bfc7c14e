"""Maximum flow and minimum cut by networkx, exact: capacities are whole numbers or fractions."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import networkx as nx

Amount = int | Fraction
Arc = tuple[int, int, Amount]


def max_flow(arcs: Iterable[Arc], source: int, sink: int) -> tuple[Amount, frozenset[int]]:
    """The maximum flow from `source` to `sink`, and the vertices on the source's side of a minimum
    cut: of all minimum cuts, the one nearest to the source.
    """
    import networkx as nx  # noqa: PLC0415 - planners that search nothing need not load it
    from networkx.algorithms.flow import edmonds_karp  # noqa: PLC0415 - likewise

    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from((source, sink))
    for a, b, capacity in arcs:
        if graph.has_edge(a, b):
            graph[a][b]["capacity"] += capacity
        else:
            graph.add_edge(a, b, capacity=capacity)
    # The fastest of networkx here: 0.6 s for an all-gather of torus:8x8; dinitz takes 1.2 s.
    residual: nx.DiGraph[int] = edmonds_karp(graph, source, sink)
    value: Any = residual.graph["flow_value"]
    return value, _reachable(residual, source)


def _reachable(residual: nx.DiGraph[int], source: int) -> frozenset[int]:
    # The smallest side of a cut; networkx's minimum_cut gives the largest.
    seen, stack = {source}, [source]
    while stack:
        for vertex, arc in residual[stack.pop()].items():
            if vertex not in seen and arc["flow"] < arc["capacity"]:
                seen.add(vertex)
                stack.append(vertex)
    return frozenset(seen)
