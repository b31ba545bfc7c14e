"""Layouts of topologies."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from simreduce.errors import TopologyError
from simreduce.planners.layouts.rings import rules_of
from simreduce.planners.layouts.sparse import SparseRow
from simreduce.planners.layouts.values import Layout, Reducer
from simreduce.planners.synthesis.network import Network, Path, is_connected

if TYPE_CHECKING:
    from simreduce.topology import Folded, Topology


@dataclass(frozen=True, slots=True)
class _Wiring:
    """The wiring of a topology."""

    topology: Topology

    def network(
        self, ranks: tuple[str, ...], tasks: tuple[tuple[int, ...], ...], *, routed: bool
    ) -> Network:
        return _network(self.topology, ranks, tasks, routed)

    def joined(self, ranks: tuple[str, ...]) -> bool:
        return joined(self.topology, ranks)


@functools.lru_cache(maxsize=32)
def joined(topology: Topology | Folded, ranks: tuple[str, ...]) -> bool:
    """Whether the route of every two ranks passes GPUs and their switches only. Of folded machines
    nothing joins all.
    """
    from simreduce.topology import Folded  # noqa: PLC0415 - it loads networkx, which --help need not

    if isinstance(topology, Folded):
        return False
    kinds = {name: topology.nodes[name].kind for name in topology.nodes}
    try:
        ways = [topology.router.route(a, b).path for a, b in itertools.permutations(ranks, 2)]
    except TopologyError:
        return False
    return all(kinds[node] in ("gpu", "nvswitch") for way in ways for node in way)


@functools.lru_cache(maxsize=32)
def _network(
    topology: Topology, ranks: tuple[str, ...], tasks: tuple[tuple[int, ...], ...], routed: bool
) -> Network:
    """The links that the engine's routes between `ranks` cross, with their achievable rates in
    bytes/s. Tolls are loops: they take capacity and join nothing.
    """
    linked = {(link.source, link.target) for link in topology.links if not link.is_toll}
    n = range(len(ranks))
    pairs = [(u, v) for u in n for v in n if u != v]
    direct = [(u, v) for u, v in pairs if (ranks[u], ranks[v]) in linked]
    used = direct if is_connected(len(ranks), direct) and not routed else pairs
    crossed = {(u, v): _links(topology, ranks[u], ranks[v]) for u, v in used}
    links = {
        link: arc
        for arc, link in enumerate(sorted({link for path in crossed.values() for link in path}))
    }
    ends = [topology.links[link] for link in links]
    names = dict.fromkeys((*ranks, *(name for link in ends for name in (link.source, link.target))))
    vertex = {name: i for i, name in enumerate(names)}
    return Network(
        names=tuple(names),
        ranks=len(ranks),
        arcs=tuple(
            (
                vertex[link.source],
                vertex[link.source if link.is_toll else link.target],
                link.bandwidth,
            )
            for link in ends
        ),
        paths=tuple(
            tuple(tuple(links[link] for link in crossed.get((u, v), ())) for v in n) for u in n
        ),
        tasks=tasks,
    )


def _links(topology: Topology, source: str, target: str) -> Path:
    """The links of a route, tolls included, or of the first of its equal paths."""
    try:
        found = topology.router.route(source, target)
    except TopologyError:
        return ()
    hops = set(itertools.pairwise(found.path))
    ends = [topology.links[link] for link in found.links]
    return tuple(link.id for link in ends if link.is_toll or (link.source, link.target) in hops)


def _nics(topology: Topology) -> tuple[int, ...]:
    """By rank, the place of its NIC among those that GPUs of its machine have; -1 for none."""
    places: dict[str, dict[str, int]] = {}
    found = []
    for name in topology.devices:
        nic = topology.router.nic(name)
        place = places.setdefault(topology.nodes[name].machine, {})
        found.append(place.setdefault(nic, len(place)) if nic else -1)
    return tuple(found)


def node_names(shape: Layout, topology: Topology) -> tuple[str, ...]:
    """The node of each task of a layout."""
    return tuple(topology.nodes[shape.ranks[task[0]]].machine for task in shape.tasks)


def layout(topology: Topology | Folded) -> Layout:
    """The layout of a topology, or of one of the machines of a folded one."""
    from simreduce.topology import Folded  # noqa: PLC0415 - it loads networkx, which --help need not

    if isinstance(topology, Folded):
        pair = layout(topology.pair)
        one = pair.only([rank for rank, name in enumerate(pair.ranks) if name in topology.devices])
        return replace(
            one,
            hosts=tuple(host if host in topology.hosts else "" for host in one.hosts),
            reducers=(),
            machines=topology.machines,
            one_task=topology.one_task,
            wiring=None,
        )
    ranks = topology.devices
    index = {name: rank for rank, name in enumerate(ranks)}
    tasks: dict[str, list[int]] = {}
    for rank, name in enumerate(ranks):
        tasks.setdefault(topology.nodes[name].machine, []).append(rank)
    hosts: dict[str, str] = {}
    for name in topology.hosts:
        hosts.setdefault(topology.nodes[name].machine, name)
    links: list[dict[int, int]] = [{} for _ in ranks]
    for link in topology.links:
        if link.source in index and link.target in index and not link.is_toll:
            row, column = links[index[link.source]], index[link.target]
            row[column] = row.get(column, 0) + link.lanes
    near: dict[str, list[str]] = {node.name: [] for node in topology.nodes.values() if node.reduces}
    for link in topology.links:
        if link.source in near and not link.is_toll:
            near[link.source].append(link.target)
    at: dict[str, list[int]] = {}
    for rank, name in enumerate(ranks if near else ()):
        at.setdefault(topology.router.nic(name) or "", []).append(rank)
    return Layout(
        ranks=ranks,
        tasks=tuple(tuple(task) for task in tasks.values()),
        hosts=tuple(hosts.get(machine, "") for machine in tasks),
        links=tuple(SparseRow(row, len(ranks)) for row in links),
        reducers=tuple(
            Reducer(
                name,
                tuple(sorted(index[t] for t in ends if t in index)),
                tuple(t for t in ends if t in near),
                topology.nodes[name].kind == "nvswitch",
                tuple(sorted(rank for t in ends if t for rank in at.get(t, ()))),
            )
            for name, ends in near.items()
        ),
        nics=_nics(topology),
        rules=rules_of(topology.nodes[ranks[0]].model if ranks else ""),
        wiring=_Wiring(topology),
    )
