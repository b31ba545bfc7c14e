"""Equal-cost paths through a network, and which of them a transfer takes.

Paths between where a transfer enters a network and where it leaves it are equal when they have the
fewest hops, of those the highest bottleneck bandwidth, and of those the lowest latency; cables side
by side make paths of their own. A network is made of switches, NVSwitches included; inside a
machine there is one path. A network may have areas (`RoutingRule.areas`), as the groups of a
dragonfly: paths then stay in the areas of their two ends. One of three choices holds for all of a
topology:

    first    all transfers take the first by node names, or the one of the network's routing rule
    hashed   each pair of ends takes one, drawn evenly by a hash of the ends' names and a seed
             (static ECMP)
    split    the bytes of every transfer go evenly over all of them (perfect packet spraying)
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simreduce.topology.elements import Link, Node
from simreduce.topology.naming import natural
from simreduce.topology.routing.route import Share
from simreduce.topology.routing.search import Fan, Fans, Hop, Path, Search, ticks

FIRST, HASHED, SPLIT = CHOICES = ("first", "hashed", "split")
"""Values of `[routing] equal_cost`."""
_FABRIC = ("switch", "nvswitch")


@dataclass(frozen=True, slots=True)
class EqualCost:
    """The choice of a topology, and the seed of the hash, which the other two choices ignore."""

    choice: str = FIRST
    seed: int = 0


@dataclass(frozen=True, slots=True)
class _Web:
    """The equal-cost paths between two nodes: the links out of each node, by name, and how many
    paths go on from it.
    """

    source: str
    after: Mapping[str, Sequence[Link]]
    count: Mapping[str, int]

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

    def shares(self) -> list[Share]:
        """Every link with the part of the paths that take it."""
        reached, total = {self.source: 1}, self.count[self.source]
        found: list[Share] = []
        frontier = [self.source]
        while frontier:
            further: dict[str, int] = {}
            for name in frontier:
                for link in self.after.get(name, ()):
                    found.append((link, reached[name] * self.count[link.target] / total))
                    further[link.target] = further.get(link.target, 0) + reached[name]
            reached |= further
            frontier = list(further)
        return found


def _in_network(node: Node) -> bool:
    return node.transit and node.kind in _FABRIC


class Spreader:
    """Chooses among the equal-cost paths of one topology; each two switches are searched once.

    `areas` gives the area of each switch; switches that it does not name share one.
    """

    def __init__(self, rule: EqualCost, search: Search, areas: Mapping[str, int]) -> None:
        self._rule, self._search, self._areas = rule, search, areas
        self._nodes = search.nodes
        self._fans: dict[frozenset[int | None], Fans] = {}
        self._webs: dict[Hop, _Web] = {}

    @functools.cached_property
    def _equal(self) -> Mapping[Hop, Sequence[Link]]:
        """The links of every hop that are as good as the best."""
        found: dict[Hop, list[Link]] = {}
        for link in self._search.links:
            hop = link.source, link.target
            if not link.is_toll and _merit(link) == _merit(self._search.wires[hop]):
                found.setdefault(hop, []).append(link)
        return found

    def spread(self, path: Path) -> tuple[Path, list[Share]]:
        """The path of a transfer for which the ordinary rules give `path`, and its links with the
        parts of the bytes that they carry. Of a transfer that is split, the path is the first of
        them.
        """
        found: list[Share] = []
        ends, taken, at = f"{path[0]} {path[-1]}", [path[0]], 0
        while at + 1 < len(path):
            # A hop outside of networks, or through one to the first node that is not in it.
            stop = next(
                (i for i in range(at + 1, len(path)) if not _in_network(self._nodes[path[i]])),
                len(path) - 1,
            )
            web = self._between(path[at], path[stop])
            number = (
                _hash(self._rule.seed, ends) % web.count[web.source]
                if self._rule.choice == HASHED
                else 0
            )
            one = web.one(number)
            taken += [link.target for link in one]
            found += web.shares() if self._rule.choice == SPLIT else [(link, 1.0) for link in one]
            at = stop
        return tuple(taken), found

    def _between(self, source: str, target: str) -> _Web:
        """The equal-cost paths from one node through the network, or in it, to another."""
        if (source, target) not in self._webs:
            self._webs[source, target] = self._find(source, target)
        return self._webs[source, target]

    def _find(self, source: str, target: str) -> _Web:
        if (source, target) in self._search.wires:
            return self._join(Fan(((target,), (source,)), {target: [source]}))
        begin, end = self._exits(source), self._search.entries(target, _in_network)
        ends_inside = [name for name in (source, target) if _in_network(self._nodes[name])]
        if ends_inside or len(begin) > 1 or len(end) > 1:
            doors = [source] if source in ends_inside else begin
            doors = doors + ([target] if target in ends_inside else end)
            areas = frozenset(self._areas.get(door) for door in doors)
            paths = self._within(areas).between(source, target, end)
            assert paths is not None  # noqa: S101 - the ordinary rules have found one
            return self._join(paths)
        # Ends with one neighbour in the network share the web between their two switches.
        first, last = begin[0], end[0]
        inner = _Web(first, {}, {first: 1}) if first == last else self._between(first, last)
        up, down = self._equal[source, first], self._equal[last, target]
        count = {name: number * len(down) for name, number in inner.count.items()}
        after = {source: up, **inner.after, last: down}
        return _Web(source, after, {source: count[first] * len(up), **count, target: 1})

    def _exits(self, source: str) -> list[str]:
        """The switches that a node has a wire to."""
        after = self._search.graph.successors(source)
        wires = self._search.wires
        return [n for n in after if _in_network(self._nodes[n]) and (source, n) in wires]

    def _within(self, areas: frozenset[int | None]) -> Fans:
        """Searches over switches of these areas."""
        if areas not in self._fans:
            self._fans[areas] = self._search.fans(
                lambda node: _in_network(node) and self._areas.get(node.name) in areas
            )
        return self._fans[areas]

    def _join(self, paths: Fan) -> _Web:
        """The widest fewest-hop paths, and of these the quickest."""
        wires = self._search.wires
        width = paths.bottleneck(wires)
        target, source = paths.layers[0][0], paths.layers[-1][0]
        delay, count = {target: 0}, {target: 1}
        after: dict[str, list[Link]] = {}
        for layer in paths.layers[:-1]:
            hops = [
                (prior, name) for name in layer if name in delay for prior in paths.before[name]
            ]
            wide = [self._equal[hop] for hop in hops if wires[hop].bandwidth >= width]
            for links in wide:
                offer = delay[links[0].target] + ticks(links[0])
                delay[links[0].source] = min(offer, delay.get(links[0].source, offer))
            for links in wide:
                prior, name = links[0].source, links[0].target
                if delay[name] + ticks(links[0]) == delay[prior]:
                    after.setdefault(prior, []).extend(links)
                    count[prior] = count.get(prior, 0) + count[name] * len(links)
        by_name = {
            name: sorted(links, key=lambda link: (natural(link.target), link.id))
            for name, links in after.items()
        }
        return _Web(source, by_name, count)


def _merit(link: Link) -> tuple[float, float]:
    return link.bandwidth, link.latency


def _hash(seed: int, text: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed} {text}".encode(), digest_size=8).digest())
