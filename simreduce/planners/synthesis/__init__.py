"""Trees and rings for a given graph: best rates by maximum flow, and packings that reach them.

A `Network` is a capacitated graph of ranks, switches and links: the plain data of every search.
`optimum` has the best rates; `trees` and `rings` pack trees and rings whose shares add up to them.
Nothing here knows topologies or plans.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from simreduce.computing import grouped

K = TypeVar("K", bound=Hashable)

Path = tuple[int, ...]
Edge = tuple[int, int]

MOST_RANKS = 64
"""Ranks that a search is made for at most; its time grows with their third power and more."""


@dataclass(frozen=True, slots=True)
class Network:
    """Vertices 0 to ranks-1 are the ranks, those after them switches and hosts, each with a name.

    `arcs` are directed links (from, to, capacity). An arc from a vertex to itself limits the
    transfers that cross it, and is in no cut. Capacities are rates in any unit: only their ratios
    shape a packing. `paths[u][v]` are the arcs that a transfer from rank u to rank v crosses, () if
    there is none (or u is v). `tasks` are the ranks of every machine. Networks of equal content are
    equal, so searches are cached by it.
    """

    names: tuple[str, ...]
    ranks: int
    arcs: tuple[tuple[int, int, float], ...]
    paths: tuple[tuple[Path, ...], ...]
    tasks: tuple[tuple[int, ...], ...]

    @property
    def direct(self) -> bool:
        """Whether every transfer has an arc of its own, so that trees may be packed as in the
        theorems.
        """
        return all(len(path) <= 1 for row in self.paths for path in row)

    @property
    def capacity(self) -> tuple[float, ...]:
        """The rate of every arc."""
        return tuple(rate for _, _, rate in self.arcs)

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The ordered pairs of ranks that have a path."""
        return tuple(
            (u, v) for u, row in enumerate(self.paths) for v, path in enumerate(row) if path
        )

    @property
    def symmetric(self) -> bool:
        """Whether transfers back load the arcs as those there do: every arc has a partner of the
        same rate (it may be itself) that v > u crosses exactly if u > v crosses the arc.
        """
        there = grouped((arc, (u, v)) for u, v in self.edges for arc in self.paths[u][v])
        back = {arc: [(v, u) for u, v in users] for arc, users in there.items()}
        one, other = (
            Counter((self.arcs[arc][2], *sorted(users)) for arc, users in each.items())
            for each in (there, back)
        )
        return one == other

    def load(self, edges: Sequence[Edge]) -> Mapping[int, int]:
        """How often transfers along all of `edges` cross each arc."""
        return Counter(arc for u, v in edges for arc in self.paths[u][v])

    def rate(self, edges: Sequence[Edge]) -> float:
        """The rate that transfers along all of `edges` at once can have, each the same."""
        return min(
            (self.arcs[a][2] / times for a, times in self.load(edges).items()), default=math.inf
        )

    def reverse(self) -> Network:
        """Every arc and path reversed: a broadcast there is a reduction here."""
        n = range(self.ranks)
        return Network(
            names=self.names,
            ranks=self.ranks,
            arcs=tuple((b, a, rate) for a, b, rate in self.arcs),
            paths=tuple(tuple(self.paths[v][u][::-1] for v in n) for u in n),
            tasks=self.tasks,
        )

    def costs(self, prices: Sequence[float]) -> list[list[float]]:
        """By two ranks, the sum of the prices of the arcs on their path; infinite without one."""
        return [
            [sum(prices[a] for a in path) if path else math.inf for path in row]
            for row in self.paths
        ]


def way_to(before: Mapping[K, K], end: K) -> list[K]:
    """The vertices on the way that `breadth_first` found to `end`, its start first."""
    path = [end]
    while before[path[-1]] != path[-1]:
        path.append(before[path[-1]])
    return path[::-1]


def is_connected(ranks: int, edges: Sequence[Edge]) -> bool:
    """Whether every rank reaches every other along `edges`."""
    import networkx as nx  # noqa: PLC0415 - planners that search nothing need not load it

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
        paths=tuple(
            tuple((index[u, v],) if (u, v) in index else () for v in range(n)) for u in range(n)
        ),
        tasks=tuple(tuple(task) for task in tasks) or (tuple(range(n)),),
    )


def switched_network(
    names: Sequence[str], lanes: Mapping[Edge, float], tasks: Sequence[Sequence[int]] = ()
) -> Network:
    """A `direct_network` in which every rank also has a port, of capacity 1, on one switch."""
    n, direct = len(names), direct_network(names, lanes, tasks)
    first = len(direct.arcs)
    ports = [arc for u in range(n) for arc in ((u, n, 1.0), (n, u, 1.0))]
    return Network(
        names=(*direct.names, "switch"),
        ranks=n,
        arcs=(*direct.arcs, *ports),
        paths=tuple(
            tuple(
                () if u == v else direct.paths[u][v] or (first + 2 * u, first + 2 * v + 1)
                for v in range(n)
            )
            for u in range(n)
        ),
        tasks=direct.tasks,
    )
