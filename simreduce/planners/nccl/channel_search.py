"""The search for channels: rings, trees and NVLS, as NCCL's planner finds them.

A channel of a speed takes that much of every capacity it crosses, so that channels slower than a
link share it. From the top of the ladder down, the most channels that fit at each speed are found;
more channels x speed wins. Where NCCL walks all orders until a time limit, this finds the same
count with a bounded search, and on small machines with integer programming.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from simreduce.planners.nccl.communicator import (
    CLASSES,
    DIS,
    NVL,
    PIX,
    PXN,
    SYS,
    Box,
    BoxPath,
    Facts,
)
from simreduce.planners.nccl.constants import ladder, tables
from simreduce.planners.nccl.environment import Settings
from simreduce.planners.nccl.orders import Channel, PathLimits, Task, fill

RING, TREE, PLAIN, NVLS = "ring", "tree", "plain_tree", "nvls"
_SLACK = 1e-6


@dataclass(frozen=True, slots=True)
class Graph:
    """One result of the search, of a whole communicator; `channels` belong to its first node.

    Speeds are per channel in GB/s, inside a node and between nodes.
    """

    pattern: str
    channels: tuple[Channel, ...]
    speed_intra: float
    speed_inter: float
    type_intra: int
    type_inter: int
    cross_nic: bool = False
    same_channels: bool = True
    hops: int = 0

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
    key = ("graphs", settings.release, settings.cross_nic, settings.nvls)
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
    """The graph that unequal nodes agree on: fewest channels, lowest speeds, farthest paths."""
    first = graphs[0]
    return replace(
        first,
        channels=first.channels[: min(graph.count for graph in graphs)],
        speed_intra=min(graph.speed_intra for graph in graphs),
        speed_inter=min(graph.speed_inter for graph in graphs),
        type_intra=max(graph.type_intra for graph in graphs),
        type_inter=max(graph.type_inter for graph in graphs),
        same_channels=all(graph.same_channels for graph in graphs),
    )


class ChannelSearch:
    """The search on one node."""

    def __init__(self, facts: Facts, box: Box, settings: Settings) -> None:
        self.box, self.settings, self.facts = box, settings, facts
        self.several = facts.nodes > 1
        self.speeds = ladder(facts.capability, facts.nodes, settings.release)
        self.most = tables(settings.release).most_channels // 2
        self.intel = facts.vendor == "Intel"

    def graphs(self) -> Graphs:
        """Rings, trees and NVLS."""
        ring = self.ring()
        return Graphs(ring, self.tree(ring), self.nvls())

    @functools.cached_property
    def reach(self) -> float:
        """The rate of the widest path: between GPUs, or to a NIC where there are several nodes."""
        if not self.several and self.box.switched:
            return max(self.box.nvlink)
        paths = self._to_nics() if self.several else self._between_gpus()
        return max((path.rate for path in paths), default=self.speeds[-1])

    def _to_nics(self) -> list[BoxPath]:
        return [path for row in self.box.to_nic for path in row if path]

    def _between_gpus(self) -> list[BoxPath]:
        pairs = itertools.permutations(range(len(self.box.gpus)), 2)
        return [path for u, v in pairs if (path := self.box.between(u, v))]

    def _first(self, total: float, least: int) -> int:
        """The place of the first speed that the widest path and all links together allow."""
        allowed = (
            place
            for place, speed in enumerate(self.speeds)
            if speed <= self.reach + _SLACK and speed * least <= total + _SLACK
        )
        return next(allowed, len(self.speeds) - 1)

    def _limits(self, pattern: str = RING) -> list[PathLimits]:
        """From the strictest to the loosest."""
        apart = len(self.box.gpus) > 1 and not self.box.switched
        inside = {path.kind for path in self._between_gpus()} if apart else {NVL}
        outside = {path.kind for path in self._to_nics()} or {PIX}
        if self.settings.release >= (2, 12) and min(inside, default=DIS) <= NVL:
            outside |= {PXN}
        near = [kind for kind in sorted(inside) if kind <= SYS] or [SYS]
        far = sorted(outside) if self.several else [PIX]
        cross = [[False], [True], [False, True]][self.settings.cross_nic if self.several else 0]
        plain = [False, True] if pattern == TREE and self.facts.capability >= 90 else [False]
        c2c = self.settings.release >= (2, 27)
        return [
            PathLimits(a, b, c, p, c2c) for c, b, a, p in itertools.product(cross, far, near, plain)
        ]

    def ring(self) -> Graph:
        """The rings; rings of at least 25 GB/s are split into two of half the speed."""
        found = self._best(RING, 1, self.most, self.box.total) or self._fallback()
        if not self._is_doubled(found):
            return found
        return replace(
            found,
            channels=(found.channels * 2)[: self.most],
            speed_intra=found.speed_intra / 2,
            speed_inter=found.speed_inter / 2,
        )

    def tree(self, ring: Graph) -> Graph:
        """As many chains as rings; inside a node they may be faster than between nodes."""
        n = len(self.box.gpus)
        total = self.box.total * (n / (n - 1) if n > 1 else 1)
        # Within a node, rings without their last hop are trees; only faster ones are searched.
        least = 0.0 if self.several else ring.speed_inter
        found = self._best(TREE, ring.count, ring.count, total, above=least)
        if found is None or found.speed_inter < ring.speed_inter:
            found = replace(ring, pattern=TREE)
        return self._faster_inside(found) if self.several else found

    def nvls(self) -> Graph | None:
        """A channel for each head; every port carries all channels and one more for its own."""
        box, n = self.box, len(self.box.gpus)
        capable = self.facts.multicast and self.facts.capability >= 90 and box.switched
        if not (capable and self.settings.nvls and self.settings.release >= (2, 17) and n > 2):
            return None
        most, port = min(n, self.most), min(box.nvlink)
        # The rate in GB/s of each NIC and the way to its nearest GPU.
        nics = [
            max((p.rate for p in ways if p), default=0.0) for ways in zip(*box.to_nic, strict=True)
        ]
        best: tuple[int, float] = (0, 0.0)
        for speed in self.speeds:
            if self.several and speed > self.reach + _SLACK:
                continue
            count = min(int((port + _SLACK) / speed) - 1, most)
            if self.several:
                count = min(count, sum(int((rate + _SLACK) / speed) for rate in nics))
            if count > best[0] or count * speed > best[0] * best[1] + _SLACK:
                best = (count, speed)
            if best[0] == most:
                break
        count, speed = best
        if count < 2:
            return None
        outer, limit = speed, self.reach if self.several else math.inf
        for faster in reversed([each for each in self.speeds if each > speed]):
            if outer < 2 * speed - _SLACK and faster <= limit + _SLACK:
                outer = faster
        channels = tuple(
            Channel((head, *(gpu for gpu in range(n) if gpu != head))) for head in range(count)
        )
        inter = self._limits()[0].inter
        return Graph(NVLS, channels, speed, outer, NVL, inter, same_channels=False)

    def _best(
        self, pattern: str, least: int, most: int, total: float, above: float = 0.0
    ) -> Graph | None:
        """The graph with the most channels x speed, found as NCCL relaxes its demands, of speeds
        `above` one.
        """
        best: Graph | None = None
        for speed in self.speeds[self._first(total, least) :]:
            if speed <= above or (best and speed / best.speed_inter <= 0.49):
                break
            for limits in self._limits(pattern):
                if best and not self._worth(best, limits):
                    continue
                found = self._at(pattern, speed, limits, least, most)
                if found and (best is None or _better(found, best)):
                    best = found
                if best and (best.count == most or best.count * best.speed_inter >= total - _SLACK):
                    return best
        return best

    @staticmethod
    def _worth(best: Graph, limits: PathLimits) -> bool:
        """Whether looser limits are still tried once a graph is found."""
        inter = limits.inter <= best.type_inter or limits.inter <= PXN
        return limits.intra <= best.type_intra and inter and limits.cross <= best.cross_nic

    def _at(
        self, pattern: str, speed: float, limits: PathLimits, least: int, most: int
    ) -> Graph | None:
        task = Task(self.box, speed, pattern == RING, limits, self.several, self.intel)
        found = fill(task, least, most)
        if len(found) < least:
            return None
        paths = [path for each in found for path in each.paths]
        outer = [path for each in found for path in each.outer]
        return Graph(
            PLAIN if limits.plain else pattern, tuple(found), speed, speed,
            max((path.kind for path in paths), default=0),
            max((path.kind for path in outer), default=PIX),
            any(each.net_in != each.net_out for each in found),
            len({each.gpus for each in found}) == 1,
            sum(path.hops for path in (*paths, *outer)),
        )  # fmt: skip

    def _faster_inside(self, graph: Graph) -> Graph:
        """The tree with a higher speed inside the node, up to the first of at least twice the speed
        between nodes.
        """
        for faster in reversed([each for each in self.speeds if each > graph.speed_intra]):
            enough = graph.speed_intra >= 2 * graph.speed_inter - _SLACK or len(self.box.gpus) == 1
            if enough or not self._fits(graph, faster):
                break
            graph = replace(graph, speed_intra=faster)
        return graph

    def _fits(self, graph: Graph, speed: float) -> bool:
        left = list(self.box.capacity)
        for channel in graph.channels:
            for u, v in itertools.pairwise(channel.gpus):
                path = self.box.between(u, v)
                for arc in path.arcs if path else ():
                    left[arc] -= speed
        return min(left) >= -_SLACK

    def _is_doubled(self, graph: Graph) -> bool:
        """Whether channels are fast enough to be split into two."""
        most = 50 if self.facts.capability > 80 and graph.count > 4 else 25
        return graph.speed_intra >= most

    def _fallback(self) -> Graph:
        """GPUs by number at 0.1 GB/s, where no channel was found."""
        nic = self.box.nics[0].name if self.several and self.box.nics else None
        channel = Channel(tuple(range(len(self.box.gpus))), nic, nic)
        return Graph(RING, (channel,), 0.1, 0.1, SYS, SYS)


def _better(one: Graph, other: Graph) -> bool:
    """More channels x speed, or as much with fewer links crossed by each channel."""
    a, b = one.count * one.speed_intra, other.count * other.speed_intra
    if abs(a - b) > _SLACK:
        return a > b
    alike = one.pattern == other.pattern and one.cross_nic == other.cross_nic
    return alike and one.hops < other.hops
