"""Resources of a machine that flows compete for: links, memories, cores, and their faults."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from simreduce.computing.arrays import AnyInts, Bools, Floats, Ints
from simreduce.engine.calibration import Calibration
from simreduce.engine.disturbance import CALM, Disturbance, Fault
from simreduce.engine.kernel.congestion import LOSSY, TREE
from simreduce.engine.lowering.cores import COMPUTER, MEMORY, core_owners
from simreduce.errors import NotFoldable
from simreduce.topology import Folded, Link, Topology, direction, find_links
from simreduce.topology.routing import switching as switching_rules


@dataclass(frozen=True)
class Congestion:
    """What the kernel must know where a flow that is held slows others (`routing.switching`).

    `rule` is one of `kernel.congestion`'s, and `part` the part of the time that it holds. By
    resource: the places of a link's two ends among the nodes, -1 of what is no link, and whether it
    `fills`, as links between switches do.
    """

    rule: float
    part: float
    source: Ints
    target: Ints
    fills: Bools
    ways: dict[bytes, AnyInts] = field(default_factory=dict)

    @staticmethod
    def of(topology: Topology, count: int) -> Congestion | None:
        """That of a topology with `count` resources; None if held flows slow nobody."""
        switching, place = topology.router.switching, topology.router.index
        if switching.isolated:
            return None
        ends = np.full((2, count), -1)
        for link in topology.links:
            if not link.is_toll:
                ends[:, link.id] = place[link.source], place[link.target]
        switch = [node.transit and node.kind == "switch" for node in topology.nodes.values()]
        fills = (ends >= 0).all(axis=0) & np.array(switch)[ends].all(axis=0)
        rule = TREE if switching.congestion == switching_rules.TREE else LOSSY
        return Congestion(rule, switching.congested, ends[0], ends[1], fills)

    def hops(self, start: Ints, uses: Ints) -> AnyInts:
        """Of every use, the place of its link on the way: 0 of the first links; -1 of no link.

        Rows of `uses` have the links of a way in order, those that share the bytes of a hop side by
        side. Ways are kept: many calls have the same.
        """
        rows = np.ascontiguousarray(uses, dtype=np.int32)
        found = np.full(len(rows), -1, dtype=np.int32)
        for begin, end in itertools.pairwise(start.tolist()):
            key = rows[begin:end].tobytes()
            if (way := self.ways.get(key)) is None:
                way = self.ways[key] = self._hops(rows[begin:end])
            found[begin:end] = way
        return found

    def _hops(self, uses: AnyInts) -> AnyInts:
        found, hop, reached = np.full(len(uses), -1, dtype=np.int32), 0, set[int]()
        ends = zip(self.source[uses].tolist(), self.target[uses].tolist(), strict=True)
        for i, (source, target) in enumerate(ends):
            if source >= 0:
                if source in reached:
                    hop, reached = hop + 1, set()
                reached.add(target)
                found[i] = hop
        return found


@dataclass(frozen=True)
class Resources:
    """The resources that flows compete for, in a fixed order.

    Every directed link comes first (same index as in the topology), then every device's memory. If
    the calibration has a `Processor`, there follow the cores of every machine, or of the one
    computer that replaces all, the cores that move bytes, and the memory that they share.

    `changes` are (s, resource, bytes/s), in order of time: what faults do to capacities. `home` is
    the link that represents each link, None if every link represents itself (`in_bundles`).
    """

    names: tuple[str, ...]
    capacity: tuple[float, ...]  # bytes/s
    latency: tuple[float, ...]  # s, of links
    memory: dict[str, int]  # node name -> index
    cores: dict[str, int] = field(default_factory=dict)  # whose -> index; in cores, not bytes/s
    moving: dict[str, int] = field(default_factory=dict)  # of the cores', as many as move bytes
    shared_memory: dict[str, int] = field(default_factory=dict)  # of the cores' -> index
    changes: tuple[tuple[float, int, float], ...] = ()
    home: tuple[int, ...] | None = None
    congestion: Congestion | None = field(default=None, compare=False)

    @staticmethod
    def of(
        topology: Topology | Folded, calibration: Calibration, disturbance: Disturbance = CALM
    ) -> Resources:
        """Return the resources of a topology, by its achievable figures.

        The calibration's figures replace them where it has any.

        NotFoldable if something disturbs a folded topology: its machines would no longer be alike.
        """
        if isinstance(topology, Folded):
            if disturbance != CALM:
                raise NotFoldable(
                    f"{topology.name}: {disturbance.text}: equal machines are folded only "
                    "if nothing disturbs them"
                )
            topology = topology.pair
        disturbance.check(topology)
        slow = disturbance.slow
        names, capacity, latency = [], [], []
        for link in topology.links:
            bandwidth, delay = _figures(link, topology, calibration)
            names.append(f"{link.name} {link.link_class}")
            capacity.append(bandwidth / max(slow.get(link.source, 1.0), slow.get(link.target, 1.0)))
            latency.append(delay)
        memory = {}
        for node in topology.nodes.values():
            if math.isfinite(node.memory_bandwidth):
                memory[node.name] = len(names)
                names.append(f"{node.name} memory")
                capacity.append(node.memory_bandwidth / slow.get(node.name, 1.0))
        cores, moving, shared_memory = {}, {}, {}
        if processor := calibration.cpu:
            for owner in core_owners(topology, processor):
                named = COMPUTER if processor.shared else f"machine {owner} CPU"
                cores[owner] = len(names)
                names.append(f"{named} cores")
                capacity.append(processor.cores)
                if math.isfinite(processor.moving):
                    moving[owner] = len(names)
                    names.append(f"{named} bytes")
                    capacity.append(processor.moving)
                if math.isfinite(processor.memory):
                    shared_memory[owner] = len(names)
                    names.append(f"{named} {MEMORY}")
                    capacity.append(processor.memory)
        changes = capacity_changes(topology, capacity, disturbance.faults)
        return Resources(
            tuple(names),
            tuple(capacity),
            tuple(latency),
            memory,
            cores,
            moving,
            shared_memory,
            changes,
            congestion=Congestion.of(topology, len(names)),
        )

    def in_bundles(self, topology: Topology | Folded) -> Resources:
        """The same with one link for each bundle of links that carry the same (`Bundled`).

        The others stay, unused. They are only put together where none differs and none changes.
        """
        bundles = None if isinstance(topology, Folded) else topology.router.bundles
        if bundles is None or self.changes or self.congestion:
            return self
        home = bundles.home
        same = all(np.array_equal(a[: len(home)], a[home]) for a in (self.rates, self.delays))
        return replace(self, home=tuple(home.tolist())) if same else self

    @cached_property
    def in_cores(self) -> frozenset[str]:
        """The names of those whose capacity is a number of cores."""
        return frozenset(self.names[i] for i in (*self.cores.values(), *self.moving.values()))

    @cached_property
    def rates(self) -> Floats:
        """`capacity`, as an array."""
        return np.array(self.capacity)

    @cached_property
    def delays(self) -> Floats:
        """`latency`, as an array."""
        return np.array(self.latency)

    @cached_property
    def best(self) -> Resources:
        """The most that each of them ever gives, for ever."""
        if not self.changes:
            return self
        capacity = list(self.capacity)
        for _, resource, rate in self.changes:
            capacity[resource] = max(capacity[resource], rate)
        return replace(self, capacity=tuple(capacity), changes=())


def capacity_changes(
    topology: Topology, whole: Sequence[float], faults: Sequence[Fault]
) -> tuple[tuple[float, int, float], ...]:
    """Return the `changes` of `Resources` by `faults` on links that carry `whole` bytes/s.

    Of several faults at one instant, the last counts.
    """
    found = [
        (
            fault.time,
            link,
            whole[link] * fault.factor if fault.bandwidth is None else fault.bandwidth,
        )
        for fault in faults
        for link in find_links(topology, fault.link)
    ]
    return tuple(sorted(found, key=lambda change: change[0]))


def _figures(link: Link, topology: Topology, calibration: Calibration) -> tuple[float, float]:
    """Return a link's bandwidth and latency.

    They are given for the class, for the class in this direction or for this very link: what is
    said last counts.
    """
    bandwidth, latency = link.bandwidth, link.latency
    way = direction(topology.nodes[link.source], topology.nodes[link.target])
    for name in (link.link_class, f"{link.link_class}:{way}", link.name):
        if constants := calibration.links.get(name):
            bandwidth = (
                bandwidth if constants.bandwidth is None else constants.bandwidth * link.lanes
            )
            latency = latency if constants.latency is None else constants.latency
    return bandwidth, latency
