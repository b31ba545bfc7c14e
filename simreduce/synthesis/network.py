"""What transfers between ranks compete for: the plain data that every search works on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

Way = tuple[int, ...]
Edge = tuple[int, int]

MOST_RANKS = 64
"""Ranks that a search is made for at most; its time grows with their third power and more."""


@dataclass(frozen=True, slots=True)
class Network:
    """Vertices 0 to ranks-1 are the ranks, those after them switches and hosts; `names` is what
    people call them.

    `arcs` are directed links (from, to, capacity); one from a vertex to itself only limits the
    transfers whose ways hold it, and no cut knows it. Capacities are rates in one unit, whichever:
    only their ratios shape a packing. `ways[u][v]` are the arcs that a transfer from rank u to rank
    v crosses, () if there is no way from u to v (or u is v). `tasks` are the ranks of every
    machine. The content is the identity: searches are remembered by it.
    """

    names: tuple[str, ...]
    ranks: int
    arcs: tuple[tuple[int, int, float], ...]
    ways: tuple[tuple[Way, ...], ...]
    tasks: tuple[tuple[int, ...], ...]

    @property
    def direct(self) -> bool:
        """Whether every transfer has an arc of its own, so that trees may be packed as in the
        theorems.
        """
        return all(len(way) <= 1 for row in self.ways for way in row)

    @property
    def capacity(self) -> tuple[float, ...]:
        """The rate of every arc."""
        return tuple(rate for _, _, rate in self.arcs)

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The ordered pairs of ranks that have a way."""
        return tuple((u, v) for u, row in enumerate(self.ways) for v, way in enumerate(row) if way)

    @property
    def pairs(self) -> tuple[Edge, ...]:
        """The pairs u < v of ranks that have ways in both directions."""
        return tuple((u, v) for u, v in self.edges if u < v and self.ways[v][u])

    @property
    def symmetric(self) -> bool:
        """Whether swapping the ends of all transfers comes to the same: every arc has one of the
        same rate (it may be itself) that is crossed on the way back whenever it is crossed on the
        way there.
        """
        there: list[Counter[Edge]] = [Counter() for _ in self.arcs]
        back: list[Counter[Edge]] = [Counter() for _ in self.arcs]
        for u, v in self.edges:
            for arc in self.ways[u][v]:
                there[arc][u, v] += 1
                back[arc][v, u] += 1
        one, other = (
            Counter(
                (rate, frozenset(users.items()))
                for rate, users in zip(self.capacity, each, strict=True)
            )
            for each in (there, back)
        )
        return one == other

    def load(self, edges: Sequence[Edge]) -> Mapping[int, int]:
        """How often transfers along all of `edges` cross each arc."""
        return Counter(arc for u, v in edges for arc in self.ways[u][v])

    def rate(self, edges: Sequence[Edge]) -> float:
        """The rate that transfers along all of `edges` at once can have, each the same."""
        return min(
            (self.arcs[a][2] / times for a, times in self.load(edges).items()), default=math.inf
        )

    def reversed(self) -> Network:
        """Every arc and way turned round: a broadcast there is a reduction here."""
        n = range(self.ranks)
        return Network(
            names=self.names,
            ranks=self.ranks,
            arcs=tuple((b, a, rate) for a, b, rate in self.arcs),
            ways=tuple(tuple(self.ways[v][u][::-1] for v in n) for u in n),
            tasks=self.tasks,
        )


def connected(ranks: int, edges: Sequence[Edge]) -> bool:
    """Whether every rank reaches every other along `edges`."""
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(ranks))
    graph.add_edges_from(edges)
    return bool(nx.is_strongly_connected(graph))


def direct_network(
    names: Sequence[str], lanes: Mapping[Edge, float], tasks: Sequence[Sequence[int]] = ()
) -> Network:
    """Ranks with links of their own between some of them: `lanes[u, v]` is the capacity from u to
    v.
    """
    n = len(names)
    present = sorted(edge for edge, rate in lanes.items() if rate > 0)
    index = {edge: arc for arc, edge in enumerate(present)}
    return Network(
        names=tuple(names),
        ranks=n,
        arcs=tuple((u, v, float(lanes[u, v])) for u, v in present),
        ways=tuple(
            tuple((index[u, v],) if (u, v) in index else () for v in range(n)) for u in range(n)
        ),
        tasks=tuple(tuple(task) for task in tasks) or (tuple(range(n)),),
    )


def switched_network(
    names: Sequence[str], lanes: Mapping[Edge, float], tasks: Sequence[Sequence[int]] = ()
) -> Network:
    """As `direct_network`, and every rank has a port besides, of capacity 1, on one switch that
    joins them all.
    """
    n = len(names)
    direct = direct_network(names, lanes, tasks)
    first = len(direct.arcs)
    ports = [arc for u in range(n) for arc in ((u, n, 1.0), (n, u, 1.0))]
    return Network(
        names=(*direct.names, "switch"),
        ranks=n,
        arcs=(*direct.arcs, *ports),
        ways=tuple(
            tuple(
                () if u == v else direct.ways[u][v] or (first + 2 * u, first + 2 * v + 1)
                for v in range(n)
            )
            for u in range(n)
        ),
        tasks=direct.tasks,
    )
