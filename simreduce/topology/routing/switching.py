"""What the switches of a machine do with transfers: which of equal paths they take, and what a full
link does to those that are not for it.

Congestion. A flow is *held* at the resource that limits it, unless it has all that its source
offers. One of three holds for all links between switches:

    isolated  a flow that is held slows nobody else: what it does not use, others have.
              Back-pressure by flow, as Slingshot's (De Sensi et al. 2020, arXiv 2008.08886, section
              II-D); also what congestion control comes to where it works
    tree      a flow that is held stops the links that it has passed: credits of InfiniBand, or PFC
              of Ethernet, are given to a link and not to a flow. Who shares such a link gets the
              part of its own offer that the held flow gets of its own
    lossy     a flow that is held is sent all the same, and what cannot go on is dropped there: the
              links that it has passed carry all that was offered

`congested` is the part of the time that this is so: 1 without any congestion control, 0 as if
isolated. Rates are the mean of both, which no link is too narrow for. What a slowed flow gives up
goes to nobody. The rules are in `engine/kernel/congestion.py`.

Not modelled: how long a tree takes to grow and to drain, the size of buffers, several virtual
lanes, what a drop costs besides its bytes (timeouts, going back N), paths that are chosen by how
full they are (`split` uses all, also those that are stopped), receivers that are held by what is no
link (their memory or cores), and the links of hosts, whose NICs take turns among connections.

Equal-cost paths through a network, and which of them a transfer takes.

Paths between where a transfer enters a network and where it leaves it are equal when they have the
fewest hops, of those the highest bottleneck bandwidth, and of those the lowest latency; cables side
by side make paths of their own. Bandwidths are those that links were built with (`Link.width`): no
fabric leaves out a path that is slower now. A network is made of switches, NVSwitches included;
inside a machine there is one path. A network may have areas (`RoutingRule.areas`), as the groups of
a dragonfly: paths then stay in the areas of their two ends while there are any. One of three
choices holds for all of a topology:

    split    the bytes of every transfer go evenly over all of them: adaptive routing of InfiniBand
             and Slingshot, or packets sprayed as by EFA; the default, but for a torus. A path whose
             slowest link has half of its rate left carries half as much
    hashed   each pair of ends takes one, drawn evenly by a hash of the ends' names and a seed
             (static ECMP of Ethernet); with `queue_pairs`, every queue pair of a pair of ends draws
             one, and carries as much as the others (`NCCL_IB_QPS_PER_CONNECTION` with
             `NCCL_IB_SPLIT_DATA_ON_QPS`)
    first    all transfers to one destination take the same: that of the network's routing rule, or
             by node names the one whose number is the destination's place on its switch, modulo
             their number; the default of a torus, whose rule is its dimensions' order
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt

from simreduce.computing import group_by
from simreduce.computing.arrays import Ints
from simreduce.errors import InternalError
from simreduce.topology.elements import Link, Node, joined, natural
from simreduce.topology.routing import (
    Fan,
    Fans,
    Hop,
    Path,
    PathSearch,
    RouteRows,
    Share,
    list_rows,
    ticks,
)

FIRST, HASHED, SPLIT = CHOICES = ("first", "hashed", "split")
"""Values of `equal_cost`."""
ISOLATED, TREE, LOSSY = CONGESTIONS = ("isolated", "tree", "lossy")
"""Values of `congestion`."""
KEYS = ("equal_cost", "seed", "queue_pairs", "congestion", "congested")
"""What users call the fields of `Switching`."""


@dataclass(frozen=True, slots=True)
class Switching:
    """What holds for all switches of a topology.

    `seed` is that of the hash, and `queue_pairs` over how many paths each two ends spread what they
    send, both of hashed paths.
    """

    choice: str = SPLIT
    seed: int = 0
    queue_pairs: int = 1
    congestion: str = ISOLATED
    congested: float = 1.0

    @property
    def isolated(self) -> bool:
        """Whether no flow feels that another is held."""
        return self.congestion == ISOLATED or self.congested == 0.0

    @property
    def stated(self) -> dict[str, str | int | float]:
        """By the keys of users, `equal_cost` and what else is not the default and has a meaning."""
        values = dict(zip(KEYS, astuple(self), strict=True))
        usual = dict(zip(KEYS, astuple(DEFAULT), strict=True))
        idle = ["seed", "queue_pairs"] if self.choice != HASHED else []
        idle += ["congested"] if self.congestion == ISOLATED else []
        return {
            key: value
            for key, value in values.items()
            if key == KEYS[0] or (value != usual[key] and key not in idle)
        }


DEFAULT = Switching()
"""What a network does of which nothing else is known."""


_FABRIC = ("switch", "nvswitch")


@dataclass(frozen=True)
class _Web:
    """The equal-cost paths between two nodes: the links out of each node, by name, those nearest to
    the target first.
    """

    source: str
    after: Mapping[str, Sequence[Link]]

    @functools.cached_property
    def count(self) -> Mapping[str, int]:
        """How many paths go on from each node, 1 from the target."""
        return self._count(self.after)

    @staticmethod
    def _count(after: Mapping[str, Sequence[Link]]) -> Mapping[str, int]:
        count: dict[str, int] = {}
        for name, links in after.items():
            count[name] = sum(count.setdefault(link.target, 1) for link in links)
        return count

    def one(self, number: int) -> list[Link]:
        """The links of the path of this number."""
        path: list[Link] = []
        name = self.source
        while name in self.after:
            for link in self.after[name]:
                if number < self.count[link.target]:
                    break
                number -= self.count[link.target]
            path.append(link)
            name = link.target
        return path

    @functools.cached_property
    def shares(self) -> Sequence[Share]:
        """Every link with its part of the bytes.

        Each path carries in proportion to what its slowest link has left of its width.
        """
        found: dict[int, Share] = {}
        below = 0.0
        for left in sorted({link.left for links in self.after.values() for link in links}):
            for link, paths in self._paths(left):
                _, part = found.get(link.id, (link, 0.0))
                found[link.id] = link, part + (left - below) * paths
            below = left
        total = sum(found[link.id][1] for link in self.after[self.source])
        return [(link, part / total) for link, part in found.values()]

    def _paths(self, least: float) -> Iterator[tuple[Link, int]]:
        """Every link with the paths that take it, of those whose links all have so much left."""
        after = {
            name: [link for link in links if link.left >= least]
            for name, links in self.after.items()
        }
        count = self._count(after)
        reached = {self.source: 1}
        frontier = [self.source]
        while frontier:
            further: dict[str, int] = {}
            for name in frontier:
                for link in after.get(name, ()):
                    yield link, reached[name] * count[link.target]
                    further[link.target] = further.get(link.target, 0) + reached[name]
            reached |= further
            frontier = list(further)


def _many(webs: Sequence[_Web]) -> int:
    """How many paths there are through webs, one after the other."""
    return math.prod(web.count[web.source] for web in webs)


def _one(webs: Sequence[_Web], number: int) -> list[Link]:
    """The links of one of these paths."""
    path: list[Link] = []
    for place, web in enumerate(webs):
        here, number = divmod(number, _many(webs[place + 1 :]))
        path += web.one(here)
    return path


def _shares(webs: Sequence[_Web]) -> list[Share]:
    return [share for web in webs for share in web.shares]


def _mean(paths: Sequence[Sequence[Link]]) -> list[Share]:
    """The links of paths that carry as much as each other, hop by hop."""
    carried: dict[int, tuple[Link, int]] = {}
    for hop in itertools.zip_longest(*paths):
        for link in filter(None, hop):
            carried[link.id] = link, carried.get(link.id, (link, 0))[1] + 1
    return [(link, many / len(paths)) for link, many in carried.values()]


def _in_network(node: Node) -> bool:
    return node.transit and node.kind in _FABRIC


def may_have_equal_paths(nodes: Mapping[str, Node], links: Sequence[Link]) -> bool:
    """Whether switches are joined in a loop, or nodes by several cables to them.

    Without either there is one path between any two nodes.
    """
    inside = {name for name, node in nodes.items() if _in_network(node)}
    cables = [link for link in links if link.target in inside and not link.is_toll]
    trunks = [
        (link.source, link.target)
        for link in cables
        if link.source in inside and link.source < link.target
    ]
    parts = joined(inside, trunks)
    if len(trunks) > len(inside) - len(parts):  # a forest has a cable less for each part
        return True
    part = {name: i for i, names in enumerate(parts) for name in names}
    of_hosts = (link for link in cables if link.source not in inside)
    shared = [
        pair
        for each in group_by(of_hosts, lambda link: link.source).values()
        for pair in {*itertools.combinations(sorted(part[link.target] for link in each), 2)}
    ]
    return any(one == other for one, other in shared) or len(set(shared)) < len(shared)


class Spreader:
    """Chooses among the equal-cost paths of one topology; each two switches are searched once.

    `areas` gives the area of each switch; switches that it does not name share one.
    """

    def __init__(self, rule: Switching, search: PathSearch, areas: Mapping[str, int]) -> None:
        self._rule, self._search, self._areas = rule, search, areas
        self._nodes = search.nodes
        self._search_in = functools.cache(self._fans_in)
        self._between = functools.cache(self._find)
        self.seat = functools.cache(self._find_seat)

    @functools.cached_property
    def _equal(self) -> Mapping[Hop, Sequence[Link]]:
        """The links of every hop that are as good as the best."""
        wires = self._search.wires
        good = (
            link
            for link in self._search.links
            if not link.is_toll and _merit(link) == _merit(wires[link.source, link.target])
        )
        return group_by(good, lambda link: (link.source, link.target))

    def spread(self, path: Path) -> tuple[Path, list[Share]]:
        """The path of a transfer for which the ordinary rules give `path`, and its links with the
        parts of the bytes that they carry. Of a transfer that is split, the path is the first of
        them.
        """
        found: list[Share] = []
        taken, at = [path[0]], 0
        while at + 1 < len(path):
            # A hop outside of networks, or through one to the first node that is not in it.
            stop = next(
                (i for i in range(at + 1, len(path)) if not _in_network(self._nodes[path[i]])),
                len(path) - 1,
            )
            homes = {self._nodes[name].machine for name in path[at : stop + 1]}
            webs = self._between(path[at], path[stop], homes.pop() if len(homes) == 1 else "")
            numbers, many = [0], _many(webs)
            if many > 1 and self._rule.choice == HASHED:
                pairs = range(self._rule.queue_pairs)
                numbers = [hash_ends(self._rule.seed, path[0], path[-1], pair) for pair in pairs]
            elif many > 1 and self._rule.choice == FIRST:
                numbers = [self.seat(path[stop])]
            ones = [_one(webs, number % many) for number in numbers]
            taken += [link.target for link in ones[0]]
            found += _shares(webs) if self._rule.choice == SPLIT else _mean(ones)
            at = stop
        return tuple(taken), found

    def rows(self, source: Ints, target: Ints, number: npt.NDArray[np.uint64] | None) -> RouteRows:
        """The links between different switches, given by their places among the nodes.

        Each row takes the path of its number, modulo their count; without numbers, all of them.
        """
        names = tuple(self._nodes)
        pairs, which = np.unique(source * len(names) + target, return_inverse=True)
        ends = (divmod(pair, len(names)) for pair in pairs.tolist())
        webs = [self._between(names[a], names[b], "") for a, b in ends]
        if number is None:
            return list_rows(((k.id, part) for k, part in _shares(each)) for each in webs).take(
                which
            )
        many = np.array([_many(web) for web in webs], dtype=np.uint64)
        paths = np.stack([which.astype(np.uint64), number % many[which]], axis=1)
        ones, which = np.unique(paths, axis=0, return_inverse=True)
        found = ([(link.id, 1.0) for link in _one(webs[i], one)] for i, one in ones.tolist())
        return list_rows(found).take(which.reshape(-1))

    def _find_seat(self, target: str) -> int:
        """The place of a node among those on its first switch; 0 of a switch, or without one."""
        hosts = [name for name, node in self._nodes.items() if not _in_network(node)]
        entries = self._search.entries(target, _in_network) if target in hosts else []
        ends = [name for name in hosts if (*entries[:1], name) in self._search.wires]
        return ends.index(target) if entries else 0

    def _find(self, source: str, target: str, home: str) -> Sequence[_Web]:
        """The equal-cost paths from one node through the network, or in it, to another, as webs one
        after the other; through what the machine `home` has of it, if one is given.
        """
        if (source, target) in self._search.wires:
            return [self._join(Fan(((target,), (source,)), {target: [source]}))]

        inside = functools.partial(self._is_inside, home=home)
        begin, end = self._exits(source, inside), self._search.entries(target, inside)
        ends_inside = [name for name in (source, target) if _in_network(self._nodes[name])]
        if ends_inside or len(begin) > 1 or len(end) > 1:
            doors = [source] if source in ends_inside else begin
            doors = doors + ([target] if target in ends_inside else end)
            near = frozenset(self._areas.get(door) for door in doors)
            # Cuts may leave no path in the areas of the ends.
            for areas in (near, frozenset((None, *self._areas.values()))):
                paths = self._search_in(areas, home).between(source, target, end)
                if paths:
                    return [self._join(paths)]
            raise InternalError(f"no path from {source} to {target}, where the search found one")
        # Ends with one neighbour in the network share the web between their two switches.
        first, last = begin[0], end[0]
        inner = self._between(first, last, home) if first != last else ()
        up, down = self._between(source, first, home), self._between(last, target, home)
        return [*up, *inner, *down]

    def _fans_in(self, areas: frozenset[int | None], home: str) -> Fans:
        """Searches through the network's switches in these areas, or what `home` has of them."""
        return self._search.fans(
            lambda node: self._is_inside(node, home) and self._areas.get(node.name) in areas
        )

    @staticmethod
    def _is_inside(node: Node, home: str) -> bool:
        return _in_network(node) and (not home or node.machine == home)

    def _exits(self, source: str, inside: Callable[[Node], bool]) -> list[str]:
        """The switches `inside` that a node has a wire to."""
        after = self._search.graph.successors(source)
        wires = self._search.wires
        return [n for n in after if inside(self._nodes[n]) and (source, n) in wires]

    def _join(self, paths: Fan) -> _Web:
        """The widest fewest-hop paths, and of these the quickest."""
        wires = self._search.wires
        width = paths.bottleneck(wires)
        target, source = paths.layers[0][0], paths.layers[-1][0]
        delay = {target: 0}
        after: dict[str, list[Link]] = {}
        for layer in paths.layers[:-1]:
            hops = [
                (prior, name) for name in layer if name in delay for prior in paths.before[name]
            ]
            wide = [self._equal[hop] for hop in hops if wires[hop].width >= width]
            for links in wide:
                offer = delay[links[0].target] + ticks(links[0])
                delay[links[0].source] = min(offer, delay.get(links[0].source, offer))
            for links in wide:
                prior, name = links[0].source, links[0].target
                if delay[name] + ticks(links[0]) == delay[prior]:
                    after.setdefault(prior, []).extend(links)
        by_name = {
            name: sorted(links, key=lambda link: (natural(link.target), link.id))
            for name, links in after.items()
        }
        return _Web(source, by_name)


def _merit(link: Link) -> tuple[float, float]:
    return link.width, link.latency


def hash_ends(seed: int, source: str, target: str, pair: int = 0) -> int:
    """A number of 64 bits for the two ends of a transfer, and one of their queue pairs."""
    text = f"{seed} {source} {target}" + (f" {pair}" if pair else "")
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
