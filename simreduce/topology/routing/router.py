"""Which links a transfer crosses.

GPUs never forward traffic for others; every other node does unless it says `transit = false`. A
transfer between two nodes of one machine stays in it when it can.

A network may have a rule for its routes (`rules`). The route between two of its ports is then the
rule's: at once for nodes that have no other cable, and for the NICs of a machine in place of what
the search has found there. Between equal machines (`EqualMachines`) a transfer takes the NICs that
it would if all of them hung on one switch, and the search looks at the first two machines only.
Where every rail is a network of its own, that is one switch per rail: a transfer to another rail
goes within a machine, over its PCIe and host, to a NIC on the rail of the other end. It is refused
where a machine has no such path, as GPUs, and so NVLink, do not forward.

Copies beyond the reach of a GPU go through a host (`staging`). Where a network has several equal
paths, `equal_cost` says which of them a transfer takes (`switching`).

The NIC that each GPU of a machine has as its own.

Where several NICs are equally near to a GPU, the GPUs that share them take them in turn: the first
GPU the first NIC, and so on. Near means few hops, and among those few sockets.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from simreduce.computing import group_by
from simreduce.computing.arrays import AnyInts, Bools, Ints, row_starts
from simreduce.errors import TopologyError, did_you_mean
from simreduce.topology.elements import DEFAULT_REACH, natural
from simreduce.topology.routing import (
    Path,
    PathSearch,
    Route,
    RouteRows,
    Routes,
    Staging,
    join_rows,
    list_rows,
    shared_route,
    whole_route,
)
from simreduce.topology.routing.rules import EqualMachines, MachineRoutes, SearchedNetwork
from simreduce.topology.routing.switching import (
    FIRST,
    HASHED,
    SPLIT,
    Spreader,
    Switching,
    hash_ends,
    may_have_equal_paths,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import networkx as nx
    import numpy.typing as npt

    from simreduce.topology.elements import Link, Node
    from simreduce.topology.routing.rules import Bundled, RoutingRule


class Rails:
    """The GPUs' own NICs; each machine is looked at once."""

    def __init__(self, search: PathSearch) -> None:
        self._search = search
        self._dealt = functools.cache(self._deal)

    def nic(self, name: str) -> str:
        """The NIC that is a GPU's own, "" for none and for other nodes."""
        node = self._search.nodes[name]
        if node.kind != "gpu" or not node.machine:
            return ""
        return self._dealt(node.machine).get(name, "")

    def _deal(self, machine: str) -> Mapping[str, str]:
        """The NICs of a machine, dealt to the GPUs that they are nearest to."""
        names = sorted(self._search.machines[machine], key=natural)
        nodes = [self._search.nodes[name] for name in names]
        nics = [node.name for node in nodes if node.kind == "nic"]
        gpus = [node.name for node in nodes if node.kind == "gpu"] if nics else []
        sharing = group_by(gpus, lambda gpu: self._nearest(gpu, nics, machine))
        return {
            gpu: near[place % len(near)]
            for near, gpus in sharing.items()
            if near
            for place, gpu in enumerate(gpus)
        }

    def _nearest(self, gpu: str, nics: list[str], machine: str) -> tuple[str, ...]:
        hops = self._search.within(machine).hops(gpu)
        least = min((hops[nic] for nic in nics if nic in hops), default=-1)
        near = [nic for nic in nics if hops.get(nic) == least]
        if len(near) < 2:
            return tuple(near)
        sockets = {nic: self._sockets(self._search.path(gpu, nic, machine)) for nic in near}
        return tuple(nic for nic in near if sockets[nic] == min(sockets.values()))

    def _sockets(self, path: tuple[str, ...]) -> int:
        return sum(self._search.nodes[name].kind == "cpu" for name in path)


class Router:
    """Finds routes and remembers them; one belongs to each topology.

    `route` is `_route`, whose results are kept, `nic` that of `Rails`, and `nics_beyond` that of
    `Staging`. `index` gives the place of every node among the
    nodes of the topology, which `routes` takes.
    """

    def __init__(
        self,
        nodes: Mapping[str, Node],
        links: Sequence[Link],
        rule: RoutingRule | EqualMachines | None = None,
        switching: Switching = Switching(),  # noqa: B008 - a value that cannot be changed
        cut: str = "",
    ) -> None:
        self.rule, self.switching, self.cut = rule, switching, cut
        self.index = {name: place for place, name in enumerate(nodes)}
        self._nodes, self._names, self._links = nodes, tuple(nodes), links
        self._search = PathSearch(nodes, links)
        self.nic = self._equal_nic if isinstance(rule, EqualMachines) else Rails(self._search).nic
        self._staging = Staging(self._search, self.path, self.find_path)
        self.nics_beyond = self._staging.nics_beyond
        self._machines = rule if isinstance(rule, EqualMachines) else None
        network = rule.network if isinstance(rule, EqualMachines) else rule
        self._network = network or SearchedNetwork()
        self.route = functools.cache(self._route)

    def _equal_nic(self, name: str) -> str:
        """The NIC that is a GPU's own, as in the first of equal machines."""
        assert self._machines is not None  # noqa: S101 - whoever asks has looked
        each, place = self._machines.nodes, self.index[name]
        number, first = divmod(place, each)
        own = self._first_two.nic(self._names[first]) if number < self._machines.count else ""
        return self._names[self.index[own] + number * each] if own else ""

    @property
    def graph(self) -> nx.MultiDiGraph[str]:
        """The graph that is searched; see `Topology.graph`."""
        return self._search.graph

    def _route(self, source: str, target: str) -> Route:
        """The route of a transfer; raises `TopologyError` for an unknown node or without a path."""
        if self._spreader is None:
            links = self._ruled_links(source, target, staged=True)
            if links is not None:
                return whole_route(source, links)
        path, tolls = self._staging.detour(self.path(source, target))
        if len(path) > 1:
            tolls = [*tolls, *self._search.tolls.get((path[0], path[-1]), ())]
        if self._spreader is None:
            return whole_route(source, [*map(self.link, path, path[1:]), *tolls])
        path, shares = self._spreader.spread(path)
        return shared_route(path, [*shares, *((toll, 1.0) for toll in tolls)])

    def routes(self, source: Ints, target: Ints, *, bundled: bool = False) -> Routes:
        """The routes of many transfers, from and to nodes given by their places; raises
        `TopologyError` like `route`.

        With `bundled`, one link represents each of the `bundles`, where there are any.
        """
        if bundled and self._by_bundles and self.bundles:
            found = self._by_bundles.routes(source, target)
            return found._replace(shares=self.bundles.share[found.links], bundled=True)
        ruled = self._are_ruled(source, target)
        if not ruled.any():
            rows = self._look_up(source, target)
        elif ruled.all():
            rows = self._rule_rows(source, target)
        else:
            by_rule = self._rule_rows(source[ruled], target[ruled])
            others = self._look_up(source[~ruled], target[~ruled])
            rows = join_rows(len(ruled), (ruled, by_rule), (~ruled, others))
        return Routes(rows.start, rows.links, self._hold(rows.start, rows.links), rows.shares)

    def path(self, source: str, target: str) -> Path:
        """The nodes on the way, both ends included, as if all GPUs had peer access and GPUDirect,
        and no two paths were equal.
        """
        for name in (source, target):
            if name not in self._nodes:
                raise TopologyError(f"no node named {name!r}{did_you_mean(name, self._nodes)}")
        if source == target:
            return (source,)
        links = self._ruled_links(source, target, staged=False)
        if links is not None:
            return (source, *(link.target for link in links))
        home = self._nodes[source].machine
        for machine in (home, "") if home and home == self._nodes[target].machine else ("",):
            path = self._search.path(source, target, machine, self.nic)
            if path:
                return self._reroute(path)
        raise TopologyError(
            f"no route from {source!r} to {target!r}: no switch or host joins them, "
            f"and GPUs do not forward traffic for others{self.cut and '; '}{self.cut}"
        )

    def find_path(self, source: str, target: str) -> Path:
        """Like `path`; () where there is none."""
        try:
            return self.path(source, target)
        except TopologyError:
            return ()

    def link(self, source: str, target: str) -> Link:
        """The link of a hop from one node to the next."""
        return self._search.wires[source, target]

    def is_peer(self, source: str, target: str, reach: str = DEFAULT_REACH) -> bool:
        """Whether two GPUs copy to each other directly, over paths up to `reach`; False too if no
        path joins them.
        """
        path = self.find_path(source, target)
        return bool(path) and not self._staging.is_staged(path, reach)

    @functools.cached_property
    def several(self) -> bool:
        """Whether any two nodes may have equal paths, between which `equal_cost` chooses."""
        nodes, links = self._nodes, self._links
        if self._machines:
            nodes = {name: nodes[name] for name in self._names[: self._machines.nodes]}
            links = links[: 2 * self._machines.cables]
        elif self._network.hosts:
            return self._network.several
        return self._network.several or may_have_equal_paths(nodes, links)

    @property
    def choice(self) -> str:
        """Which of equal paths transfers take, and what held flows do to others, in words; "" where
        there is one path and they do nothing.
        """
        rule, more = self.switching, ""
        if rule.choice == HASHED:
            more = f", seed {rule.seed}" + (
                f", {rule.queue_pairs} queue pairs" if rule.queue_pairs > 1 else ""
            )
        said = [f"{rule.choice}{more}"] if self.several else []
        if not rule.isolated:
            part = f" {rule.congested:.0%} of the time" if rule.congested < 1.0 else ""
            said.append(f"congestion {rule.congestion}{part}")
        return ", ".join(said)

    @functools.cached_property
    def bundles(self) -> Bundled | None:
        """The bundles of links that all transfers use evenly; None if there are none."""
        if not (self.switching.choice == SPLIT and self._network.several):
            return None
        if any(node.reduces and node.kind == "switch" for node in self._nodes.values()):
            return None  # what is for one switch takes single links
        found = self._network.bundled(len(self._links))
        if found is None or (self._machines and self._first_two.several):
            return None
        links = [(link.bandwidth, link.latency) for link in self._links]
        same = all(links[i] == links[j] for i, j in enumerate(found.home.tolist()))
        return found if same else None

    @functools.cached_property
    def _by_bundles(self) -> Router | None:
        if self.bundles is None:
            return None
        network = self.bundles.rule
        rule = replace(self._machines, network=network) if self._machines else network
        return Router(self._nodes, self._links, rule, Switching(FIRST))

    @functools.cached_property
    def _spreader(self) -> Spreader | None:
        ruled = not isinstance(self._network, SearchedNetwork)
        if not self.several or (self.switching.choice == FIRST and ruled):
            return None
        areas = self._network.areas()
        switches = self._names[len(self._names) - len(areas) :]
        return Spreader(self.switching, self._search, dict(zip(switches, areas, strict=True)))

    @functools.cached_property
    def _port(self) -> Ints:
        """The port of every node in the network that has a rule, -1 for none."""
        port = np.full(len(self._names), -1, dtype=np.int64)
        hosts = np.array(self._network.hosts, dtype=np.int64)
        port[hosts] = np.arange(len(hosts))
        return port

    @functools.cached_property
    def _only_port(self) -> Ints:
        """Likewise, of the nodes that have no other cable."""
        if self._machines or not self._network.hosts:
            return self._port
        cables = np.bincount(
            [self.index[link.source] for link in self._links], minlength=len(self._names)
        )
        return np.where(cables == 1, self._port, -1)

    def _are_ruled(self, source: Ints, target: Ints) -> Bools:
        """Whether a rule has the whole route: of equal machines, or between ports of a network."""
        if self.switching.queue_pairs > 1 and self._spreader:
            return np.zeros(len(source), dtype=np.bool_)  # rules know single paths
        ruled: Bools = np.minimum(self._only_port[source], self._only_port[target]) >= 0
        if self._machines:
            ruled = np.maximum(source, target) < self._machines.count * self._machines.nodes
            if self._spreader and self.switching.choice == HASHED and self._first_two.several:
                ruled[:] = False  # inside machines too, the ends' own names choose
        return ruled

    def _rule_rows(self, source: Ints, target: Ints) -> RouteRows:
        """Rows of the links of `route`, by the rule."""
        number = None
        if self._spreader and self.switching.choice == HASHED:
            names, seed = self._names, self.switching.seed
            ends = zip(source.tolist(), target.tolist(), strict=True)
            hashes = [hash_ends(seed, names[a], names[b]) for a, b in ends]
            number = np.array(hashes, dtype=np.uint64)

        def across(one: Ints, other: Ints, rows: Bools | slice = slice(None)) -> RouteRows:
            return self._across(one, other, None if number is None else number[rows])

        if self._machines:
            return self._machine_routes(staged=True).rows(source, target, across)
        return across(self._only_port[source], self._only_port[target])

    def _across(
        self, source: Ints, target: Ints, number: npt.NDArray[np.uint64] | None = None
    ) -> RouteRows:
        """Rows of links from port to port of the network, by its rule or over its equal paths.

        `number` chooses one of these for each row, unless they all share the bytes.
        """
        network, spreader = self._network, self._spreader
        if spreader is None:
            return RouteRows(*network.between(source, target))
        if number is None and self.switching.choice == FIRST:
            number = self._seat[target]
        moves = source != target
        far = self._switch[source] != self._switch[target]
        between = spreader.rows(self._switch[source[far]], self._switch[target[far]],
                                None if number is None else number[far])  # fmt: skip
        up, down = (
            RouteRows(np.arange(moves.sum() + 1), (2 * (network.first + port[moves]) + back))
            for back, port in enumerate((source, target))
        )
        return join_rows(len(source), (moves, up), (far, between), (moves, down))

    def _one_across(self, source: Ints, target: Ints) -> RouteRows:
        """One path from port to port for each row: that of the rule, or any if links are cut."""
        if isinstance(self._network, SearchedNetwork):
            return self._across(source, target, np.zeros(len(source), dtype=np.uint64))
        return RouteRows(*self._network.between(source, target))

    @functools.cached_property
    def _switch(self) -> Ints:
        """The switch of every port, by its place."""
        first, ports = self._network.first, len(self._network.hosts)
        cables = self._links[2 * first : 2 * (first + ports) : 2]
        return np.array([self.index[cable.target] for cable in cables], dtype=np.int64)

    @functools.cached_property
    def _seat(self) -> npt.NDArray[np.uint64]:
        """The place of every port among those on its switch."""
        assert self._spreader is not None  # noqa: S101 - it asks
        names = [self._names[host] for host in self._network.hosts]
        return np.array([self._spreader.seat(name) for name in names], dtype=np.uint64)

    def _ruled_links(self, source: str, target: str, *, staged: bool) -> list[Link] | None:
        """The links of `route`, or of `path` unless `staged`; None if no rule has them all."""
        if not self._network.hosts or not (source in self.index and target in self.index):
            return None
        a, b = self.index[source], self.index[target]
        if self._machines:
            if max(a, b) >= self._machines.count * self._machines.nodes:
                return None
            links = self._machine_routes(staged=staged).row(a, b, self._one_across)
        elif min(self._only_port[a], self._only_port[b]) < 0:
            return None
        else:
            ends = (self._only_port[np.array([end])] for end in (a, b))
            links = self._one_across(*ends).links.tolist()
        return [self._links[link] for link in links]

    @functools.cached_property
    def _first_two(self) -> Router:
        """The router of the first two of equal machines."""
        assert self._machines is not None  # noqa: S101 - whoever asks has looked
        return Router(*self._machines.first_two(self._nodes, self._links), switching=self.switching)

    def _machine_routes(self, *, staged: bool) -> MachineRoutes:
        """The links between equal machines; unless `staged` those of the direct paths, without
        hosts and tolls.
        """
        assert self._machines is not None  # noqa: S101 - likewise
        first_two = self._first_two

        def find(source: str, target: str) -> list[tuple[int, float]]:
            if staged:
                found = first_two.route(source, target)
                return [*zip(found.links, found.shares, strict=True)]
            path = first_two.path(source, target)
            return [(link.id, 1.0) for link in map(first_two.link, path, path[1:])]

        return MachineRoutes(self._machines, self._names, find)

    def _look_up(self, source: Ints, target: Ints) -> RouteRows:
        """Rows of the links of `route`, which is called once for each pair."""
        names, many = self._names, len(self._names)
        pairs, which = np.unique(source * many + target, return_inverse=True)
        found = [self.route(names[pair // many], names[pair % many]) for pair in pairs.tolist()]
        return list_rows(zip(each.links, each.shares, strict=True) for each in found).take(which)

    @functools.cached_property
    def _holds(self) -> Bools:
        return np.array([link.holds_lane for link in self._links], dtype=np.bool_)

    def _hold(self, start: Ints, links: AnyInts) -> Bools:
        """For rows of links, whether all of each hold their sender's lane."""
        count: Ints = np.diff(start)
        holding = count if self._holds.all() else np.zeros_like(count)
        if self._holds.any() and not self._holds.all():
            holding = np.diff(row_starts(self._holds[links].view(np.int8))[start])
        same: Bools = holding == count
        return same

    def _reroute(self, path: Path) -> Path:
        """`path`, with its way through the network by the network's rule."""
        if not self._network.hosts:
            return path
        ports = [int(self._port[self.index[name]]) for name in path]
        hops = [link.id for link in map(self.link, path, path[1:])]
        cables = [2 * (self._network.first + port) if port >= 0 else -2 for port in ports]
        enter = [place for place, hop in enumerate(hops) if hop == cables[place]]
        leave = [place for place, hop in enumerate(hops, 1) if hop == cables[place] + 1]
        if not (enter and leave and enter[0] < leave[-1]):
            return path
        a, b = enter[0], leave[-1]
        ends = (np.array([ports[place]]) for place in (a, b))
        across = [self._links[link] for link in self._one_across(*ends).links.tolist()]
        return (*path[: a + 1], *(link.target for link in across), *path[b + 1 :])
