"""Which links a transfer crosses.

GPUs never forward traffic for others; every other node does unless it says `transit = false`. A
transfer between two nodes of one machine stays in it when it can. Among the paths of fewest hops
the one with the highest bottleneck bandwidth is taken, then the lowest latency, then the first by
node names (gpu2 before gpu10). Of parallel links the one with the highest bandwidth is taken, then
the lowest latency, then the first in the file.

A network may come with a rule of its own (`ways`). The way between two of its ports is then by the
rule: at once for nodes that have no other cable, and else, for the NICs of a machine, in place of
what the search has found there. Between equal machines (`Copies`) a transfer takes the NICs that it
would if all of them hung on one switch, and ways are looked for between the first two only. Where
every rail is a network of its own, that is one switch per rail: a transfer to another rail goes
within a machine, over its PCIe and host, to a NIC that is on the rail of the other end; it is
refused where a machine has no such way, as GPUs, and so NVLink, do not forward.

Two GPUs of one machine that are farther apart than their `peer` says copy through the nearest host
of the sender (`topology.peer`). Where several NICs of a machine are equally near to a GPU, each of
the GPUs that share them has one of its own: the first GPU the first NIC, and so on in turn; between
equally good paths the one over that NIC is taken. Near is what is few hops away, and of that what
is on the same socket.

A GPU that is farther from its NIC than its `gpudirect` says (unless stated, than NCCL lets it be)
sends and receives over a network through the memory of its nearest host, which costs at that end
what a staged copy does; with a network of a class that begins with `tcp` all do.

Where a network has several equal paths, `equal_cost` says which of them a transfer takes.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from simreduce.errors import TopologyError, did_you_mean
from simreduce.topology.equal_cost import (
    FIRST,
    EqualCost,
    Fan,
    Search,
    Spreader,
    fan,
    search,
    ticks,
    widest,
)
from simreduce.topology.naming import natural
from simreduce.topology.peer import BOTH_WAYS, DEFAULT_REACH, OFF, TCP, beyond, staged
from simreduce.topology.ways import Copies, Ids, Ints, places, ports, starts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from simreduce.topology.graph import Link, Node, Topology
    from simreduce.topology.ways import Ways


@dataclass(frozen=True, slots=True)
class Route:
    """A path: link ids in order, the sum of their latencies (s), the least of their bandwidths
    (bytes/s).

    `holds_lane` is true when all of its links hold their sender's lane; `path` names the nodes,
    both ends included. Among the links are the figures that the copy takes: self-links of the nodes
    on the way when it is staged, and what the machine file states for the pair. `shares` are the
    parts of the bytes that the links carry: 1 unless they are split over equal paths, of which
    `path` is then the first, and `bandwidth` and `latency` those of all together.
    """

    links: tuple[int, ...]
    shares: tuple[float, ...]
    latency: float
    bandwidth: float
    holds_lane: bool
    path: tuple[str, ...]


Flags = npt.NDArray[np.bool_]
Shares = npt.NDArray[np.float64]


class Routes(NamedTuple):
    """Many routes: the links of route i are `links[start[i]:start[i + 1]]`; `holds_lane[i]` is as
    in `Route`, and so are `shares`, beside `links`, None where all are 1.
    """

    start: Ints
    links: Ids
    holds_lane: Flags
    shares: Shares | None = None


def route(topology: Topology, source: str, target: str) -> Route:
    """The path of a transfer; raises `TopologyError` when there is none or a node is unknown."""
    return topology.router.route(source, target)


def _whole(source: str, links: Sequence[Link]) -> Route:
    """The route of these links from a node on, of all bytes."""
    path = (source, *(link.target for link in links if not link.is_toll))
    return _along(path, [(link, 1.0) for link in links])


def _along(path: tuple[str, ...], shared: Sequence[tuple[Link, float]]) -> Route:
    """The route of these links, each with the part of the bytes that takes it."""
    return Route(
        links=tuple(link.id for link, _ in shared),
        shares=tuple(share for _, share in shared),
        latency=math.fsum(link.latency * share for link, share in shared),
        bandwidth=min((link.bandwidth / share for link, share in shared), default=math.inf),
        holds_lane=all(link.holds_lane for link, _ in shared),
        path=path,
    )


def _mingled(first: Flags, yes: tuple[Ints, Ids], no: tuple[Ints, Ids]) -> tuple[Ints, Ids]:
    """Rows in order: the next of `yes` where `first` is true, the next of `no` where it is false."""
    count = np.empty(len(first), dtype=np.int64)
    count[first], count[~first] = np.diff(yes[0]), np.diff(no[0])
    start = starts(count)
    links = np.empty(start[-1], dtype=np.int32)
    for chosen, (_, values) in ((first, yes), (~first, no)):
        links[places(start[:-1][chosen], count[chosen])] = values
    return start, links


class Router:
    """Finds routes and remembers them; one belongs to each topology."""

    def __init__(
        self,
        nodes: Mapping[str, Node],
        links: Sequence[Link],
        ways: Ways | Copies | None = None,
        equal_cost: EqualCost = EqualCost(),  # noqa: B008 - a value that cannot be changed
    ) -> None:
        self.ways, self.equal_cost = ways, equal_cost
        self._copies = ways if isinstance(ways, Copies) else None
        self._rule = ways.network if isinstance(ways, Copies) else ways
        self.index = {name: place for place, name in enumerate(nodes)}
        """The place of every node among the nodes of the topology: what `routes` takes."""
        self._nodes, self._names, self._links = nodes, tuple(nodes), links
        self._best: dict[tuple[str, str], Link] = {}
        self._figures: dict[tuple[str, str], list[Link]] = {}
        for link in links:
            key = (link.source, link.target)
            if link.is_toll:
                self._figures.setdefault(key, []).append(link)
                continue
            known = self._best.get(key)
            if known is None or (-link.bandwidth, link.latency) < (-known.bandwidth, known.latency):
                self._best[key] = link
        self._forward: dict[str, list[str]] = {name: [] for name in nodes}
        self._into: dict[str, list[str]] = {name: [] for name in nodes}
        for source, target in self._best:
            if self._carries(target):
                self._forward[source].append(target)
            if self._carries(source):
                self._into[target].append(source)
        self._spreader = (
            None
            if equal_cost.choice == FIRST
            else Spreader(equal_cost, nodes, links, self._best, self._areas())
        )
        self._searches: dict[tuple[str, str], Search] = {}
        self._found: dict[tuple[str, str], Route] = {}
        self._rails: dict[str, dict[str, str]] = {}
        self._holds = np.array([link.holds_lane for link in links], dtype=np.bool_)
        self._port = ports(self._rule.hosts if self._rule else (), len(nodes))
        """The port of every node in the network that has `ways`, -1 for none."""
        cables = np.bincount([self.index[link.source] for link in links], minlength=len(nodes))
        self._only_port = np.where((cables == 1) & (self._copies is None), self._port, -1)
        """Likewise, of the nodes that have no other cable, unless they are parts of machines."""

    def _areas(self) -> dict[str, int]:
        """The area of every switch of a network that has such."""
        areas = self._rule.areas() if self._rule else ()
        return dict(zip(self._names[len(self._names) - len(areas) :], areas, strict=True))

    def _carries(self, name: str) -> bool:
        node = self._nodes[name]
        return node.transit and node.kind != "gpu"

    def route(self, source: str, target: str) -> Route:
        """See the module."""
        found = self._found.get((source, target))
        if found is None:
            if self._spreader:
                found = self._routed(self.path(source, target))
            elif self._are_copied(source, target):
                found = _whole(source, self._copied_links(source, target, staged=True))
            elif self._are_ports(source, target):
                # The rule says which of several cables between two switches is meant; names do not.
                found = _whole(source, self._ruled(source, target))
            else:
                found = self._routed(self.path(source, target))
            self._found[source, target] = found
        return found

    def routes(self, source: Ints, target: Ints) -> Routes:
        """The routes of many transfers, from and to nodes given by their places; raises
        `TopologyError` like `route`.
        """
        if self._spreader:
            start, links, shares = self._looked_up(source, target)
            return Routes(start, links, self._hold(start, links), shares)
        a, b = self._only_port[source], self._only_port[target]
        ruled = (a >= 0) & (b >= 0)
        if self._rule is not None and ruled.all():
            start, links = self._rule.between(a, b)
        else:
            searched = self._searched(source[~ruled], target[~ruled])
            by_rule = (
                self._rule.between(a[ruled], b[ruled])
                if self._rule
                else (starts(a[:0]), searched[1][:0])
            )
            start, links = _mingled(ruled, by_rule, searched)
        return Routes(start, links, self._hold(start, links))

    def _searched(self, source: Ints, target: Ints) -> tuple[Ints, Ids]:
        """Rows of the links of `route`, which is asked once for each pair, of equal machines for
        the first two only.
        """
        copied = (
            np.maximum(source, target) < self._copies.count * self._copies.nodes
            if self._copies
            else None
        )
        if copied is None or not copied.any():
            return self._looked_up(source, target)[:2]
        if copied.all():
            return self._copied(source, target)
        return _mingled(
            copied,
            self._copied(source[copied], target[copied]),
            self._looked_up(source[~copied], target[~copied])[:2],
        )

    def _looked_up(self, source: Ints, target: Ints) -> tuple[Ints, Ids, Shares]:
        """Rows of the links of `route`, and their shares; it is asked once for each pair."""
        names, many = self._names, len(self._names)
        pairs, which = np.unique(source * many + target, return_inverse=True)
        found = [self.route(names[pair // many], names[pair % many]) for pair in pairs.tolist()]
        count = np.array([len(each.links) for each in found], dtype=np.int64)
        table = np.array([link for each in found for link in each.links], dtype=np.int32)
        shares = np.array([share for each in found for share in each.shares], dtype=np.float64)
        entry = places(starts(count)[:-1][which], count[which])
        return starts(count[which]), table[entry], shares[entry]

    def _copied(self, source: Ints, target: Ints) -> tuple[Ints, Ids]:
        """Rows of the links of `route` for transfers between nodes of equal machines."""
        assert self._copies is not None  # noqa: S101 - whoever asks has looked
        many = 2 * self._copies.nodes
        here, there, near, far = self._copies.of_first(source, target)
        _, example, which = np.unique(near * many + far, return_index=True, return_inverse=True)
        found = [self._as_first(int(source[one]), int(target[one]), staged=True) for one in example]
        return self._copies.rows(found, which, here, there)

    def _copied_links(self, source: str, target: str, *, staged: bool) -> list[Link]:
        """The links of `route`, or of `path`, between two nodes of equal machines."""
        assert self._copies is not None  # noqa: S101 - whoever asks has looked
        a, b = self.index[source], self.index[target]
        found = self._as_first(a, b, staged=staged)
        row = self._copies.row(found, a // self._copies.nodes, b // self._copies.nodes)
        return [self._links[link] for link in row]

    def _as_first(self, source: int, target: int, *, staged: bool) -> tuple[int, ...]:
        """The links that a transfer between equal machines would take within the first, or from it
        to the second.
        """
        assert self._copies is not None  # noqa: S101 - whoever asks has looked
        names = self._names
        _, _, near, far = self._copies.of_first(source, target)
        a, b = names[near], names[far]
        try:
            return self._first_two.route(a, b).links if staged else self._first_two.wires(a, b)
        except TopologyError as error:
            asked, meant = f"from {a!r} to {b!r}", f"from {names[source]!r} to {names[target]!r}"
            raise TopologyError(str(error).replace(asked, meant)) from None

    @functools.cached_property
    def _first_two(self) -> Router:
        """Of the first two of equal machines, with the links' own numbers, and a switch for each
        part of the network.
        """
        copies = self._copies
        assert copies is not None  # noqa: S101 - whoever asks has looked
        near = {
            name: self._nodes[name] for name in self._names[: min(copies.count, 2) * copies.nodes]
        }
        links = [
            link for link in self._links[: 2 * copies.count * copies.cables] if link.source in near
        ]
        for port, place in enumerate(copies.network.hosts[: 2 * len(copies.parts)]):
            nic, part = self._names[place], f"part {copies.parts[port % len(copies.parts)]}"
            near[part] = replace(self._nodes[nic], name=part, kind="switch", machine="")
            cable = 2 * (copies.network.first + port)
            links += [
                replace(self._links[cable], target=part),
                replace(self._links[cable + 1], source=part),
            ]
        return Router(near, links)

    def _are_ports(self, source: str, target: str) -> bool:
        """Whether the rule of a network has the whole way between them."""
        return all(
            name in self.index and self._only_port[self.index[name]] >= 0
            for name in (source, target)
        )

    def _are_copied(self, source: str, target: str) -> bool:
        """Whether both are nodes of equal machines."""
        ends = [self.index.get(name, len(self._names)) for name in (source, target)]
        return self._copies is not None and max(ends) < self._copies.count * self._copies.nodes

    def _hold(self, start: Ints, links: Ids) -> Flags:
        """For rows of links, whether all of each hold their sender's lane."""
        count: Ints = np.diff(start)
        holding = count if self._holds.all() else np.zeros_like(count)
        if self._holds.any() and not self._holds.all():
            holding = np.diff(starts(self._holds[links])[start])
        same: Flags = holding == count
        return same

    def wires(self, source: str, target: str) -> tuple[int, ...]:
        """The links of `path`."""
        return tuple(self._best[hop].id for hop in itertools.pairwise(self.path(source, target)))

    def link(self, source: str, target: str) -> Link:
        """The link of a hop from one node to the next."""
        return self._best[source, target]

    def is_peer(self, source: str, target: str) -> bool:
        """Whether two GPUs copy to each other directly; False too if there is no way between them."""
        try:
            return not self._is_staged(self.path(source, target))
        except TopologyError:
            return False

    def _is_staged(self, path: tuple[str, ...]) -> bool:
        if self._nodes[path[0]].peer == self._nodes[path[-1]].peer == DEFAULT_REACH:
            return False  # nothing is too far
        return staged(
            [self._nodes[name] for name in path],
            [self._best[hop] for hop in itertools.pairwise(path)],
        )

    def _routed(self, path: tuple[str, ...]) -> Route:
        if self._is_staged(path):
            path = self._hosted(path)
            hosts = [place for place, name in enumerate(path) if self._nodes[name].kind == "cpu"]
            return self._route(path, self._staging(path[: hosts[0]], path[hosts[-1] + 1 :]))
        path, out = self._landed(path)
        back, into = self._landed(path[::-1])
        return self._route(back[::-1], self._staging(path[:out], back[:into][::-1]))

    def _landed(self, path: tuple[str, ...]) -> tuple[tuple[str, ...], int]:
        """The path, by a host if it begins at a GPU that is too far from its NIC, and how many
        nodes come before that host.
        """
        at = self._nic(path)
        reach = self._nodes[path[0]].gpudirect
        if at and self._best[path[at], path[at + 1]].link_class.startswith(TCP):
            reach = OFF
        begin = path[: at + 1]
        if not at or not self._is_beyond(begin, reach):
            return path, 0
        begin = self._hosted(begin)
        before = next(place for place, name in enumerate(begin) if self._nodes[name].kind == "cpu")
        return (*begin, *path[at + 1 :]), before

    def nics_beyond(self, gpu: str) -> list[str]:
        """The NICs of a GPU's machine, if it reaches some and its `gpudirect` none of them; else
        [].
        """
        node = self._nodes[gpu]
        nics = [
            n.name for n in self._nodes.values() if n.kind == "nic" and n.machine == node.machine
        ]
        ways = [way for nic in nics for way in self._ways(gpu, nic)]
        near = any(not self._is_beyond(way, node.gpudirect) for way in ways)
        return [] if near else [way[-1] for way in ways]

    def _is_beyond(self, path: tuple[str, ...], reach: str) -> bool:
        used = [self._best[hop] for hop in itertools.pairwise(path)]
        return beyond([self._nodes[name] for name in path], used, reach)

    def _nic(self, path: tuple[str, ...]) -> int:
        """The place of the NIC over which the path of a GPU leaves its machine, 0 if there is none."""
        box = self._nodes[path[0]].machine
        if self._nodes[path[0]].kind != "gpu" or not box or self._nodes[path[-1]].machine == box:
            return 0
        mine = itertools.takewhile(lambda name: self._nodes[name].machine == box, path)
        return next(
            (place for place, name in enumerate(mine) if self._nodes[name].kind == "nic"), 0
        )

    def _staging(self, out: Iterable[str], into: Iterable[str]) -> list[Link]:
        """The figures that a copy takes through the nodes on the way to a host, and on the way from
        one.
        """
        figures = [link for name in out for link in self._figure(name, into=False)]
        figures += [link for name in into for link in self._figure(name, into=True)]
        return list(dict.fromkeys(figures))

    def _figure(self, name: str, *, into: bool) -> list[Link]:
        """The self-links of a node that a staged copy takes: of each two the first is out of it,
        the second into it.
        """
        links = self._figures.get((name, name), [])
        return [
            link
            for place, link in enumerate(links)
            if place % 2 == (into and not link.link_class.endswith(BOTH_WAYS))
        ]

    def _hosted(self, path: tuple[str, ...]) -> tuple[str, ...]:
        """The path, or if no CPU is on it the way through the host nearest to its first node."""
        if any(self._nodes[name].kind == "cpu" for name in path):
            return path
        source, target = path[0], path[-1]
        box = self._nodes[source].machine
        hosts = [
            node.name for node in self._nodes.values() if node.kind == "cpu" and node.machine == box
        ]
        ways = [way for host in sorted(hosts, key=natural) for way in self._ways(source, host)]
        if not ways:
            raise TopologyError(
                f"no route from {source!r} to {target!r}: without peer access or GPUDirect a copy needs a CPU to go through"
            )
        out = min(ways, key=len)
        return (*out, *self.path(out[-1], target)[1:])

    def _ways(self, source: str, target: str) -> list[tuple[str, ...]]:
        """The path, or nothing if there is none."""
        try:
            return [self.path(source, target)]
        except TopologyError:
            return []

    def _route(self, path: tuple[str, ...], figures: Sequence[Link]) -> Route:
        whole = [*figures, *self._figures.get((path[0], path[-1]), ())] if len(path) > 1 else []
        if self._spreader is None:
            return _whole(path[0], [*(self._best[hop] for hop in itertools.pairwise(path)), *whole])
        path, shared = self._spreader.spread(path)
        return _along(path, [*shared, *((link, 1.0) for link in whole)])

    def path(self, source: str, target: str) -> tuple[str, ...]:
        """The nodes on the way, both ends included, as if all GPUs had peer access and GPUDirect,
        and no two paths were equal.
        """
        for name in (source, target):
            if name not in self._nodes:
                raise TopologyError(f"no node named {name!r}{did_you_mean(name, self._nodes)}")
        if source == target:
            return (source,)
        if (source, target) in self._best:
            return (source, target)
        if self._are_copied(source, target):
            links = self._copied_links(source, target, staged=False)
            return (source, *(link.target for link in links))
        if self._are_ports(source, target):
            return (source, *(link.target for link in self._ruled(source, target)))
        home = self._nodes[source].machine
        boxes = (home, "") if home and home == self._nodes[target].machine else ("",)
        for box in boxes:
            path = self._through(source, target, box)
            if path:
                return self._rerouted(path)
        raise TopologyError(
            f"no route from {source!r} to {target!r}: no switch or host joins them, "
            "and GPUs do not forward traffic for others"
        )

    def _ruled(self, source: str, target: str) -> list[Link]:
        """The links of the way through the network between two nodes that have ports."""
        assert self._rule is not None  # noqa: S101 - there are ports
        ends = (self._port[[self.index[name]]] for name in (source, target))
        return [self._links[link] for link in self._rule.between(*ends)[1].tolist()]

    def _rerouted(self, path: tuple[str, ...]) -> tuple[str, ...]:
        """`path`, with its way through the network by the network's rule."""
        if self._rule is None:
            return path
        ports = [int(self._port[self.index[name]]) for name in path]
        hops = [self._best[hop].id for hop in itertools.pairwise(path)]
        cables = [2 * (self._rule.first + port) if port >= 0 else -2 for port in ports]
        enter = [place for place, hop in enumerate(hops) if hop == cables[place]]
        leave = [place for place, hop in enumerate(hops, 1) if hop == cables[place] + 1]
        if not (enter and leave):
            return path
        a, b = enter[0], leave[-1]
        across = self._ruled(path[a], path[b])
        return (*path[: a + 1], *(link.target for link in across), *path[b + 1 :])

    def _search(self, source: str, box: str) -> Search:
        """From `source` over transit nodes, those of machine `box` alone unless it is ""."""
        known = self._searches.get((source, box))
        if known is None:

            def forward(name: str) -> Sequence[str]:
                steps = self._forward[name]
                return (
                    [step for step in steps if self._nodes[step].machine == box] if box else steps
                )

            known = self._searches[source, box] = search(source, forward)
        return known

    def _through(self, source: str, target: str, box: str) -> tuple[str, ...]:
        """The best of the fewest-hop paths through transit nodes, () when there is none."""
        # The source itself is no way in: a direct link has been looked for.
        paths = fan(
            self._search(source, box),
            source,
            target,
            [n for n in self._into[target] if n != source],
        )
        if paths is None:
            return ()
        if all(len(layer) == 1 for layer in paths.layers):
            return tuple(layer[0] for layer in reversed(paths.layers))
        return self._choose(paths)

    def _choose(self, paths: Fan) -> tuple[str, ...]:
        """Widest, then quickest, then over the NICs that are the GPUs' own, then first by name."""
        width = widest(paths, self._best)
        source, target = paths.layers[-1][0], paths.layers[0][0]
        mine = {self._rail(source), self._rail(target)}
        boxes = {self._nodes[source].machine, self._nodes[target].machine}
        rank: dict[str, tuple[int, int, tuple[object, ...], tuple[str, ...]]] = {
            target: (0, 0, (), (target,))
        }
        for layer in paths.layers[:-1]:
            for name in layer:
                if name not in rank:
                    continue
                delay, strange, keys, path = rank[name]
                node = self._nodes[name]
                strange += node.kind == "nic" and node.machine in boxes and name not in mine
                for prior in paths.before[name]:
                    link = self._best[prior, name]
                    if link.bandwidth < width:
                        continue
                    offer = (delay + ticks(link), strange, (natural(name), *keys), (prior, *path))
                    if prior not in rank or offer[:3] < rank[prior][:3]:
                        rank[prior] = offer
        return rank[source][3]

    def _rail(self, name: str) -> str:
        """The NIC that is a GPU's own among the nearest of its machine, "" for none."""
        node = self._nodes[name]
        if node.kind != "gpu" or not node.machine:
            return ""
        if node.machine not in self._rails:
            self._rails[node.machine] = self._shared_out(node.machine)
        return self._rails[node.machine].get(name, "")

    def _shared_out(self, box: str) -> dict[str, str]:
        """The NICs of a machine, dealt to the GPUs that they are nearest to."""
        mine = sorted(
            (n for n in self._nodes.values() if n.machine == box), key=lambda n: natural(n.name)
        )
        nics = [node.name for node in mine if node.kind == "nic"]
        sharing: dict[tuple[str, ...], list[str]] = {}
        for gpu in [node.name for node in mine if node.kind == "gpu"] if nics else []:
            hops = self._search(gpu, box).hops
            least = min((hops[nic] for nic in nics if nic in hops), default=-1)
            near = [nic for nic in nics if hops.get(nic) == least]
            if len(near) > 1:  # as many hops away, some of them on another socket
                sockets = [
                    sum(self._nodes[name].kind == "cpu" for name in self.path(gpu, nic))
                    for nic in near
                ]
                near = [
                    nic for nic, count in zip(near, sockets, strict=True) if count == min(sockets)
                ]
            sharing.setdefault(tuple(near), []).append(gpu)
        return {
            gpu: near[place % len(near)]
            for near, gpus in sharing.items()
            if near
            for place, gpu in enumerate(gpus)
        }
