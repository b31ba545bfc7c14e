"""The search for channels: rings, trees and NVLS, step by step as NCCL makes it.

A channel of a speed takes that much of every link that it crosses, so that channels slower than a
link share it. NCCL asks for fast channels over near paths first, and relaxes one demand after
another (`ncclTopoCompute`, NVIDIA/nccl src/graph/search.cc). What the library itself answers is the
same to the digit (tests/planners/nccl/answers).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property, partial

from simreduce.computing import once
from simreduce.planners.nccl.communicator import (
    CLASSES,
    DIS,
    LOC,
    PIX,
    PXN,
    SYS,
    Box,
    BoxPath,
    Facts,
)
from simreduce.planners.nccl.constants import ladder, tables
from simreduce.planners.nccl.environment import Settings
from simreduce.planners.nccl.orders import (
    NVLS,
    PLAIN,
    REVISED,
    RING,
    TREE,
    Demand,
    NodePaths,
    Walk,
)

_STEPS = {False: 1 << 14, True: 1 << 8}
"""Steps of one search, by whether channels are alike."""
_ALL_STEPS = 1 << 19
"""Steps of all searches, once something is found."""
_SLOWEST = 0.49
"""Speeds below this part of what was found are not tried."""
_SEARCHED: dict[object, Demand] = {}
"""What was found on nodes that look alike to a search, of whatever machine."""
_MOST_SEARCHED = 512


@dataclass(frozen=True, slots=True)
class Channel:
    """GPUs of a node in order, by their place in it, and the NICs before and after, by name."""

    gpus: tuple[int, ...]
    net_in: str | None = None
    net_out: str | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    """One result of the search, of a whole communicator; `channels` belong to its first node.

    Speeds are per channel in GB/s, inside a node and between nodes. Types are the farthest paths
    that were allowed. With `cross_nic` channels may leave a node by another NIC than they came in.
    """

    pattern: str
    channels: tuple[Channel, ...]
    speed_intra: float
    speed_inter: float
    type_intra: int
    type_inter: int
    cross_nic: int = 0
    same_channels: bool = True

    @property
    def count(self) -> int:
        """The number of channels before the connector doubles them."""
        return len(self.channels)

    @property
    def types(self) -> str:
        """Classes of the paths, as the log has them: `NVL/PIX`."""
        return f"{CLASSES[self.type_intra]}/{CLASSES[self.type_inter]}"


@dataclass(frozen=True, slots=True)
class Graphs:
    """The graphs of a communicator. `nvls` is None without NVLink SHARP."""

    ring: Graph
    tree: Graph
    nvls: Graph | None


def graphs_of(
    facts: Facts, settings: Settings, search: type[ChannelSearch], box: Box | None = None
) -> Graphs:
    """The graphs that all nodes of a communicator agree on, or with `box` one node's graphs, by a
    library's `search`.
    """
    key = (
        "graphs", settings.release, settings.cross_nic, settings.nvls, settings.pxn_disable,
    )  # fmt: skip
    if key not in facts.cache:
        found = {each: search(facts, each, settings).graphs() for each in facts.kinds}
        nvls = [each.nvls for each in found.values() if each.nvls is not None]
        common = Graphs(
            _common([each.ring for each in found.values()]),
            _common([each.tree for each in found.values()]),
            _common(nvls) if len(nvls) == len(found) else None,
        )
        facts.cache[key] = common, found
    common, by_box = facts.cache[key]
    agreed: Graphs = common if box is None else by_box[box]
    return agreed


def _common(graphs: Sequence[Graph]) -> Graph:
    """The graph that unequal nodes agree on: fewest channels, lowest speeds, farthest paths, and
    plain trees where one node has them.
    """
    first = graphs[0]
    return replace(
        first,
        pattern=PLAIN if PLAIN in {graph.pattern for graph in graphs} else first.pattern,
        channels=first.channels[: min(graph.count for graph in graphs)],
        speed_intra=min(graph.speed_intra for graph in graphs),
        speed_inter=min(graph.speed_inter for graph in graphs),
        type_intra=max(graph.type_intra for graph in graphs),
        type_inter=max(graph.type_inter for graph in graphs),
        same_channels=all(graph.same_channels for graph in graphs),
    )


def _classes(paths: Iterable[BoxPath | None]) -> tuple[int, ...]:
    return tuple(sorted({path.kind if path else DIS for path in paths}))


class ChannelSearch:
    """The search on one node."""

    def __init__(self, facts: Facts, box: Box, settings: Settings) -> None:
        self.box, self.settings, self.facts = box, settings, facts
        self.several = facts.nodes > 1
        self.speeds = ladder(facts.capability, facts.nodes, settings.release)
        self.tables = tables(settings.release)
        self.most = self.tables.most_channels // 2
        self.paths = NodePaths(facts, box, settings)
        pairs = itertools.permutations(self.paths.ranks, 2)
        self.inside = _classes(self.paths.between[u][v] for u, v in pairs) or (LOC, SYS)
        self.outside = _classes(itertools.chain(*self.paths.out)) or (PIX,)
        """The classes of paths between GPUs and to NICs, the nearest first."""
        self._fruitless: dict[tuple[Demand, Demand], int] = {}
        nameless = replace(box, gpus=(), nics=tuple(replace(nic, name="") for nic in box.nics))
        self._known_by = (
            type(self), astuple(nameless), self.several, facts.capability, facts.arch, facts.vendor,
            settings.release, settings.cross_nic, settings.pxn_disable,
        )  # fmt: skip

    def graphs(self) -> Graphs:
        """Rings, trees and NVLS."""
        ring = self.ring()
        return Graphs(ring, self.tree(ring), self.nvls())

    def ring(self) -> Graph:
        """The rings."""
        return self._search(RING, 1, self.most)

    def tree(self, ring: Graph) -> Graph:
        """As many chains as rings; inside a node they may be faster than between nodes."""
        pattern = TREE if len(self.box.gpus) > 1 else PLAIN
        return self._search(pattern, ring.count, ring.count)

    def nvls(self) -> Graph | None:
        """A channel for each head; every port carries all channels and one more for its own."""
        n = len(self.box.gpus)
        capable = self.facts.multicast and self.facts.capability >= 90 and bool(self.box.ports)
        fewest = 2 if self.tables.since(28) else 3
        if not (capable and self.settings.nvls and self.tables.since(17) and n >= fewest):
            return None
        most = min(n, self.most)
        found = self._search(NVLS, 1 if self.several else most, most)
        return found if found.channels else None

    def _search(self, pattern: str, least: int, most: int) -> Graph:
        """The best graph of a pattern, of so many channels."""
        key = (*self._known_by, pattern, least, most)
        found = once(_SEARCHED, key, lambda: self._best(pattern, least, most), most=_MOST_SEARCHED)
        return self._graph(found)

    def _best(self, pattern: str, least: int, most: int) -> Demand:
        """Demands are relaxed until one is met, then more speed is asked for. At first nothing is
        found, and the strictest demand is for near paths alone and for channels that are alike.
        """
        speeds, total = [1e3 * speed for speed in self.speeds], 1e3 * self.box.total
        cross = int(
            self.settings.cross_nic == 1 and pattern in (RING, TREE) and bool(self.paths.nics)
        )
        self.best = Demand(
            pattern, 0.0, 0.0, self.inside[0], self.outside[0], cross, pattern != NVLS, least, most
        )
        left = _ALL_STEPS
        for ask in self._demands(self.best, speeds):
            steps = self._walk(ask)
            if steps < 0 or self.best.count * self.best.speed_inter >= total:
                break
            left -= _STEPS[ask.same_channels]
            if ask.same_channels and not self._crosses_amd(ask.type_intra):
                continue
            left += steps
            if self.best.count and (left < 0 or self._is_hopeless(ask.speed_inter, speeds)):
                break
        if self.best.count:
            self._double()
            self._speed_up(speeds)
        return self.best

    def _demands(self, first: Demand, speeds: Sequence[float]) -> Iterator[Demand]:
        """Demands in the order in which NCCL relaxes them, as far as what is found leaves sense in
        them: channels that differ, plain trees, farther paths inside, ways out, and less speed.
        """
        n, total = self.paths.n, 1e3 * self.box.total
        shared = total * (n / (n - 1) if first.pattern != RING and n > 1 else 1)
        fastest = min(1e3 * self.paths.widest(), shared / first.least)
        plain = self.facts.capability >= 90 and first.pattern == TREE
        for speed in [each for each in speeds if each <= fastest] or speeds[-1:]:
            if speed <= _SLOWEST * self.best.speed_inter:
                return
            for type_inter, cross in self._ways_out(first):
                farthest = type_inter if self.paths.nics else self.inside[-1]
                for type_intra in self._farther("type_intra", first.type_intra, farthest):
                    ask = replace(
                        first, speed_intra=speed, speed_inter=speed, cross_nic=cross,
                        type_intra=type_intra, type_inter=type_inter,
                    )  # fmt: skip
                    for pattern in (first.pattern, PLAIN) if plain else (first.pattern,):
                        yield replace(ask, pattern=pattern)
                        if ask.same_channels and not self._crosses_amd(type_intra):
                            yield replace(ask, pattern=pattern, same_channels=False)

    def _ways_out(self, first: Demand) -> Iterator[tuple[int, int]]:
        """Classes of paths to NICs, and whether channels may leave by another NIC: that first from
        2.19 on, farther paths first before.
        """
        farther = partial(
            self._farther, "type_inter", first.type_inter, self.outside[-1], least=PXN
        )
        may_cross = len(self.paths.nics) > 1 and self.settings.cross_nic == 2
        several = may_cross and first.pattern in (RING, TREE)
        if self.settings.release >= REVISED:
            crosses = (first.cross_nic, 2) if several else (first.cross_nic,)
            return ((kind, cross) for kind in farther() for cross in crosses)
        crosses = (first.cross_nic, 1) if several else (first.cross_nic,)
        return ((kind, cross) for cross in crosses for kind in farther())

    def _farther(self, which: str, kind: int, farthest: int, least: int = 0) -> Iterator[int]:
        """Classes of paths from one on, no farther than what was found needs."""
        yield kind
        while kind < min(farthest, DIS - 1) and (
            not self.best.count or kind < max(getattr(self.best, which), least)
        ):
            kind += 1
            yield kind

    @cached_property
    def _leaving(self) -> list[list[float]]:
        """MB/s of the links by which paths leave each GPU."""
        arcs = [{way.arcs[0] for way in row if way and way.arcs} for row in self.paths.between]
        return [[1e3 * self.box.capacity[arc] for arc in each] for each in arcs]

    def _crosses_amd(self, type_intra: int) -> bool:
        """Whether channels go between the sockets of AMD's hosts, where they stay alike."""
        amd = (self.facts.arch, self.facts.vendor) == ("x86_64", "AMD")
        return amd and type_intra == SYS

    def _walk(self, ask: Demand) -> int:
        """The steps that a search leaves, -1 if nothing is better than what it found.

        Searches that find nothing for certain are not made: the same paths were allowed before, or
        so many chains have no room, of which the steps do not matter.
        """
        if ask.least == ask.most and self._room(ask) < ask.least:
            return _STEPS[ask.same_channels]
        kinds = [
            max((k for k in kinds if k <= most), default=-1)
            for kinds, most in ((self.inside, ask.type_intra), (self.outside, ask.type_inter))
        ]
        key = replace(ask, type_intra=kinds[0], type_inter=kinds[1]), self.best
        if key not in self._fruitless:
            walk = Walk(self.paths, ask, self.best, _STEPS[ask.same_channels])
            walk.all_channels()
            if walk.best is not self.best:
                self.best = walk.best
                return walk.steps
            self._fruitless[key] = walk.steps
        return self._fruitless[key]

    def _room(self, ask: Demand) -> int:
        """As many channels as may be, but no more than fit."""
        slots = [sum(rate // ask.speed_intra for rate in each) for each in self._leaving]
        speed = int(ask.speed_inter / 1e3)
        limits: list[float] = [ask.most]
        if self.paths.n > 1:
            whole = ask.pattern == RING and not self.paths.nics
            limits.append(min(slots) if whole else sum(slots) // (self.paths.n - 1))
        if self.paths.nics and speed:
            limits.append(sum(nic.rate // speed for nic in self.box.nics))
        return int(min(limits))

    def _is_hopeless(self, fastest: float, speeds: Sequence[float]) -> bool:
        """Whether no search that is left can find better rings, so that it need not be made."""
        best = self.best
        inside, into, out = (
            min((way.hops for row in rows for way in row if way and way.hops), default=0)
            for rows in (self.paths.between, self.paths.into, self.paths.out)
        )
        shortest = (self.paths.n - 1) * inside + (into + out if self.paths.nics else inside)

        def is_better(speed: float) -> bool:
            ask = replace(best, cross_nic=0, speed_intra=speed, speed_inter=speed)
            room = self._room(ask)
            return ask.is_better(room, room * shortest, best, self.paths.n)

        left = (each for each in speeds if _SLOWEST * best.speed_inter < each <= fastest)
        return best.pattern == RING and not any(map(is_better, left))

    def _double(self) -> None:
        """Split fast channels into two of half the speed."""
        best = self.best
        if best.pattern != NVLS and self._is_doubled(best):
            count = min(2 * best.count, best.most)
            parts = -(-count // best.count)
            self.best = replace(
                best, count=count, gpus=(best.gpus * 2)[:count], nics=(best.nics * 2)[:count],
                speed_intra=best.speed_intra / parts, speed_inter=best.speed_inter / parts,
            )  # fmt: skip

    def _is_doubled(self, best: Demand) -> bool:
        most = 50e3 if self.facts.capability > 80 and best.count > 4 else 25e3
        return best.speed_intra >= most

    def _speed_up(self, speeds: Sequence[float]) -> None:
        """As many channels, faster: rings everywhere, trees inside the node, NVLS outside."""
        first = self.best
        start = next((speed for speed in speeds if speed <= first.speed_inter), speeds[-1])
        most = first.count if first.pattern == NVLS else first.most
        ask = replace(
            first,
            least=first.count,
            most=most,
            count=0,
            hops=0,
            speed_intra=start,
            speed_inter=start,
        )
        for speed in (each for each in reversed(speeds) if each > start):
            if first.pattern == RING:
                ask = replace(ask, speed_intra=speed, speed_inter=speed)
                met = self._room(ask) >= ask.least
            elif first.pattern == NVLS:
                met = (
                    ask.speed_inter == self.best.speed_inter < 2 * ask.speed_intra
                    and self.tables.since(19)
                )
                ask = replace(ask, speed_inter=speed)
            else:
                met = ask.speed_intra == self.best.speed_intra < 2 * ask.speed_inter
                ask = replace(ask, speed_intra=speed)
            if not met or self._walk(ask) == 0:
                return

    def _graph(self, found: Demand) -> Graph:
        """What was found; GPUs by number at 0.1 GB/s where nothing was."""
        names = [nic.name for nic in self.box.nics]
        if found.count == 0 and found.pattern != NVLS:
            ends = names[:1] * 2 if self.paths.nics else []
            return Graph(found.pattern, (Channel(self.box.order, *ends),), 0.1, 0.1, SYS, SYS)
        nics = found.nics if self.paths.nics else ((),) * found.count
        return Graph(
            found.pattern,
            tuple(
                Channel(self._whole(gpus, found.pattern), *(names[i] for i in ends))
                for gpus, ends in zip(found.gpus, nics, strict=True)
            ),
            found.speed_intra / 1e3, found.speed_inter / 1e3, found.type_intra, found.type_inter,
            found.cross_nic, found.same_channels,
        )  # fmt: skip

    def _whole(self, gpus: tuple[int, ...], pattern: str) -> tuple[int, ...]:
        """The GPUs of a channel by rank; of NVLS only the head is searched."""
        others = (gpu for gpu in self.paths.ranks if gpu != gpus[0])
        places = (gpus[0], *others) if pattern == NVLS else gpus
        return tuple(map(self.box.order.__getitem__, places))
