"""The best all-reduce where links differ by direction or are shared: a linear programme over cuts.

Rank r is the root of a rate w(r); capacities are shared out, c = c_in + c_out. All w can be handed
out at once if and only if for every set T of vertices that holds a rank, c_out enters T at sum(w) -
w(T) at least: by Edmonds' theorem for branchings with given roots (Frank 1978 for the fractional
form, ForestColl for switches). Summing up is the same in the reversed network with c_in. The sets
are exponentially many, so they are added as maximum flows find them broken. A switch sends on what
it receives, once: c_out and c_in each leave it as they enter it.

Maximum flow and minimum cut by networkx, exact: capacities are whole numbers or fractions.

Linear programmes, solved by HiGHS (Huangfu and Hall 2018) through scipy, which is loaded only
here.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from simreduce.computing.arrays import Floats
from simreduce.errors import InternalError
from simreduce.planners.synthesis.network import Network

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


def maximise(goal: Floats, table: Any, limit: Floats) -> tuple[float, Floats, Floats]:
    """Find max goal.x over x >= 0 with table x <= limit: the value, x at a vertex, and the price of
    every row. `table` is an array or one of scipy's sparse arrays.

    Equal inputs give equal answers: the solver is single-threaded and is given no clock.
    """
    from scipy.optimize import linprog  # noqa: PLC0415 - takes a second to load

    found = linprog(-goal, A_ub=table, b_ub=limit, method="highs-ds")
    if found.x is None:
        raise InternalError(f"a packing could not be solved: {found.message}")
    return float(-found.fun), np.asarray(found.x), -np.asarray(found.ineqlin.marginals)


_GRAIN = 1 << 40
"""Rates are rounded to this part of the greatest for the flows, which are exact."""
_CLOSE = 1e-9


def root_and_share(network: Network) -> tuple[float, tuple[int, ...]]:
    """The best rate, and the arcs that limit it: those with a price in the optimum."""
    n, m = network.ranks, len(network.arcs)
    unit = max(network.capacity)
    # Columns: the rate, w by rank, c_out by arc, c_in by arc.
    share = np.concatenate([np.zeros((m, 1 + n)), np.eye(m), np.eye(m)], axis=1)
    goal = np.zeros(1 + n + 2 * m)
    goal[0] = 1.0
    total = np.zeros((1, 1 + n + 2 * m))
    total[0, 0], total[0, 1 : 1 + n] = -1.0, 1.0  # w sums up to the rate at most
    through = np.array(
        [_net_flow_row(network, side, v) for v in range(n, len(network.names)) for side in (0, 1)]
    )
    through = np.concatenate(
        [total, through.reshape(-1, total.shape[1]), -through.reshape(-1, total.shape[1])]
    )
    capacity = np.array(network.capacity) / unit
    rows = {
        (side, frozenset([v])): _row(network, side, frozenset([v]))
        for v in range(n)
        for side in (0, 1)
    }
    while True:
        table = np.concatenate([share, through, np.array(list(rows.values()))])
        limit = np.concatenate([capacity, np.zeros(len(table) - m)])
        value, point, price = maximise(goal, table, limit)
        before = len(rows)
        for side in (0, 1):
            for found in _broken_cuts(network, side, value, point):
                rows.setdefault((side, found), _row(network, side, found))
        if len(rows) == before:
            tight = price[:m] > _CLOSE
            return value * unit, tuple(int(a) for a in np.flatnonzero(tight))


def _row(network: Network, side: int, inside: frozenset[int]) -> Floats:
    """As a row: rate - w(T) - c(T) <= 0, c that of out-arcs into T (side 0) or of in-arcs out of T
    (side 1).
    """
    n, m = network.ranks, len(network.arcs)
    row = np.zeros(1 + n + 2 * m)
    row[0] = 1.0
    row[[1 + v for v in inside if v < n]] = -1.0
    for arc, ends in enumerate(network.arcs):
        outer, inner = ends[side], ends[1 - side]
        if inner in inside and outer not in inside:
            row[1 + n + side * m + arc] = -1.0
    return row


def _net_flow_row(network: Network, side: int, switch: int) -> Floats:
    """The flow into `switch` minus the flow out of it, of c_out (side 0) or c_in (side 1)."""
    n, m = network.ranks, len(network.arcs)
    row = np.zeros(1 + n + 2 * m)
    for arc, (a, b, _) in enumerate(network.arcs):
        row[1 + n + side * m + arc] = (b == switch) - (a == switch)
    return row


def _broken_cuts(network: Network, side: int, value: float, point: Floats) -> list[frozenset[int]]:
    """For every rank, a set around it whose constraint the point breaks, if there is one."""
    n, m = network.ranks, len(network.arcs)
    grains = [round(float(x) * _GRAIN) for x in point]
    source = len(network.names)
    arcs = [(source, r, grains[1 + r]) for r in range(n)]
    ends = [(a, b) for a, b, _ in network.arcs]
    arcs += [(e[side], e[1 - side], grains[1 + n + side * m + i]) for i, e in enumerate(ends)]
    found = []
    for v in range(n):
        flow, near = max_flow(arcs, source, v)
        if flow < (value - _CLOSE) * _GRAIN:
            found.append(frozenset(range(source)) - near)
    return found
