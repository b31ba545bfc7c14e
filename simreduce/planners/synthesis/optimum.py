"""Best rates of collectives on a network, exact by maximum flow, each with the bottleneck that
proves it.

A rate is *algorithm bandwidth*: bytes of the whole tensor per second, in the unit of the network's
capacities. A byte may take any path along the arcs. Switches forward and may be on either side of a
cut, but neither sum nor duplicate. `B+(S)` is the capacity of the arcs that
leave S.

- broadcast from r: min over v of maxflow(r, v) (Edmonds 1973: so many arc-disjoint arborescences
  exist);
- all-gather: M / t with t >= (M/n) max |S & ranks| / B+(S), over all S that lack a rank
  (ForestColl, Zhao et al. 2024,
  arXiv 2402.06787, who also show that it is reached);
- all-reduce: an in-tree sums every byte at some rank, its root, and an out-tree broadcasts it.
  Where links are direct and equal in both directions the two use the same links, each in one
  direction, and the best rate is the *strength* min c(E(P)) / (|P| - 1) over partitions P of the
  ranks (Nash-Williams 1961, Tutte 1961, fractionally). Elsewhere a linear programme over the cuts
  of both shares capacities out between in- and out-trees.

The best all-reduce where links differ by direction or are shared: a linear programme over cuts.

Rank r is the root of a rate w(r); capacities are shared out, c = c_in + c_out. All w can be handed
out at once if and only if for every set T of vertices that holds a rank, c_out enters T at sum(w) -
w(T) at least: by Edmonds' theorem for branchings with given roots (Frank 1978 for the fractional
form, ForestColl for switches). Summing up is the same in the reversed network with c_in. The sets
are exponentially many, so they are added as maximum flows find them broken. A switch sends on what
it receives, once: c_out and c_in each leave it as they enter it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from simreduce.computing import breadth_first
from simreduce.computing.arrays import Floats
from simreduce.errors import InternalError
from simreduce.planners.synthesis import Network

if TYPE_CHECKING:
    import networkx as nx

Amount = int | Fraction


def max_flow(
    arcs: Iterable[tuple[int, int, Amount]], source: int, sink: int
) -> tuple[Amount, frozenset[int]]:
    """The maximum flow from `source` to `sink`, and the vertices on the source's side of a minimum
    cut: of all minimum cuts, the one nearest to the source.

    By networkx, exact: capacities are whole numbers or fractions.
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
    # The smallest side of a cut; networkx's minimum_cut gives the largest.
    side = breadth_first(
        source,
        lambda v: (to for to, arc in residual[v].items() if arc["flow"] < arc["capacity"]),
    )
    return residual.graph["flow_value"], frozenset(side)


def maximise(goal: Floats, table: Any, limit: Floats) -> tuple[float, Floats, Floats]:
    """Find max goal.x over x >= 0 with table x <= limit: the value, x at a vertex, and the price of
    every row. `table` is an array or one of scipy's sparse arrays.

    Equal inputs give equal answers: the solver is single-threaded and is given no clock.

    HiGHS (Huangfu and Hall 2018) solves it, through scipy, which is loaded only here.
    """
    from scipy.optimize import linprog  # noqa: PLC0415 - takes a second to load

    found = linprog(-goal, A_ub=table, b_ub=limit, method="highs-ds")
    if found.x is None:
        raise InternalError(f"a packing could not be solved: {found.message}")
    return float(-found.fun), np.asarray(found.x), -np.asarray(found.ineqlin.marginals)


def maximise_first(table: Any, limit: Floats) -> tuple[float, Floats, Floats]:
    """`maximise` the first of x, which is the rate of a collective."""
    return maximise(np.eye(1, table.shape[1])[0], table, limit)


_GRAIN = 1 << 40
"""Rates are rounded to this part of the greatest for the flows, which are exact."""
_CLOSE = 1e-9


def root_and_share(network: Network) -> tuple[float, tuple[int, ...]]:
    """The best rate, and the arcs that limit it: those with a price in the optimum."""
    n, m = network.ranks, len(network.arcs)
    unit = max(network.capacity)
    # Columns: the rate, w by rank, c_out by arc, c_in by arc.
    share = np.concatenate([np.zeros((m, 1 + n)), np.eye(m), np.eye(m)], axis=1)
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
        value, point, price = maximise_first(table, limit)
        before = len(rows)
        for side in (0, 1):
            for found in _broken_cuts(network, side, value, point):
                rows.setdefault((side, found), _row(network, side, found))
        if len(rows) == before:
            return value * unit, tuple(np.flatnonzero(price[:m] > _CLOSE).tolist())


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


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best rate, in the network's unit, and what limits it.

    `parts` are sets of vertices: one for a cut (what leaves it is too little, or enters it if
    `inward`), all blocks of a partition (what joins them is too little). `arcs` are the arcs that
    leave, enter or join them.
    """

    rate: float
    parts: tuple[tuple[int, ...], ...]
    arcs: tuple[int, ...]
    inward: bool = False

    def bottleneck(self, network: Network) -> str:
        """The bottleneck in names: `cut {gpu0..gpu3}`, `cut into {gpu7}`, `partition {gpu0,gpu1}
        {gpu2}`.
        """
        if not self.parts:
            ends = (network.arcs[arc][:2] for arc in self.arcs)
            return "links " + ", ".join(f"{network.names[a]}>{network.names[b]}" for a, b in ends)
        names = [
            _set_name([network.names[v] for v in part if v < network.ranks]) for part in self.parts
        ]
        if len(names) > 1:
            return "partition " + " ".join(names)
        return f"cut {'into ' if self.inward else ''}{names[0]}"


def broadcast(network: Network, root: int) -> Optimum:
    """From rank `root` to all: the least of the maximum flows to the others."""
    arcs = _exact(network)
    flows = (max_flow(arcs, root, v) for v in range(network.ranks) if v != root)
    flow, side = min(flows, key=lambda found: (found[0], len(found[1])))
    return _cut(network, float(flow), side)


def reduce(network: Network, root: int) -> Optimum:
    """To rank `root` from all: a broadcast in the reversed network."""
    return replace(broadcast(network.reverse(), root), inward=True)


def narrowest_cut(network: Network) -> float:
    """The rate of the narrowest cut with ranks on both sides."""
    arcs = _exact(network)
    pairs = [pair for v in range(1, network.ranks) for pair in ((0, v), (v, 0))]
    return float(min(max_flow(arcs, a, b)[0] for a, b in pairs))


def all_gather(network: Network) -> Optimum:
    """Every rank has M/n bytes and ends with all M; Newton's method on the cut ratio, exact."""
    n, source, arcs = network.ranks, len(network.names), _exact(network)
    side = frozenset(range(source)) - {n - 1}
    # From above: the share that the cut at hand allows, until no cut allows less.
    while True:
        out = sum((c for a, b, c in arcs if a in side and b not in side), Fraction(0))
        share = Fraction(out) / sum(v < n for v in side)
        scaled = [(a, b, c * share.denominator) for a, b, c in arcs]
        supply = [(source, r, share.numerator) for r in range(n)]
        flows = [max_flow([*scaled, *supply], source, v) for v in range(n)]
        flow, found = min(flows, key=lambda each: each[0])
        if flow >= share.numerator * n:
            return _cut(network, float(share * n), side)
        side = found - {source}


def reduce_scatter(network: Network) -> Optimum:
    """Every rank ends with a sum of M/n bytes: an all-gather in the reversed network."""
    return replace(all_gather(network.reverse()), inward=True)


def scatter_then_gather(network: Network) -> float:
    """The rate of a best reduce-scatter followed by a best all-gather."""
    return 1 / (1 / reduce_scatter(network).rate + 1 / all_gather(network).rate)


def strength(network: Network) -> Optimum:
    """The least c(E(P)) / (|P| - 1) over partitions P of the ranks of a direct, symmetric network.

    Newton's method; the worst partition for a guess is found by the greedy algorithm for the
    Dilworth truncation of c(cut(S))/2 - guess, one minimum cut per rank (Cunningham 1985, Barahona
    1992). Exact.
    """
    n, arcs = network.ranks, _exact(network)
    parts = [frozenset([v]) for v in range(n)]
    while True:
        guess = Fraction(_capacity_between(arcs, parts)) / (2 * (len(parts) - 1))
        worse = _worst_partition(n, arcs, guess)
        if Fraction(_capacity_between(arcs, worse)) / 2 >= guess * (len(worse) - 1):
            break
        parts = worse
    block = {v: i for i, part in enumerate(parts) for v in part}
    return Optimum(
        rate=float(guess),
        parts=tuple(sorted(tuple(sorted(part)) for part in parts)),
        arcs=tuple(i for i, (a, b, _) in enumerate(network.arcs) if block[a] != block[b]),
    )


@functools.lru_cache(maxsize=64)
def all_reduce(network: Network) -> Optimum:
    """The best of all plans that sum every byte at some rank and broadcast it from there."""
    if network.direct and network.symmetric:
        return strength(network)
    rate, tight = root_and_share(network)
    return Optimum(rate, (), tight)


def ports(network: Network) -> Optimum:
    """An upper bound for all-reduces from the ports of the ranks: each byte leaves a rank and
    enters one 2 (n - 1) times, n - 1 times to be summed and n - 1 times to be broadcast.
    """
    ends = [
        [i for i, arc in enumerate(network.arcs) if arc[side] < network.ranks] for side in (0, 1)
    ]
    arcs = min(ends, key=lambda found: sum(Fraction(network.arcs[i][2]) for i in found))
    total = sum(Fraction(network.arcs[i][2]) for i in arcs)
    return Optimum(float(total / (2 * (network.ranks - 1))), (), tuple(arcs))


def best_rate(network: Network, collective: str, root: int) -> Optimum | None:
    """The best rate of a collective; None for the all-reduces whose linear programme over cuts
    would take too long.
    """
    if collective == "all_reduce":
        most = 8 if not network.direct else math.inf if network.symmetric else 16
        return all_reduce(network) if network.ranks <= most else None
    if collective in ("broadcast", "reduce"):
        return (broadcast if collective == "broadcast" else reduce)(network, root)
    return all_gather(network) if collective == "all_gather" else reduce_scatter(network)


def _worst_partition(
    n: int, arcs: Sequence[tuple[int, int, Amount]], guess: Fraction
) -> list[frozenset[int]]:
    """The partition P of least c(E(P)) - guess |P|; `arcs` hold every edge in both directions."""
    value: list[Fraction] = []
    blocks: list[frozenset[int]] = []
    sink = n
    for last in range(n):
        cut = [(a, b if b <= last else sink, Fraction(c) / 2) for a, b, c in arcs if a <= last]
        cut += [(last, v, y) if y > 0 else (v, sink, -y) for v, y in enumerate(value)]
        flow, side = max_flow(cut, last, sink)
        value.append(Fraction(flow) - sum((y for y in value if y > 0), Fraction(0)) - guess)
        # The sets that are tight at `value` and meet each other are tight together.
        merged = side.union(*(block for block in blocks if block & side))
        blocks = [*(block for block in blocks if not block & side), merged]
    return blocks


def _exact(network: Network) -> list[tuple[int, int, Amount]]:
    return [(a, b, Fraction(c)) for a, b, c in network.arcs]


def _capacity_between(
    arcs: Sequence[tuple[int, int, Amount]], parts: Sequence[frozenset[int]]
) -> Amount:
    block = {v: i for i, part in enumerate(parts) for v in part}
    return sum((c for a, b, c in arcs if block[a] != block[b]), Fraction(0))


def _cut(network: Network, rate: float, side: frozenset[int]) -> Optimum:
    across = tuple(i for i, (a, b, _) in enumerate(network.arcs) if a in side and b not in side)
    return Optimum(rate, (tuple(sorted(side)),), across)


def _set_name(names: Sequence[str]) -> str:
    """`{gpu0..gpu3}` for four or more that count on, `{gpu0,gpu2}` for others."""
    runs: list[list[str]] = []
    for name in names:
        if not (runs and _next(runs[-1][-1]) == name):
            runs.append([])
        runs[-1].append(name)
    texts = [f"{run[0]}..{run[-1]}" if len(run) > 2 else ",".join(run) for run in runs]
    return "{" + ",".join(texts) + "}"


def _next(name: str) -> str:
    stem = name.rstrip("0123456789")
    return f"{stem}{int(name[len(stem) :]) + 1}" if stem != name else ""
