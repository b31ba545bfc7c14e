"""Resources of a machine that flows compete for: links, memories, cores, and their faults."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from simreduce.computing.arrays import AnyInts, Bools, Floats, Ints, blocks
from simreduce.engine.disturbance import CALM, Disturbance, Fault, scatter
from simreduce.engine.kernel.congestion import LOSSY, TREE
from simreduce.engine.lowering.calls import Calls, Signatures, give_own_calls, views
from simreduce.engine.runtime import Calibration, Processor, Runtime
from simreduce.errors import InputError, NotFoldable, did_you_mean
from simreduce.plan import Executor, Kind, Plan
from simreduce.plan.plan import IN_PLACE
from simreduce.topology import Folded, Link, Node, Topology, direction, find_links
from simreduce.topology.elements import DEFAULT_REACH
from simreduce.topology.routing import switching as switching_rules


class Site(NamedTuple):
    """The devices of a plan on a topology; for a folded plan also another machine's devices.

    `by_nccl` is the topology for NCCL's channels, which may reach fewer peers. `place` is a
    device's place in the topology. `nodes` gives its lanes their names. `home` is the link that
    represents each link; None if every link represents itself.
    """

    topology: Topology
    by_nccl: Topology
    place: Ints
    nodes: tuple[Node, ...]
    home: Ints | None


def find_site(plan: Plan, topology: Topology | Folded, reach: str = DEFAULT_REACH) -> Site:
    """Raises InputError if the topology lacks a device, or if only one of the two is folded."""
    folded = topology.machines if isinstance(topology, Folded) else 1
    if folded != plan.machines:
        raise InputError(
            f"{topology.name}: the plan is that of {_machines(plan.machines)}, and the "
            f"topology {_machines(folded)}"
        )
    graph = topology.pair if isinstance(topology, Folded) else topology
    missing = [d for d in plan.devices if d not in graph.nodes]
    if missing:
        raise InputError(
            [
                f"{topology.name}: the plan needs a device {d!r}{did_you_mean(d, graph.nodes)}"
                for d in missing
            ]
        )
    names, nodes, home = list(plan.devices), [graph.nodes[d] for d in plan.devices], None
    if isinstance(topology, Folded):
        twins = [topology.twin[name] for name in names]
        nodes += [replace(graph.nodes[t], name=name) for t, name in zip(twins, names, strict=True)]
        names += twins
        home = np.array(topology.home, dtype=np.int64)
    place = np.array([graph.router.index[name] for name in names], dtype=np.int64)
    return Site(
        graph, graph if reach == DEFAULT_REACH else graph.limit_peers(reach), place, tuple(nodes),
        home,
    )  # fmt: skip


def _machines(count: int) -> str:
    return (
        f"one of {count} equal machines (folded)"
        if count > 1
        else "all devices, none of them folded"
    )


@lru_cache(maxsize=16)
def find_hosts(topology: Topology) -> tuple[Ints, Ints]:
    """Return, for every node, the number of its machine and the place of its host.

    The host is the machine's first; -1 if it has none.
    """
    first = {
        topology.nodes[name].machine: topology.router.index[name]
        for name in reversed(topology.hosts)
    }
    number: dict[str, int] = {}
    machines = [number.setdefault(node.machine, len(number)) for node in topology.nodes.values()]
    hosts = [first.get(node.machine, -1) for node in topology.nodes.values()]
    return np.array(machines, dtype=np.int64), np.array(hosts, dtype=np.int64)


COMPUTER = "computer"
"""Owns the cores where one computer does the work of all machines."""

CPU = "cpu"
"""The kind of lane on which ops take turns at the cores."""

MEMORY = "memory"
"""The name of the resource between caches and memory."""

TRANSFER = "transfer"
"""The kind of a copy to another machine, where rates are meant."""

_WRITERS = (Kind.COPY, Kind.ADD, Kind.SLICE, Kind.CONCAT, Kind.SCALE, Kind.CAST)
"""Ops that write every byte of their value, but for views. INPUTs and OUTPUTs share a variable."""

_OWNERS = (Kind.INPUT, *_WRITERS)
"""Ops whose values have memory of their own."""


def core_owner(processor: Processor, machine: str) -> str:
    """The owner of the cores that a machine uses."""
    return COMPUTER if processor.shared else machine


def measure_working_set(
    plan: Plan, nodes: Sequence[Node], processor: Processor
) -> dict[str, float]:
    """Bytes of all values that have memory of their own, by owner of the cores of their `nodes`.

    A plan that repeats a step counts once. All are 0 if the processor's memory limits nothing.
    """
    found = {core_owner(processor, node.machine): 0.0 for node in nodes}
    if not math.isfinite(processor.memory):
        return found
    own, shared = np.zeros(len(nodes)), views(plan, nodes)
    for some in blocks(len(plan)):
        kind = plan.kind[some]
        made = np.isin(kind, _OWNERS) & ((kind != Kind.CONCAT) | (plan.arg[some] != IN_PLACE))
        made &= ~shared[some]
        own += np.bincount(plan.device[some][made], plan.sizes(some)[made], minlength=len(own))
    machines = plan.machines if processor.shared else 1
    for node, nbytes in zip(nodes, own.tolist(), strict=True):
        found[core_owner(processor, node.machine)] += nbytes * machines / plan.times
    return found


@dataclass(frozen=True, slots=True)
class CoreWork:
    """The work of calls on the cores. Each column has an entry for each of `calls`, ascending."""

    calls: AnyInts
    seconds: Floats  # of a core, whatever the size
    per_byte: Floats  # s of a core for each byte of the result; 0 where unknown
    past: Floats  # s more for each byte that is read or written beyond the core's own cache
    touched: Floats  # bytes read and written for each byte of the result
    through: Floats  # bytes written to memory for each byte of the result; 0: no limit
    apart: Bools  # whether its bytes move after its work, not with it
    owner: tuple[str, ...]  # of the cores
    own_cache: int  # bytes

    @property
    def at_once(self) -> Floats:
        """The part of `seconds` that is one flow with the bytes."""
        return np.where(self.apart, 0.0, self.seconds)

    @property
    def in_turn(self) -> Floats:
        """The part of `seconds` that comes before the bytes."""
        return np.where(self.apart, self.seconds, 0.0)

    def moving_seconds(self, which: AnyInts, nbytes: Floats) -> Floats:
        """Seconds in which one core moves results of `nbytes`, for the entries `which`."""
        beyond = np.maximum(self.touched[which] * nbytes - self.own_cache, 0.0)
        return nbytes * self.per_byte[which] + beyond * self.past[which]


_NOTHING = np.zeros(0)
NO_WORK = CoreWork(
    calls=np.zeros(0, dtype=np.int64),
    seconds=_NOTHING,
    per_byte=_NOTHING,
    past=_NOTHING,
    touched=_NOTHING,
    through=_NOTHING,
    apart=np.zeros(0, dtype=np.bool_),
    owner=(),
    own_cache=0,
)
"""No call gives the cores any work."""


def find_core_work(
    plan: Plan,
    signatures: Signatures,
    site: Site,
    runtime: Runtime,
    calibration: Calibration,
    disturbance: Disturbance,
    working_set: Mapping[str, float] | None,
) -> CoreWork:
    """The work of the calls that are dispatched on CPU devices and stay on them.

    A sum of n values reads n and writes one, which makes `passes`. None for `working_set`: the plan
    is the whole step.
    """
    processor = calibration.cpu
    if processor is None or not runtime.dispatch:
        return NO_WORK
    if working_set is None:
        working_set = measure_working_set(plan, site.nodes[: len(plan.devices)], processor)
    kind, dispatch, slow = signatures.kind, calibration.dispatch, disturbance.slow
    source, target = (
        [site.nodes[i] for i in column.tolist()]
        for column in (signatures.source, signatures.target)
    )
    both = np.array([a.kind == b.kind == "cpu" for a, b in zip(source, target, strict=True)])
    both[0] = False  # the call of ops that cost nothing
    calls = np.flatnonzero(both & (signatures.executor == Executor.TF))
    crosses = np.array(
        [source[c].machine != target[c].machine for c in calls.tolist()], dtype=np.bool_
    )
    factor = np.array([slow.get(source[c].name, 1.0) for c in calls.tolist()])
    rates = processor.rates
    names = [Kind(k).name.lower() for k in kind[calls].tolist()]
    costs = np.array([dispatch.get(name, 0.0) for name in names])
    passes = signatures.passes[calls] * runtime.local
    moved = np.where(kind[calls] == Kind.COPY, 1, passes)
    rated = (TRANSFER if away else name for name, away in zip(names, crosses, strict=True))
    owner = tuple(core_owner(processor, source[c].machine) for c in calls.tolist())
    missed = np.array([processor.missed(working_set[name]) for name in owner])
    shared = (kind[calls] == Kind.SLICE) & (moved == 0)
    written = np.isin(kind[calls], _WRITERS) & ~shared & ~crosses & math.isfinite(processor.memory)
    per_byte = (
        moved * factor * np.array([1.0 / rates[name] if name in rates else 0.0 for name in rated])
    )
    return CoreWork(
        calls=calls,
        seconds=(costs + processor.message * crosses) * factor,
        per_byte=per_byte,
        past=np.where((per_byte > 0.0) & ~crosses, factor / processor.past_own, 0.0),
        touched=np.where(kind[calls] == Kind.COPY, 2.0, moved),
        through=written * missed * factor,
        # Within one computer, its cores also move the bytes between machines.
        apart=crosses & ~((per_byte > 0.0) & processor.shared),
        owner=owner,
        own_cache=processor.own_cache,
    )


def core_speed(processor: Processor, capacity: Sequence[float]) -> float:
    """Return the bytes/s that one core copies, or else its highest rate.

    Without any rate, it is the highest of the machine's capacities.
    """
    rates = processor.rates
    return rates.get("copy") or max(rates.values(), default=max(filter(math.isfinite, capacity)))


def core_flow(
    work: Floats, moving: Floats, demand: Floats, uses: AnyInts, speed: float
) -> tuple[Floats, Floats]:
    """Return the amounts of flows that represent ops on cores, and the weights of what they use.

    An op keeps one core busy for `work` seconds, whatever its size, and for `moving` seconds with
    its bytes. Meanwhile it takes `demand[r]` of every other resource r: bytes, or seconds of the
    cores that move bytes. The kernel knows only flows, whose rates it makes equal, so the amount is
    in *core bytes*: the bytes that one core would copy in the time, at `speed` bytes/s.

        amount          = (work + moving) * speed     core bytes; the rate is at most `speed`
        weight of r     = demand[r] / amount          of r per core byte
        weight of cores = 1 / speed                   s of a core per core byte

    So cores are shared by time, and links by bytes. Op i has `uses[i]` entries of `demand`;
    the last is the cores' and does not count.

    Example: a core copies 10 GB/s. An op has 100 us of work and moves 1 MB through a memory in 100
    us. Its amount is 200 us * 10 GB/s = 2 MB, its weight on the memory 1 MB / 2 MB = 0.5, and on
    the cores 0.1 ns. Alone its rate is 10 GB/s: it takes 200 us, one core, and 5 GB/s of the
    memory.
    """
    amount = (work + moving) * speed
    weight = demand / np.repeat(amount, uses)
    weight[np.cumsum(uses) - 1] = 1.0 / speed
    return amount, weight


def add_core_flows(
    call: AnyInts,
    amount: Floats,
    calls: Calls,
    cores: CoreWork,
    moving: Collection[int],
    speed: float,
    disturbance: Disturbance,
) -> tuple[AnyInts, Calls, Floats]:
    """Calls and amounts in which ops that `cores` work on are core flows (see `core_flow`).

    They have calls of their own, one for each size, after all others.

    `moving` are the resources of cores that move bytes.
    """
    entry = np.full(len(calls.cap), -1)
    entry[cores.calls] = np.arange(len(cores.calls))
    fixed, rated = np.zeros(len(entry)), np.zeros(len(entry), dtype=np.bool_)
    fixed[cores.calls], rated[cores.calls] = cores.at_once, cores.per_byte > 0.0
    ops = np.flatnonzero((fixed > 0.0)[call] | (rated[call] & (amount > 0.0)))
    if not len(ops):
        return call, calls, amount
    if disturbance.jitter:
        first = which = np.arange(len(ops))
        scale = scatter(disturbance.seed, len(call))[0][ops] * disturbance.jitter + 1.0
    else:
        sizes, size = np.unique(amount[ops], return_inverse=True)
        keys = call[ops].astype(np.int64) * len(sizes) + size
        _, first, which = np.unique(keys, return_index=True, return_inverse=True)
        scale = np.ones(len(first))
    old, nbytes = call[ops[first]], amount[ops[first]]
    own, work = calls.select(old), fixed[old] * scale
    seconds, uses = cores.moving_seconds(entry[old], nbytes), np.diff(own.use_start)
    demand = np.where(
        np.isin(own.uses, list(moving)),
        np.repeat(seconds, uses),
        np.repeat(nbytes, uses) * own.weight,
    )
    core_bytes, weight = core_flow(work, seconds, demand, uses, speed)
    own = replace(own, work=work, cap=np.full(len(old), speed), weight=weight)
    amount = amount.copy()
    amount[ops] = core_bytes[which]
    return *give_own_calls(call, ops, which, calls, own.drop_uses(nbytes == 0.0)), amount


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
        for link in topology.wires:
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

        def add(name: str, rate: float) -> int:
            names.append(name)
            capacity.append(rate)
            return len(names) - 1

        for link in topology.links:
            bandwidth, delay = _figures(link, topology, calibration)
            slower = max(slow.get(link.source, 1.0), slow.get(link.target, 1.0))
            add(f"{link.name} {link.link_class}", bandwidth / slower)
            latency.append(delay)
        memory = {
            node.name: add(f"{node.name} memory", node.memory_bandwidth / slow.get(node.name, 1.0))
            for node in topology.nodes.values()
            if math.isfinite(node.memory_bandwidth)
        }
        cores, moving, shared_memory = {}, {}, {}
        if processor := calibration.cpu:
            cpus = (node for node in topology.nodes.values() if node.kind == "cpu")
            for owner in dict.fromkeys(core_owner(processor, node.machine) for node in cpus):
                named = COMPUTER if processor.shared else f"machine {owner} CPU"
                cores[owner] = add(f"{named} cores", processor.cores)
                if math.isfinite(processor.moving):
                    moving[owner] = add(f"{named} bytes", processor.moving)
                if math.isfinite(processor.memory):
                    shared_memory[owner] = add(f"{named} {MEMORY}", processor.memory)
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
