"""Routes: the links that a transfer crosses, and the search of the graph for them.

`router` puts it together with `rules`, by which fat trees, dragonflies and tori give routes without
a search, and with `switching` (equal-cost paths).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from simreduce.computing import group_by
from simreduce.computing.arrays import AnyInts, Bools, Floats, Ints, ranges, row_starts
from simreduce.errors import TopologyError
from simreduce.topology.elements import (
    BOTH_WAYS,
    DEFAULT_REACH,
    OFF,
    REACHES,
    TCP,
    Link,
    Node,
    NodeKind,
    natural,
)

if TYPE_CHECKING:
    import networkx as nx


Hop: TypeAlias = "tuple[str, str]"
Path: TypeAlias = "tuple[str, ...]"
Own: TypeAlias = Callable[[str], str]
"""From a node to the NIC that is its own, "" for none."""

NODE_ATTRIBUTES = tuple(field.name for field in fields(Node) if field.name != "name")
LINK_ATTRIBUTES = tuple(
    field.name for field in fields(Link) if field.name not in ("id", "source", "target", "parallel")
)


def as_graph(nodes: Mapping[str, Node], links: Iterable[Link]) -> nx.MultiDiGraph[str]:
    """Nodes and links with their fields as attributes; the key of an edge is the link's id."""
    import networkx as nx  # noqa: PLC0415 - takes long to load; most machines do without

    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    for name, node in nodes.items():
        graph.add_node(name, **{key: getattr(node, key) for key in NODE_ATTRIBUTES})
    for link in links:
        attributes = {key: getattr(link, key) for key in LINK_ATTRIBUTES}
        graph.add_edge(link.source, link.target, link.id, **attributes)
    return graph


@dataclass(frozen=True, slots=True)
class Fan:
    """All fewest-hop paths between two nodes: `layers` of nodes from the target back to the source,
    and the predecessors of each node.
    """

    layers: tuple[Path, ...]
    before: Mapping[str, Sequence[str]]

    def bottleneck(self, wires: Mapping[Hop, Link]) -> float:
        """The highest bottleneck bandwidth of the paths, in bytes/s."""
        width = {self.layers[0][0]: math.inf}
        for layer in self.layers[:-1]:
            for name in layer:
                for prior in self.before[name]:
                    through = min(width[name], wires[prior, name].width)
                    width[prior] = max(width.get(prior, 0.0), through)
        return width[self.layers[-1][0]]


class Fans:
    """Fewest-hop paths over one graph; each source is searched once."""

    def __init__(self, graph: nx.DiGraph[str]) -> None:
        self._graph = graph
        self._search = functools.cache(self._predecessors)

    def hops(self, source: str) -> Mapping[str, int]:
        """The hops from a node to every node that it reaches."""
        return self._search(source)[1]

    def between(self, source: str, target: str, doors: Iterable[str]) -> Fan | None:
        """The paths that enter `target` from one of `doors`, None if none of these is reached."""
        all_before, hops = self._search(source)
        reached = [name for name in doors if name in hops]
        if not reached:
            return None
        least = min(hops[name] for name in reached)
        before: dict[str, Sequence[str]] = {
            target: [name for name in reached if hops[name] == least]
        }
        layers: list[Path] = [(target,)]
        while layers[-1] != (source,):
            layer = tuple(dict.fromkeys(prior for name in layers[-1] for prior in before[name]))
            before.update((name, all_before[name]) for name in layer)
            layers.append(layer)
        return Fan(tuple(layers), before)

    def _predecessors(self, source: str) -> tuple[Mapping[str, Sequence[str]], Mapping[str, int]]:
        import networkx as nx  # noqa: PLC0415 - as above

        return nx.predecessor(self._graph, source, return_seen=True)  # type: ignore[no-any-return]


def ticks(link: Link) -> int:
    """The latency of a link in units of 2^-100 s. Sums of whole ticks do not depend on their order,
    so equal paths tie exactly.
    """
    return int(math.ldexp(link.latency, 100))


class PathSearch:
    """Paths over the wires of a machine. Nothing is built before the first search: most networks
    have a rule for their routes.
    """

    def __init__(self, nodes: Mapping[str, Node], links: Sequence[Link]) -> None:
        self.nodes, self.links = nodes, links
        self.within = functools.cache(
            # Searches that stay in a machine, or go anywhere if it is "".
            lambda machine: self.fans(lambda node: node.forwards, self.machines[machine])
        )

    @functools.cached_property
    def graph(self) -> nx.MultiDiGraph[str]:
        """The graph that is searched."""
        return as_graph(self.nodes, self.links)

    @functools.cached_property
    def wires(self) -> Mapping[Hop, Link]:
        """The best link of every hop."""
        best: dict[Hop, Link] = {}
        for link in self.links:
            if link.is_toll:
                continue
            known = best.setdefault((link.source, link.target), link)
            if (-link.width, link.latency) < (-known.width, known.latency):
                best[link.source, link.target] = link
        return best

    @functools.cached_property
    def tolls(self) -> Mapping[Hop, Sequence[Link]]:
        """The tolls between two nodes, or at one."""
        tolls = (link for link in self.links if link.is_toll)
        return group_by(tolls, lambda link: (link.source, link.target))

    def entries(self, target: str, keep: Callable[[Node], bool]) -> list[str]:
        """The nodes that have a wire to `target` and that `keep` accepts."""
        before = self.graph.predecessors(target)
        return [n for n in before if keep(self.nodes[n]) and (n, target) in self.wires]

    def fans(self, keep: Callable[[Node], bool], among: Sequence[str] | None = None) -> Fans:
        """Searches `among` some nodes, or all, that enter only those that `keep` accepts."""
        import networkx as nx  # noqa: PLC0415 - as above

        # A copy: over a view of the graph a search takes 6 times (dgx1v) to 37 times
        # (gb200-nvl72) as long.
        names = list(self.nodes) if among is None else among
        kept = {name for name in names if keep(self.nodes[name])}
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(names)
        graph.add_edges_from(
            hop
            for name in names
            for hop in self.graph.out_edges(name)
            if hop[1] in kept and hop in self.wires
        )
        return Fans(graph)

    @functools.cached_property
    def machines(self) -> Mapping[str, Sequence[str]]:
        """The names of the nodes of every machine; "" has the names of all nodes."""
        return {**group_by(self.nodes, lambda name: self.nodes[name].machine), "": list(self.nodes)}

    def path(self, source: str, target: str, machine: str, own: Own = lambda _: "") -> Path:
        """The best path between two nodes, () when there is none. It stays in `machine` unless that
        is "". It prefers the `own` NICs of its ends.
        """
        if (source, target) in self.wires:
            return (source, target)
        # The source itself is no entry: it has no wire to the target.
        entries = self.entries(target, lambda node: node.forwards)
        paths = self.within(machine).between(source, target, entries)
        if paths is None:
            return ()
        if all(len(layer) == 1 for layer in paths.layers):
            return tuple(layer[0] for layer in reversed(paths.layers))
        return self._best(paths, own)

    def _best(self, paths: Fan, own: Own) -> Path:
        """Widest, then quickest, then over `own` NICs, then first by name."""
        # networkx's shortest paths add up one weight of edges; here four keys decide in turn, and
        # the second depends on the ends.
        width = paths.bottleneck(self.wires)
        source, target = paths.layers[-1][0], paths.layers[0][0]
        mine = {own(source), own(target)}
        machines = {self.nodes[source].machine, self.nodes[target].machine}
        rank: dict[str, tuple[int, int, tuple[Any, ...], Path]] = {target: (0, 0, (), (target,))}
        for layer in paths.layers[:-1]:
            for name in layer:
                if name not in rank:
                    continue
                delay, strange, keys, path = rank[name]
                node = self.nodes[name]
                strange += node.kind == "nic" and node.machine in machines and name not in mine
                for prior in paths.before[name]:
                    link = self.wires[prior, name]
                    if link.width < width:
                        continue
                    offer = (delay + ticks(link), strange, (natural(name), *keys), (prior, *path))
                    if prior not in rank or offer[:3] < rank[prior][:3]:
                        rank[prior] = offer
        return rank[source][3]


Share: TypeAlias = "tuple[Link, float]"
"""A link, and the part of a transfer's bytes that takes it."""


@dataclass(frozen=True, slots=True)
class Route:
    """A path: link ids in order, the sum of their latencies (s), the least of their bandwidths
    (bytes/s).

    `holds_lane` is true when all links hold their sender's lane; `path` names the nodes, both ends
    included. Among the links are the tolls that the copy pays. `shares` are the parts of the bytes
    that the links carry: 1 unless they are split over equal paths. Then `path` is the first of
    these, and `bandwidth` and `latency` are for all together.
    """

    links: tuple[int, ...]
    shares: tuple[float, ...]
    latency: float
    bandwidth: float
    holds_lane: bool
    path: Path


class Routes(NamedTuple):
    """Many routes; the links of route i are `links[start[i]:start[i + 1]]`.

    `shares` has one number for each link, None where all are 1; `holds_lane[i]` is as in `Route`.
    `bundled` says that a link may represent a bundle (`Bundled`): all bytes then cross one of it.
    """

    start: Ints
    links: AnyInts
    holds_lane: Bools
    shares: Floats | None = None
    bundled: bool = False

    @property
    def crossing(self) -> Floats | float:
        """The part of the bytes that pays the latency of each link."""
        return 1.0 if self.shares is None or self.bundled else self.shares


def whole_route(source: str, links: Sequence[Link]) -> Route:
    """The route of these links from a node on, of all bytes."""
    path = (source, *(link.target for link in links if not link.is_toll))
    return shared_route(path, [(link, 1.0) for link in links])


def shared_route(path: Path, shares: Sequence[Share]) -> Route:
    """The route of these links, each with the part of the bytes that takes it."""
    return Route(
        links=tuple(link.id for link, _ in shares),
        shares=tuple(share for _, share in shares),
        latency=math.fsum(link.latency * share for link, share in shares),
        bandwidth=min((link.bandwidth / share for link, share in shares), default=math.inf),
        holds_lane=all(link.holds_lane for link, _ in shares),
        path=path,
    )


class RouteRows(NamedTuple):
    """The links of many routes, and their shares, None where all are 1; as in `Routes`."""

    start: Ints
    links: AnyInts
    shares: Floats | None = None

    def pick(self, begin: Ints, size: Ints) -> RouteRows:
        """The rows of `size` links that begin at these entries."""
        places = ranges(begin, size)
        shares = None if self.shares is None else self.shares[places]
        return RouteRows(row_starts(size), self.links[places], shares)

    def take(self, which: Ints) -> RouteRows:
        """The rows of these numbers."""
        return self.pick(self.start[which], np.diff(self.start)[which])


def list_rows(found: Iterable[Iterable[tuple[int, float]]]) -> RouteRows:
    """Rows of links with their shares."""
    rows = [list(row) for row in found]
    links = np.array([link for row in rows for link, _ in row], dtype=np.int32)
    shares = np.array([share for row in rows for _, share in row], dtype=np.float64)
    start = row_starts(np.array([len(row) for row in rows], dtype=np.int64))
    return RouteRows(start, links, shares if (shares != 1.0).any() else None)


def join_rows(count: int, *parts: tuple[Bools, RouteRows | Routes]) -> RouteRows:
    """`count` rows, each of the next rows, end to end, of the parts that have it."""
    start = np.zeros(count + 1, dtype=np.int64)
    for at, rows in parts:
        start[1:][at] += np.diff(rows.start)
    np.cumsum(start, out=start)
    links, shares = np.empty(start[-1], dtype=np.int32), None
    if any(rows.shares is not None for _, rows in parts):
        shares = np.ones(start[-1])
    free = start[:-1].copy()
    for at, rows in parts:
        size = np.diff(rows.start)
        places = ranges(free[at], size)
        free[at] += size
        links[places] = rows.links
        if shares is not None and rows.shares is not None:
            shares[places] = rows.shares
    return RouteRows(start, links, shares)


XGMI = "xgmi_cdna"
"""Prefix of the classes of xGMI links between GPUs; xGMI between CPUs has another."""
HOST_XGMI = "xgmi_cpu_gpu"
"""The class of xGMI links between a CPU and a GPU."""
GPU_LINKS = ("nvlink", XGMI)
"""Prefixes of the classes of links that GPUs have for each other."""


def is_nvlink(link: Link) -> bool:
    """Whether a link is an NVLink or an xGMI link of GPUs, by its class."""
    return link.link_class.startswith(GPU_LINKS)


def links_name(link_class: str) -> str:
    """What the links of a class are called: NVLinks, or xGMI links."""
    return "xGMI links" if link_class.startswith(XGMI) else "NVLinks"


_BY_DISTANCE = (OFF, "NV", "PIX", "PXB", "P2C", "PHB", "SYS")


def path_kind(nodes: Sequence[Node], wires: Sequence[Link]) -> str:
    """NV, PIX, PXB, PHB, SYS or NET: the kind of path over `nodes`, both ends included, and the
    links between them.
    """
    between = [node.kind for node in nodes[1:-1]]
    if "cpu" not in between and all(map(is_nvlink, wires)):
        return "NV"
    if "switch" in between or not all(link.holds_lane for link in wires):
        return "NET"
    # A CPU at an end of the path is a host bridge that the path reaches, and counts like one in
    # between.
    bridges = sum(node.kind == "cpu" for node in nodes)
    if bridges:
        return "SYS" if bridges > 1 else "PHB"
    return "PXB" if between.count("pcie_switch") > 1 else "PIX"


class Staging:
    """Detours through hosts. `path` is the direct path between two nodes or raises
    `TopologyError`; `find` returns () then.
    """

    def __init__(
        self,
        search: PathSearch,
        path: Callable[[str, str], Path],
        find: Callable[[str, str], Path],
    ) -> None:
        self._nodes, self._search, self._path, self._find = search.nodes, search, path, find
        self._to_host = functools.cache(self._find_host)

    def is_staged(self, path: Path, reach: str = DEFAULT_REACH) -> bool:
        """Whether the copy whose direct path is given goes through a host, if copies go no farther
        than `reach` directly.
        """
        source, target = self._nodes[path[0]], self._nodes[path[-1]]
        if source.peer == target.peer == reach == DEFAULT_REACH:
            return False  # nothing is too far
        inside = source.kind == target.kind == "gpu" and source.machine == target.machine
        reach = min(source.peer, target.peer, reach, key=REACHES.index)
        return inside and self._is_beyond(path, reach)

    def detour(self, path: Path) -> tuple[Path, list[Link]]:
        """The path that a copy takes instead of the direct one, and the tolls of its hosts."""
        if self.is_staged(path):
            path = self._through_host(path)
            hosts = [place for place, name in enumerate(path) if self._nodes[name].kind == "cpu"]
            return path, self._tolls(path[: hosts[0]], path[hosts[-1] + 1 :])
        path, out = self._from_host(path)
        back, into = self._from_host(path[::-1])
        return back[::-1], self._tolls(path[:out], back[:into][::-1])

    def nics_beyond(self, gpu: str) -> list[str]:
        """The NICs of a GPU's machine, if it reaches some and its `gpudirect` none of them; else
        [].
        """
        paths = self._paths(gpu, "nic")
        far = all(self._is_beyond(path, self._nodes[gpu].gpudirect) for path in paths)
        return [path[-1] for path in paths] if far else []

    def _is_beyond(self, path: Path, reach: str) -> bool:
        """Whether this path stays inside a machine and is farther than `reach`."""
        nodes = [self._nodes[name] for name in path]
        wires = [self._search.wires[hop] for hop in itertools.pairwise(path)]
        kind = path_kind(nodes, wires)
        if kind == "PHB" and nodes[-1].kind == "nic" and wires[0].link_class.startswith("c2c"):
            kind = "P2C"
        return kind != "NET" and _BY_DISTANCE.index(kind) > _BY_DISTANCE.index(reach)

    def _from_host(self, path: Path) -> tuple[Path, int]:
        """The path, through a host if it begins at a GPU that is too far from its NIC, and how many
        nodes come before that host.
        """
        at = self._nic(path)
        if not at:
            return path, 0
        tcp = self._search.wires[path[at], path[at + 1]].link_class.startswith(TCP)
        begin = path[: at + 1]
        if not self._is_beyond(begin, OFF if tcp else self._nodes[path[0]].gpudirect):
            return path, 0
        begin = self._through_host(begin)
        before = next(place for place, name in enumerate(begin) if self._nodes[name].kind == "cpu")
        return (*begin, *path[at + 1 :]), before

    def _nic(self, path: Path) -> int:
        """The place of the NIC over which the path of a GPU leaves its machine, 0 for none."""
        machine = self._nodes[path[0]].machine
        leaves = machine and self._nodes[path[-1]].machine != machine
        if self._nodes[path[0]].kind != "gpu" or not leaves:
            return 0
        mine = itertools.takewhile(lambda name: self._nodes[name].machine == machine, path)
        return next(
            (place for place, name in enumerate(mine) if self._nodes[name].kind == "nic"), 0
        )

    def _through_host(self, path: Path) -> Path:
        """The path, or if no CPU is on it the path through the host nearest to its first node."""
        if any(self._nodes[name].kind == "cpu" for name in path):
            return path
        source, target = path[0], path[-1]
        out = self._to_host(source)
        if not out:
            raise TopologyError(
                f"no route from {source!r} to {target!r}: without peer access or GPUDirect a copy "
                "needs a CPU to go through"
            )
        return (*out, *self._path(out[-1], target)[1:])

    def _find_host(self, source: str) -> Path:
        """The path to the host nearest to a node; () for none."""
        paths = self._paths(source, "cpu")
        return min(paths, key=lambda path: (len(path), natural(path[-1])), default=())

    def _paths(self, source: str, kind: NodeKind) -> list[Path]:
        """The paths to all nodes of a kind in the same machine that a node reaches."""
        machine = self._nodes[source].machine
        there = [n.name for n in self._nodes.values() if n.kind == kind and n.machine == machine]
        return [path for name in there if (path := self._find(source, name))]

    def _tolls(self, out: Iterable[str], into: Iterable[str]) -> list[Link]:
        """The tolls of the nodes on the path to a host, and on the path from one, each once."""
        found = [toll for name in out for toll in self._node_tolls(name, into=False)]
        found += [toll for name in into for toll in self._node_tolls(name, into=True)]
        return list(dict.fromkeys(found))

    def _node_tolls(self, name: str, *, into: bool) -> list[Link]:
        """The tolls of a node in one direction: of each two links the first is out of the node, the
        second into it. Those of both ways are the first of their two.
        """
        return [
            toll
            for place, toll in enumerate(self._search.tolls.get((name, name), ()))
            if place % 2 == (into and not toll.link_class.endswith(BOTH_WAYS))
        ]
