"""Equal-cost paths through a network: which of them a transfer takes.

The paths between where a transfer enters a network and where it leaves it are equal when they have
the fewest hops, of those the highest bottleneck bandwidth, and of those the lowest latency; cables
side by side make paths of their own. A network is what is made of switches, NVSwitches among them;
inside a machine there is one way. A network may be made of *areas* (`Ways.areas`), the groups of a
dragonfly: paths then stay in the areas of their two ends, so that none goes through a third group.
Three rules, one for all of a topology:

    first    all transfers take the first by node names, or the one that the network's own rule gives (`topology.ways`)
    hashed   each pair of ends takes one, drawn evenly by a hash of the names of the ends and a seed: static ECMP
    split    the bytes of every transfer go evenly over all of them: what perfect packet spraying would reach
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from simreduce.topology.naming import natural

if TYPE_CHECKING:
    from simreduce.topology.graph import Link, Node

FIRST, HASHED, SPLIT = CHOICES = ("first", "hashed", "split")
"""What `[routing] equal_cost` may be."""
_FABRIC = ("switch", "nvswitch")

Shared: TypeAlias = "tuple[Link, float]"
"""A link, and the part of a transfer's bytes that takes it."""


@dataclass(frozen=True, slots=True)
class EqualCost:
    """The rule of a topology; `seed` is that of the hash, and means nothing to the other two."""

    choice: str = FIRST
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Search:
    """All fewest-hop paths from one node: hop counts and predecessors."""

    hops: dict[str, int]
    before: dict[str, list[str]]


def search(source: str, forward: Callable[[str], Iterable[str]]) -> Search:
    """Breadth first; `forward` names where the way may go on from a node."""
    found = Search({source: 0}, {source: []})
    frontier = [source]
    while frontier:
        reached: list[str] = []
        for name in frontier:
            hops = found.hops[name] + 1
            for step in forward(name):
                if step not in found.hops:
                    found.hops[step] = hops
                    found.before[step] = []
                    reached.append(step)
                if found.hops[step] == hops:
                    found.before[step].append(name)
        frontier = reached
    return found


@dataclass(frozen=True, slots=True)
class Fan:
    """All fewest-hop paths between two nodes: `layers` from the target back to the source, and
    predecessors.
    """

    layers: tuple[tuple[str, ...], ...]
    before: Mapping[str, Sequence[str]]


def fan(found: Search, source: str, target: str, doors: Iterable[str]) -> Fan | None:
    """The paths that enter `target` from one of `doors`, None if none of them was reached."""
    there = [name for name in doors if name in found.hops]
    if not there:
        return None
    least = min(found.hops[name] for name in there)
    before: dict[str, Sequence[str]] = {
        target: [name for name in there if found.hops[name] == least]
    }
    layers: list[tuple[str, ...]] = [(target,)]
    while layers[-1] != (source,):
        layer = tuple(dict.fromkeys(prior for name in layers[-1] for prior in before[name]))
        before.update((name, found.before[name]) for name in layer)
        layers.append(layer)
    return Fan(tuple(layers), before)


def widest(paths: Fan, best: Mapping[tuple[str, str], Link]) -> float:
    """The highest bottleneck bandwidth of the paths, in bytes/s."""
    width = {paths.layers[0][0]: math.inf}
    for layer in paths.layers[:-1]:
        for name in layer:
            for prior in paths.before[name]:
                through = min(width[name], best[prior, name].bandwidth)
                width[prior] = max(width.get(prior, 0.0), through)
    return width[paths.layers[-1][0]]


def ticks(link: Link) -> int:
    """Its latency; sums of whole ticks do not depend on their order, so equal paths tie exactly."""
    return int(math.ldexp(link.latency, 100))


@dataclass(frozen=True, slots=True)
class _Web:
    """The equal-cost paths between two nodes: the links out of each node, by name, and how many
    paths go on from it.
    """

    source: str
    after: Mapping[str, Sequence[Link]]
    count: Mapping[str, int]

    def one(self, number: int) -> list[Link]:
        """The path of this number."""
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

    def shares(self) -> list[Shared]:
        """Every link with the part of the paths that take it."""
        reached, total = {self.source: 1}, self.count[self.source]
        found: list[Shared] = []
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


class Spreader:
    """Tells equal-cost paths apart for one topology; webs are found once for every two switches.

    `best` has the link of every hop that is taken where nothing is spread; links as good beside it
    are paths too. `areas` says in which area of its network a switch is; those that are not named
    are in one together.
    """

    def __init__(
        self,
        rule: EqualCost,
        nodes: Mapping[str, Node],
        links: Iterable[Link],
        best: Mapping[tuple[str, str], Link],
        areas: Mapping[str, int],
    ) -> None:
        self._rule, self._nodes, self._best, self._areas = rule, nodes, best, areas
        self._forward: dict[str, list[str]] = {name: [] for name in nodes}
        self._into: dict[str, list[str]] = {name: [] for name in nodes}
        for source, target in best:
            if self._in_network(target):
                self._forward[source].append(target)
            if self._in_network(source):
                self._into[target].append(source)
        self._equal: dict[tuple[str, str], list[Link]] = {}
        for link in links:
            hop = link.source, link.target
            if not link.is_toll and _merit(link) == _merit(best[hop]):
                self._equal.setdefault(hop, []).append(link)
        self._searches: dict[tuple[str, frozenset[int | None]], Search] = {}
        self._webs: dict[tuple[str, str], _Web] = {}

    def _in_network(self, name: str) -> bool:
        node = self._nodes[name]
        return node.transit and node.kind in _FABRIC

    def spread(self, path: tuple[str, ...]) -> tuple[tuple[str, ...], list[Shared]]:
        """The path of a transfer for which the ordinary rules give `path`, and its links with the
        parts of the bytes that they carry. Of a transfer that is split, the path is the first of
        them.
        """
        found: list[Shared] = []
        ends, taken, at = f"{path[0]} {path[-1]}", [path[0]], 0
        while at + 1 < len(path):
            # A hop outside of networks, or through one to the first node that is not in it.
            stop = next(
                (i for i in range(at + 1, len(path)) if not self._in_network(path[i])),
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
        known = self._webs.get((source, target))
        if known is None:
            known = self._webs[source, target] = self._found(source, target)
        return known

    def _found(self, source: str, target: str) -> _Web:
        if (source, target) in self._best:
            return self._joined(Fan(((target,), (source,)), {target: [source]}))
        begin, end = self._forward[source], self._into[target]
        inside = self._in_network(source) or self._in_network(target)
        if inside or len(begin) > 1 or len(end) > 1:
            doors = [source] if self._in_network(source) else begin
            doors = doors + ([target] if self._in_network(target) else end)
            areas = frozenset(self._areas.get(door) for door in doors)
            paths = fan(self._search(source, areas), source, target, end)
            assert paths is not None  # noqa: S101 - the ordinary rules have found one
            return self._joined(paths)
        # Ends with one neighbour in the network share what is between the switches that they are
        # on.
        first, last = begin[0], end[0]
        inner = _Web(first, {}, {first: 1}) if first == last else self._between(first, last)
        ways_in, ways_out = self._equal[source, first], self._equal[last, target]
        count = {name: number * len(ways_out) for name, number in inner.count.items()}
        after = {source: ways_in, **inner.after, last: ways_out}
        return _Web(source, after, {source: count[first] * len(ways_in), **count, target: 1})

    def _search(self, source: str, areas: frozenset[int | None]) -> Search:
        """From a node on, over switches of these areas."""
        if (source, areas) not in self._searches:

            def forward(name: str) -> Iterable[str]:
                return [step for step in self._forward[name] if self._areas.get(step) in areas]

            self._searches[source, areas] = search(source, forward)
        return self._searches[source, areas]

    def _joined(self, paths: Fan) -> _Web:
        """Of fewest-hop paths the widest, and of these the quickest."""
        width = widest(paths, self._best)
        target, source = paths.layers[0][0], paths.layers[-1][0]
        delay, count = {target: 0}, {target: 1}
        after: dict[str, list[Link]] = {}
        for layer in paths.layers[:-1]:
            hops = [
                (prior, name) for name in layer if name in delay for prior in paths.before[name]
            ]
            wide = [self._equal[hop] for hop in hops if self._best[hop].bandwidth >= width]
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
