"""The time semantics said once more, as plainly as possible: one SimPy process per op, and exact
arithmetic.

Nothing is shared with the engine but the words of its specification. Times, bytes and rates are
fractions, so two things that tie on paper tie here. SimPy keeps the clock; its priorities keep the
order within one instant:

1. NORMAL: phases end, ops become ready, lanes are freed, flows open and close;
2. LANES: free lanes go to waiting ops;
3. RATES: every flow gets a new rate. SimPy reaches it when nothing of the other two is left at this
   instant.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from itertools import pairwise
from math import inf, isfinite
from typing import Any, NamedTuple

import numpy as np
import simpy

from simreduce.engine import Calibration, Runtime
from simreduce.engine.runtime import Call, Software, no_lanes
from simreduce.plan import Executor, Kind, Plan
from simreduce.topology import Link, Node, Topology, route

LANES, RATES = 2, 3

ULP = Fraction(1, 2**52)
WINDOW = 4 * ULP
"""What is due this close to the earliest due time happens with it."""

UNCLEAR = Fraction(1, 10**10)
"""What is due this close, but not with it, may be taken for a tie or not by whoever rounds."""

REACH = 16
"""How often the kernel finds anew what comes to links that drop."""


class Demand(NamedTuple):
    """What a flow asks for: the capacity it takes per byte of its rate, by resource, and a limit of
    its own.
    """

    weights: Mapping[str, Fraction]
    cap: Fraction | None = None
    way: Sequence[tuple[str, int]] = ()
    """Its links in order, with how many hops come before each."""


def max_min(capacity: Mapping[str, Fraction], demands: Sequence[Demand]) -> list[Fraction]:
    """Rates that rise together from 0; a flow stops when a resource that it uses is full, or at its
    cap.
    """
    rates: list[Fraction | None] = [None] * len(demands)
    while None in rates:
        rising = [i for i, rate in enumerate(rates) if rate is None]
        level_of = {}
        for name in {name for i in rising for name in demands[i].weights}:
            taken = sum(
                rate * d.weights.get(name, 0)
                for rate, d in zip(rates, demands, strict=True)
                if rate
            )
            load = sum(demands[i].weights.get(name, 0) for i in rising)
            level_of[name] = (capacity[name] - taken) / load
        level = min(
            [*level_of.values(), *(demands[i].cap for i in rising if demands[i].cap is not None)]
        )
        for i in rising:
            if demands[i].cap == level or level in [level_of[name] for name in demands[i].weights]:
                rates[i] = level
    return rates


def congested(
    capacity: Mapping[str, Fraction], demands: Sequence[Demand], rule: str, fills: AbstractSet[str]
) -> list[Fraction]:
    """Rates where flows that are held slow others, by what `kernel.congestion` says; `fills` are
    the links that fill. Where the kernel goes on from link to link, this looks back along chains.
    """
    fair, many = max_min(capacity, demands), range(len(demands))
    ways = [[(n, hop) for n, hop in d.way if n in fills] for d in demands]

    @cache
    def weights(name: str) -> Fraction:
        return sum((d.weights[name] for d in demands if name in d.weights), Fraction(0))

    def limits(i: int, name: str) -> bool:
        there = [j for j in many if name in demands[j].weights]
        load = sum(demands[j].weights[name] * fair[j] for j in there)
        return 0 < fair[i] >= max(fair[j] for j in there) and load == capacity[name]

    end = [next((n for n in reversed(d.way) if limits(i, n[0])), ("", -1))
           for i, d in enumerate(demands)]  # fmt: skip
    firsts = [min((hop for _, hop in way), default=None) for way in ways]

    def offered(i: int) -> Fraction:
        places = dict(demands[i].way)
        before = [n for n in demands[i].weights if places.get(n, -1) < firsts[i]]
        most = [capacity[n] / weights(n) for n in before] + [demands[i].cap]
        return max(fair[i], min((each for each in most if each is not None), default=fair[i]))

    offer = [fair[i] if firsts[i] is None else offered(i) for i in many]
    held = {i for i in many if firsts[i] is not None and end[i][1] > firsts[i]}
    held = {i for i in held if fair[i] < offer[i]}

    @cache
    def part(cause: str, link: str, chain: int) -> Fraction | float:
        """What flows have of their offers there at most, for what `cause` holds."""
        found = [inf]
        for i in many:
            for hop in (hop for name, hop in ways[i] if name == link):
                if i in held and end[i][0] == cause and hop < end[i][1]:
                    found.append(fair[i] / offer[i])
                elif end[i][0] != cause and chain > 1:
                    then = [part(cause, n, chain - 1) for n, later in ways[i] if later > hop]
                    found += [each for each in then if offer[i] * each < fair[i]]
        return min(found)

    lossy = {n for i in held for n, hop in ways[i] if hop < end[i][1]}

    def comes(i: int, to: int, turns: int) -> Fraction:
        """What comes of a flow to its links of that hop."""
        rate = offer[i] if i in held else fair[i]
        limited = [fair[i]] if -1 < end[i][1] <= to else []
        return min([rate, *limited, *(goes_on(n, turns) for n, at in ways[i] if at < to)])

    @cache
    def goes_on(link: str, turns: int) -> Fraction | float:
        """What goes on of every flow at most, if links before were asked so often."""
        if link not in lossy or turns == 0:
            return inf
        there = [(i, hop) for i in many for name, hop in ways[i] if name == link]
        come = [comes(i, hop, turns - 1) for i, hop in there]
        alone = [Demand({link: demands[i].weights[link]}, cap=each)
                 for (i, _), each in zip(there, come, strict=True)]  # fmt: skip
        goes = max_min({link: capacity[link]}, alone)
        return inf if goes == come else max(goes)

    if rule == "lossy":
        return [
            min(fair[i], comes(i, len(demands[i].way), REACH)) if ways[i] else fair[i] for i in many
        ]
    causes = {end[i][0] for i in held}
    return [
        min([fair[i], *(
            offer[i] * part(cause, name, len(demands))
            for name, _ in ways[i] for cause in causes - {end[i][0]}
        )])
        for i in many
    ]  # fmt: skip


class Submission(NamedTuple):
    """A plan that begins at a time; `ready` has one number per INPUT, in seconds after that."""

    plan: Plan
    ready: Sequence[float]
    at: float = 0.0


class Change(NamedTuple):
    """A link (by name) carries another bandwidth from a time on."""

    at: float
    link: str
    bandwidth: float


@dataclass
class Times:
    """When each op of one submission was ready, started and was done; inf: never."""

    ready: list[float]
    start: list[float]
    finish: list[float]


@dataclass(eq=False)
class Job:
    """One op of one submission, and what has become of it."""

    id: tuple[int, int]
    overhead: Fraction
    latency: Fraction
    holds: bool
    amount: Fraction
    lanes: frozenset[str]
    pipes: frozenset[str]
    weights: Mapping[str, Fraction]
    way: Sequence[tuple[str, int]]
    cap: Fraction | None
    before: list[int]
    release: Fraction | None
    done: simpy.Event
    ready: Fraction | float = inf
    start: Fraction | float = inf
    finish: Fraction | float = inf


@dataclass(eq=False)
class Flow:
    """Bytes on their way."""

    demand: Demand
    left: Fraction
    moved: simpy.Event
    since: Fraction
    rate: Fraction = Fraction(0)


@dataclass
class Oracle:
    """Runs submissions on one machine. `unclear` says whether rounding could have changed the order
    of events.
    """

    topology: Topology
    runtime: Runtime
    calibration: Calibration
    env: simpy.Environment = field(
        default_factory=lambda: simpy.Environment(initial_time=Fraction(0))
    )
    unclear: bool = False
    _alarms: dict[simpy.Event, Fraction] = field(default_factory=dict)
    _planned: set[int] = field(default_factory=set)
    _waiting: list[tuple[Job, frozenset[str], simpy.Event]] = field(default_factory=list)
    _busy: set[str] = field(default_factory=set)
    _flows: dict[tuple[int, int], Flow] = field(default_factory=dict)

    def run(self, submissions: Sequence[Submission], changes: Sequence[Change] = ()) -> list[Times]:
        """Times of every submission, in the order given."""
        self.capacity = self._capacities()
        self.at_first = dict(self.capacity)
        jobs: list[list[Job]] = []
        for number, submission in enumerate(submissions):
            mine = self._jobs(number, submission)
            jobs.append(mine)
            self.env.process(self._submission(submission, mine))
        for change in changes:
            self.env.process(self._change(change))
        self.env.run()
        return [
            Times(
                *(
                    [float(getattr(job, name)) for job in mine]
                    for name in ("ready", "start", "finish")
                )
            )
            for mine in jobs
        ]

    # What ops are

    def _capacities(self) -> dict[str, Fraction]:
        capacity = {}
        for link in self.topology.links:
            bandwidth = link.bandwidth
            for name in self._known_as(link.id):
                constants = self.calibration.links.get(name)
                if constants is not None and constants.bandwidth is not None:
                    bandwidth = constants.bandwidth * link.lanes
            capacity[link.name] = Fraction(bandwidth)
        for node in self.topology.nodes.values():
            if isfinite(node.memory_bandwidth):
                capacity[f"memory of {node.name}"] = Fraction(node.memory_bandwidth)
            if self.calibration.cpu:
                capacity[f"cores of {self._owner(node)}"] = Fraction(self.calibration.cpu.cores)
                if isfinite(self.calibration.cpu.moving):
                    capacity[f"moving of {self._owner(node)}"] = Fraction(
                        self.calibration.cpu.moving
                    )
                if isfinite(self.calibration.cpu.memory):
                    capacity[f"shared memory of {self._owner(node)}"] = Fraction(
                        self.calibration.cpu.memory
                    )
        return capacity

    def _known_as(self, link_id: int) -> list[str]:
        """The names under which a calibration may have a link, the narrowest last."""
        link = self.topology.links[link_id]
        kinds = self.topology.nodes[link.source].kind, self.topology.nodes[link.target].kind
        from_gpu = {("gpu", "cpu"), ("gpu", "pcie_switch"), ("pcie_switch", "cpu")}
        ways = [":d2h"] if kinds in from_gpu else [":h2d"] if kinds[::-1] in from_gpu else []
        return [link.link_class, *(link.link_class + way for way in ways), link.name]

    def _owner(self, node: Node) -> str:
        assert self.calibration.cpu
        return "all" if self.calibration.cpu.shared else f"machine {node.machine}"

    def _latency(self, link_id: int) -> Fraction:
        link = self.topology.links[link_id]
        for name in reversed(self._known_as(link_id)):
            constants = self.calibration.links.get(name)
            if constants is not None and constants.latency is not None:
                return Fraction(constants.latency)
        return Fraction(link.latency)

    def _work(self, call: Call, passes: int) -> tuple[Fraction, Fraction]:
        """Seconds of a core that an op takes, and for each of its bytes."""
        cpu = self.calibration.cpu
        if cpu is None or not self.runtime.dispatch or call.executor != Executor.TF:
            return Fraction(0), Fraction(0)
        if "gpu" in (call.source.kind, call.target.kind):
            return Fraction(0), Fraction(0)
        name, seconds = (
            call.kind.name.lower(),
            Fraction(self.calibration.dispatch.get(call.kind.name.lower(), 0.0)),
        )
        if call.source.machine != call.target.machine:
            name, seconds = "transfer", seconds + Fraction(cpu.message)
        return seconds, passes / Fraction(cpu.rates[name]) if name in cpu.rates else Fraction(0)

    def _past_its_own(
        self, call: Call, per_byte: Fraction, passes: int, nbytes: Fraction
    ) -> Fraction:
        """Seconds longer that a core works on what its own cache does not hold."""
        cpu = self.calibration.cpu
        assert cpu
        if not per_byte or not isfinite(cpu.past_own) or call.source.machine != call.target.machine:
            return Fraction(0)
        touched = nbytes * (2 if call.kind == Kind.COPY else passes)
        return max(touched - cpu.own_cache, Fraction(0)) / Fraction(cpu.past_own)

    def _past_the_cache(self, call: Call, owner: str, plan: Plan, mine: int) -> Fraction:
        """Bytes of memory that are written for each byte of an op on CPU devices."""
        cpu = self.calibration.cpu
        assert cpu
        if (
            not isfinite(cpu.memory)
            or call.executor != Executor.TF
            or call.source.machine != call.target.machine
        ):
            return Fraction(0)
        if call.kind in (Kind.INPUT, Kind.OUTPUT) or self._is_view(plan, mine):
            return Fraction(0)
        whole = 0
        for op in range(len(plan)):
            kind, there = Kind(plan.kind[op]), self.topology.nodes[plan.devices[plan.device[op]]]
            in_place = kind == Kind.CONCAT and plan.arg[op] == 1
            shares = kind == Kind.OUTPUT or in_place or self._is_view(plan, op)
            whole += 0 if shares or self._owner(there) != owner else int(plan.nbytes[op])
        return Fraction(1 - cpu.cache / whole) if whole > cpu.cache else Fraction(0)

    def _core_flow(
        self,
        owner: str,
        work: Fraction,
        moving: Fraction,
        nbytes: Fraction,
        weights: Mapping[str, Fraction],
    ) -> tuple[Fraction, Mapping[str, Fraction], Fraction | None]:
        """Amount, weights and cap of an op that takes a core for `work` and `moving` seconds, in
        bytes that a core would copy meanwhile: it is time that flows share at the cores.
        """
        cpu = self.calibration.cpu
        assert cpu
        if not work + moving:
            return nbytes, weights, None
        fastest = max(map(Fraction, cpu.rates.values()), default=max(self.capacity.values()))
        speed = Fraction(cpu.rates["copy"]) if "copy" in cpu.rates else fastest
        amount = (work + moving) * speed
        taken = {name: weight * nbytes for name, weight in weights.items() if nbytes}
        if moving and isfinite(cpu.moving):
            taken[f"moving of {owner}"] = moving
        taken[f"cores of {owner}"] = work + moving
        return amount, {name: each / amount for name, each in taken.items()}, speed

    def _jobs(self, number: int, submission: Submission) -> list[Job]:
        plan = submission.plan
        releases = iter(submission.ready)
        last_on_stream: dict[int, int] = {}
        jobs, steps = [], self._steps(plan)
        starts = self._starts(plan, steps)
        for op in range(len(plan)):
            kind, operands = Kind(plan.kind[op]), plan.operands_of(op)
            before = (
                operands
                + plan.controls[plan.control_start[op] : plan.control_start[op + 1]].tolist()
            )
            stream = int(plan.stream[op])
            if stream >= 0 and op not in steps and Executor(plan.executor[op]) == Executor.TF:
                before += [last_on_stream[stream]] if stream in last_on_stream else []
                last_on_stream[stream] = op
            target = self.topology.nodes[plan.devices[plan.device[op]]]
            source = (
                self.topology.nodes[plan.devices[plan.device[operands[0]]]] if operands else target
            )
            channel = stream // len(plan.devices) if stream >= 0 else -1
            executor = Executor(plan.executor[op])
            if op in steps:
                executor, channel = Executor.NCCL, -2 - channel
            call = Call(executor, kind, source, target, channel)
            dispatch = (
                self.calibration.dispatch.get(kind.name.lower(), 0.0)
                if self.runtime.dispatch
                else 0.0
            )
            latency, holds, weights, way = Fraction(0), True, {}, []
            if kind == Kind.COPY:
                stops = [source.name, target.name]
                if (
                    self.runtime.staged
                    and call.executor == Executor.TF
                    and source.machine != target.machine
                ):
                    stops[1:1] = [
                        next(
                            h
                            for h in self.topology.hosts
                            if self.topology.nodes[h].machine == node.machine
                        )
                        for node in (source, target)
                    ]
                legs = [route(self.topology, a, b) for a, b in pairwise(stops) if a != b]
                path = [step for leg in legs for step in zip(leg.links, leg.shares, strict=True)]
                latency = sum(
                    (self._latency(link) * Fraction(share) for link, share in path), Fraction(0)
                )
                holds = len(legs) > 1 or all(
                    self.topology.links[link].holds_lane for link, _ in path
                )
                weights, way = {}, self._way(legs, stops)
                for link, share in path:
                    name = self.topology.links[link].name
                    weights[name] = weights.get(name, Fraction(0)) + Fraction(share)
            elif kind not in (Kind.INPUT, Kind.OUTPUT):
                weights = self._memory(self._passes(plan, op), target)
            lanes, pipes = frozenset(self.runtime.lanes(call)), frozenset(self.runtime.pipes(call))
            if executor != Executor.TF:
                lanes, pipes = frozenset(), frozenset()
                if kind == Kind.COPY:
                    connection = source.name, target.name, channel % 64
                    pipes = frozenset({f"{connection}"})
                    kernel = executor >= Executor.KERNEL
                    if channel >= 0 and {source.kind, target.kind} - {"gpu", "cpu"} and not kernel:
                        lanes, pipes, holds = pipes, lanes, True
            overhead, cap = Fraction(0 if kind in (Kind.INPUT, Kind.OUTPUT) else dispatch), None
            passes = self._passes(plan, op)
            seconds, per_byte = self._work(call, passes)
            nbytes = Fraction(int(plan.nbytes[op]))
            if (
                self.calibration.cpu
                and "gpu" not in (source.kind, target.kind)
                and self.runtime.dispatch
            ):
                owner = self._owner(source)
                overhead, holds = Fraction(0), False
                within = source.machine == target.machine
                if not within and not (per_byte and self.calibration.cpu.shared):
                    overhead = seconds / Fraction(self.calibration.cpu.cores)
                    latency += seconds - overhead
                    lanes |= {f"cpu of {owner}"} if seconds else frozenset()
                    seconds = Fraction(0)
                if past := self._past_the_cache(call, owner, plan, op):
                    weights = {**weights, f"shared memory of {owner}": past}
                moved = nbytes * per_byte + self._past_its_own(call, per_byte, passes, nbytes)
                nbytes, weights, cap = self._core_flow(owner, seconds, moved, nbytes, weights)
            if host := self._host(call):
                overhead += self._issue(plan, op, call)
                lanes, pipes, holds = (
                    host,
                    lanes | pipes,
                    kind == Kind.COPY and source.kind == "cpu",
                )
            if executor != Executor.TF:  # the steps of one kernel: nothing is dispatched
                far = self._is_message(call) and executor < Executor.KERNEL
                overhead = Fraction(0)
                if far:
                    blocks, role = channel % 4096 // 64 + 1, channel // 4096
                    simple, each = int(executor) == 1, Fraction(1)
                    if role & 2:  # in a tree
                        each = Fraction(0.4) if simple else Fraction(0)
                    if role & 8 and simple:  # a user's, in messages of 64 KiB
                        each = Fraction(max(-(-(int(plan.nbytes[op]) // blocks) // 2**16), 1))
                    if not (role & 10 or simple):  # a ring's
                        each = self._beyond_eight(plan, op, call)
                    software = self._software(source.name, target.name)
                    message = Fraction(self.calibration.nccl.message)
                    held = message * Fraction(0.35 if int(executor) == 3 else 1)  # by LL128
                    overhead = (held + Fraction(software.message) * each) * blocks
                if far and not {source.kind, target.kind} - {"gpu", "cpu"}:
                    lanes = frozenset({f"proxy of {source.name}"})
                if kind != Kind.COPY:  # sums are part of what receives
                    weights = {}
                price = self._nccl if executor < Executor.KERNEL else self._kernel
                latency, weights, cap = price(call, nbytes, weights)
                if far:
                    latency += (message - held) * blocks
                if cap and executor < Executor.KERNEL and self._is_far(call):
                    cap = self._window(plan, op, call, latency, cap)
            if op in starts:
                nccl = self.calibration.nccl
                latency += Fraction(nccl.launch + nccl.start["simple"])
            if kind == Kind.CONCAT and plan.arg[op] == 1:  # in place: nothing happens
                overhead, latency, weights, lanes, pipes = (
                    Fraction(0),
                    Fraction(0),
                    {},
                    frozenset(),
                    frozenset(),
                )
            jobs.append(
                Job(
                    id=(number, op),
                    overhead=overhead,
                    latency=latency,
                    holds=holds,
                    amount=nbytes + self._first_pass(call, nbytes) if weights else Fraction(0),
                    lanes=lanes,
                    pipes=pipes,
                    weights=weights,
                    way=way,
                    cap=cap,
                    before=before,
                    release=Fraction(float(next(releases))) if kind == Kind.INPUT else None,
                    done=self.env.event(),
                )
            )
        return jobs

    def _host(self, call: Call) -> frozenset[str]:
        """The lane of the host that issues an op, if it is known what that takes."""
        tensorflow = call.executor == Executor.TF and self.runtime.host is not no_lanes
        if not (
            self.calibration.issue and tensorflow and "gpu" in (call.source.kind, call.target.kind)
        ):
            return frozenset()
        return frozenset({f"host of {call.source.machine}"})

    def _issue(self, plan: Plan, op: int, call: Call) -> Fraction:
        """What a host does for an op: itself, what it reads a part of for the first time, messages
        of what it waits for elsewhere, and parts of results.
        """
        what = call.kind.name.lower()
        if call.kind == Kind.COPY:
            what = "to_host" if call.target.kind == "cpu" else "copy"
            what = "from_host" if call.source.kind == "cpu" else what
        seconds = Fraction(self.calibration.issuing(what))
        views, told = set(), set()
        for other in range(op + 1):
            kind, read = Kind(plan.kind[other]), plan.operands_of(other)
            interval = int(plan.lo[other]), int(plan.hi[other])
            parts = {
                (value, *interval) for value in read
                if interval != (int(plan.lo[value]), int(plan.hi[value]))
                and kind in (Kind.COPY, Kind.ADD, Kind.SCALE, Kind.CAST)
            }  # fmt: skip
            at = plan.device[read[0]] if kind == Kind.COPY else plan.device[other]
            waits = {(w, at) for w in self._waited(plan, other) if plan.device[w] != at}
            if other == op:
                seconds += len(parts - views) * Fraction(self.calibration.issuing("slice"))
                seconds += len(waits - told) * Fraction(self.calibration.issuing("message"))
            views, told = views | parts, told | waits
        if call.kind == Kind.OUTPUT:
            kept = self._pieces(plan, op) - 1
            seconds += kept * Fraction(self.calibration.issuing("output"))
        return seconds

    def _waited(self, plan: Plan, op: int) -> set[int]:
        """What an op waits for besides what it reads."""
        found = set(plan.controls[plan.control_start[op] : plan.control_start[op + 1]].tolist())
        if plan.stream[op] >= 0 and plan.executor[op] == Executor.TF:
            found |= {max((before for before in range(op) if plan.stream[before] == plan.stream[op]
                           and plan.executor[before] == Executor.TF), default=-1)}  # fmt: skip
        return found - {-1} - set(plan.operands_of(op))

    def _pieces(self, plan: Plan, op: int) -> int:
        """The tensors that a value is kept in."""
        in_place = plan.kind[op] == Kind.CONCAT and plan.arg[op] == 1
        if not in_place and plan.kind[op] != Kind.OUTPUT:
            return 1
        return sum(self._pieces(plan, read) for read in plan.operands_of(op))

    def _way(self, legs: Sequence[Any], stops: Sequence[str]) -> list[tuple[str, int]]:
        """The links of legs in order, each with how many hops there are before it."""
        way, first = [], 0
        starts = [stop for stop, after in pairwise(stops) if stop != after]
        for leg, start in zip(legs, starts, strict=True):
            links = [self.topology.links[link] for link in leg.links]
            links = [link for link in links if not link.is_toll]
            at = {start: 0}
            for link in links:
                at.setdefault(link.target, at[link.source] + 1)
            way += [(link.name, first + at[link.source]) for link in links]
            first += max(at.values())
        return way

    def _steps(self, plan: Plan) -> set[int]:
        """The ops of TensorFlow that kernels do instead, under a runtime with `kernels`."""
        found = set()
        for op in range(len(plan)):
            kind, ends = Kind(plan.kind[op]), [op, *plan.operands_of(op)]
            at = {self.topology.nodes[plan.devices[plan.device[end]]].kind for end in ends}
            mine = plan.executor[op] == Executor.TF and kind in (Kind.COPY, Kind.ADD)
            if self.runtime.kernels and mine and "cpu" not in at:
                found.add(op)
        return found

    def _starts(self, plan: Plan, steps: set[int]) -> set[int]:
        """The ops after which a kernel starts: no kernel made what they are made of."""

        def in_place(op: int) -> bool:
            return plan.kind[op] == Kind.CONCAT and plan.arg[op] == 1

        found = {read for op in steps for read in plan.operands_of(op)}
        found |= {read for op in found if in_place(op) for read in plan.operands_of(op)}
        return {
            op
            for op in found - steps
            if plan.executor[op] == Executor.TF
            and not in_place(op)
            and not steps.intersection(plan.operands_of(op))
        }

    def _first_pass(self, call: Call, nbytes: Fraction) -> Fraction:
        """What the first 4 KiB of every block by LL count besides over a network, and the first 512
        bytes elsewhere, and what the others do there where it has fewer threads.
        """
        if call.executor != Executor.NCCL_LL or call.kind != Kind.COPY or call.channel < 0:
            return Fraction(0)
        nccl = self.calibration.nccl
        halvings = 0 if self._is_far(call) else call.channel // (16 * 4096) % 4
        blocks = call.channel % 4096 // 64 + 1
        first = Fraction(4096 // 2**halvings * blocks)
        if call.channel // 4096 & 4 and not (self._is_far(call) and nbytes <= first // 4):
            first = Fraction(0)  # a part of a chunk that is under way
        first = min(nbytes, first)
        if self._is_far(call):
            return Fraction(nccl.first_pass) * first
        slower = Fraction(nccl.few_threads) * (2**halvings - 1)
        wait = Fraction(nccl.first_warps * nccl.channel_rate["ll"]) / 512
        return wait * min(first, Fraction(512 * blocks)) + slower * (nbytes - first)

    def _is_far(self, call: Call) -> bool:
        path = route(self.topology, call.source.name, call.target.name).links
        return not all(self.topology.links[link].holds_lane for link in path)

    def _is_message(self, call: Call) -> bool:
        """Whether a thread hands the copy to a NIC; it has seen the parts of a chunk before."""
        if call.kind != Kind.COPY or call.channel < 0 or call.channel // 4096 & 4:
            return False
        return self._is_far(call)

    def _software(self, source: str, target: str) -> Software:
        """What the network between two devices costs besides its wires."""
        links = route(self.topology, source, target).links
        classes = {self.topology.links[each].link_class for each in links}
        for name, software in self.calibration.nccl.software.items():
            if any(each.startswith(name) for each in classes):
                return software
        return Software()

    def _nccl(
        self, call: Call, nbytes: Fraction, weights: Mapping[str, Fraction]
    ) -> tuple[Fraction, Mapping[str, Fraction], Fraction | None]:
        """Latency, weights and cap of what NCCL executes."""
        constants = self.calibration.nccl
        protocol = {1: "simple", 2: "ll", 3: "ll128"}[int(call.executor)]
        if call.kind == Kind.INPUT:
            role, channel = divmod(max(call.channel, 0), 64 * 64)
            begun = constants.start["nvls" if role & 1 else protocol]
            seconds = Fraction(constants.launch) + Fraction(begun)
            return seconds + Fraction(constants.launch_channel) * (channel // 64 + 1), weights, None
        if call.kind != Kind.COPY:
            return Fraction(0), weights, None
        link, found, path = self._link(call)
        flags = {"simple": Fraction(1), "ll": Fraction(2), "ll128": Fraction(16 / 15)}[protocol]
        factor = Fraction(float(flags) / constants.efficiency[link, protocol])
        kept = {link.name for link in path if not link.link_class.startswith("staged")}
        weights = {name: weight * factor for name, weight in weights.items() if name in kept}
        cap = None
        latency = Fraction(constants.latency[link, protocol])
        if call.channel >= 0 and link != "nvls":
            role, channel = divmod(call.channel, 64 * 64)
            rate = constants.channel_rate[protocol]
            if protocol == "ll" and link == "net":
                rate = min(rate, self._software(call.source.name, call.target.name).eager)
            cap = Fraction(rate) * (channel // 64 + 1)
            limit = constants.unaligned_peer
            if role & 64 and protocol != "ll" and isfinite(limit):  # parts at any byte
                cap = min(cap, Fraction(limit))
            if role & 1:  # the last to receive
                copies = Fraction(1 + constants.copy_out[link])
                weights = {name: weight * copies for name, weight in weights.items()}
                factor *= copies
            if role & 2 and link == "net":  # in a tree
                latency += Fraction(constants.join[protocol])
            slice_ = min(nbytes // (channel // 64 + 1), 2**20)
            if protocol == "simple" and slice_:
                cap = self._of_slices(path, link, factor, channel // 64 + 1, slice_, cap)
        if call.channel >= 0 and link == "nvls":
            role, channel = divmod(call.channel, 64 * 64)
            cap = Fraction(constants.channel_rate["nvls"]) * (channel // 64 + 1)
            beyond = 8 * (2 ** (role // 16 % 4) - 1)  # heads
            latency += Fraction(5.5e-6 if role & 2 else 1.6e-6) * beyond
        if link == "net":
            for each, share in zip(path, found.shares, strict=True):
                latency += Fraction(each.latency) * Fraction(share) if not each.holds_lane else 0
        return latency, weights, cap

    def _connection(
        self, plan: Plan, op: int, call: Call
    ) -> tuple[list[tuple[int, int]], dict[int, list[int]]]:
        """The launch and the bytes of every op like this one on its connection, and the bytes of
        all that a launch sends there.
        """
        blocks = call.channel % 4096 // 64 + 1
        connection = call.source.name, call.target.name, call.channel % 64
        alike, launch, sent = [], 0, dict[int, list[int]]()
        for other in range(len(plan)):
            executor = Executor(plan.executor[other])
            launch += plan.kind[other] == Kind.INPUT and executor != Executor.TF
            if plan.kind[other] == Kind.COPY and Executor.TF < executor < Executor.KERNEL:
                source = plan.devices[plan.device[plan.operands_of(other)[0]]]
                there = plan.devices[plan.device[other]]
                channel, nbytes = (
                    int(plan.stream[other]) // len(plan.devices),
                    int(plan.nbytes[other]),
                )
                if connection == (source, there, channel % 64) and plan.stream[other] >= 0:
                    sent.setdefault(launch, []).append(nbytes)
                    size = executor == Executor.NCCL and nbytes // blocks
                    alike.append((executor, channel, size, launch, nbytes))
        size = call.executor == Executor.NCCL and int(plan.nbytes[op]) // blocks
        mine = [each[3:] for each in alike if each[:3] == (call.executor, call.channel, size)]
        return mine, sent

    def _beyond_eight(self, plan: Plan, op: int, call: Call) -> Fraction:
        """The part of a ring's messages by LL or LL128 that come after the first eight."""
        mine, sent = self._connection(plan, op, call)
        free = [min(Fraction(8, len(sent[launch])), Fraction(1)) for launch, _ in mine]
        return 1 - sum(free, Fraction(0)) / len(free)

    def _window(
        self, plan: Plan, op: int, call: Call, latency: Fraction, cap: Fraction
    ) -> Fraction:
        """The rate of a connection that keeps a window on its way, over all that it sends."""
        blocks, role = call.channel % 4096 // 64 + 1, call.channel // 4096
        window = {
            1: Fraction(self.calibration.nccl.buffer), 2: Fraction(2**18), 3: Fraction(4608000)
        }[int(call.executor)]  # fmt: skip
        if call.executor == Executor.NCCL and role & 10:  # a tree's, or a user's
            step = 2**17 if role & 8 else int(plan.nbytes[op]) // blocks
            window = min(window, Fraction(8 * step))
        software = self._software(call.source.name, call.target.name)
        window = min(window, Fraction(min(software.window, 2.0**60)))
        mine, sent = self._connection(plan, op, call)
        weight = sum(nbytes for _, nbytes in mine)
        total = sum((Fraction(sum(sent[launch])) * nbytes for launch, nbytes in mine), Fraction(0))
        total /= max(weight, 1) * blocks
        if total <= window:
            return cap
        found = route(self.topology, call.source.name, call.target.name)
        ways = zip(found.links, found.shares, strict=True)
        far = [(self.topology.links[link], share) for link, share in ways]
        wires = sum(
            (
                Fraction(link.latency) * Fraction(share)
                for link, share in far
                if not link.holds_lane
            ),
            Fraction(0),
        )
        trips = (total - window) * (wires + latency) / window
        return min(cap, blocks * total / (trips + window * blocks / cap))

    def _kernel(
        self, call: Call, _: Fraction, weights: Mapping[str, Fraction]
    ) -> tuple[Fraction, Mapping[str, Fraction], Fraction | None]:
        """Latency, weights and cap of what a kernel without channels does."""
        constants = self.calibration.nccl.kernels
        if call.kind == Kind.INPUT:
            channel = max(call.channel, 0)
            if channel & 16384:
                way = "engine_multicast" if channel & 4096 else "engine"
                gpus = channel % 4096 // 64 + 1
                each = Fraction(getattr(constants, f"{way}_copy"))
                return Fraction(getattr(constants, f"{way}_launch")) + each * gpus, weights, None
            release = constants.release_multicast if channel & 4096 else constants.release
            seconds = Fraction(constants.launch) * (channel // 8192 % 2)
            seconds += Fraction(constants.barrier) * (channel % 4)
            return seconds + Fraction(release) * (channel // 4 % 4), weights, None
        if call.kind != Kind.COPY:
            return Fraction(0), weights, None
        link, found, path = self._link(call)
        flags = call.executor == Executor.KERNEL_LL
        one_way = flags or (call.channel >= 0 and call.channel & 32768)
        hops = (2 if one_way else 4) if link == "nvls" else 1
        latency = Fraction(constants.flag if flags else constants.load) / hops
        factor = Fraction((2.0 if flags else 1.0) / constants.efficiency[link])
        engine = call.channel >= 0 and call.channel & 16384
        if engine:
            latency, factor = Fraction(0), Fraction(1)
        kept = {link.name for link in path if not link.link_class.startswith("staged")}
        weights = {name: weight * factor for name, weight in weights.items() if name in kept}
        if link == "net":
            for each, share in zip(path, found.shares, strict=True):
                latency += Fraction(each.latency) * Fraction(share) if not each.holds_lane else 0
        blocks = call.channel % 4096 // 64 + 1
        if engine:
            return latency, weights, Fraction(constants.engine_rate) / blocks
        return latency, weights, Fraction(constants.block) * blocks if call.channel >= 0 else None

    def _link(self, call: Call) -> tuple[str, Any, list[Link]]:
        """The kind of link between the ends of a copy, the route, and its links."""
        found = route(self.topology, call.source.name, call.target.name)
        path = [self.topology.links[each] for each in found.links]
        if not all(link.holds_lane for link in path if link.source != link.target):
            return "net", found, path
        if {call.source.kind, call.target.kind} - {"gpu", "cpu"}:
            return "nvls", found, path
        if all(link.link_class.startswith("nvlink") for link in path):
            return "nvlink", found, path
        peers = self.topology.router.is_peer(call.source.name, call.target.name)
        return "pci" if peers else "shm", found, path

    def _of_slices(
        self,
        path: Sequence[Link],
        link: str,
        factor: Fraction,
        blocks: int,
        nbytes: int,
        cap: Fraction,
    ) -> Fraction:
        """Bytes/s of blocks by Simple on one link: each is on the link, or elsewhere. A block finds
        the others there as often as they are there, so that its time on the link, x, is
        alone (1 + (blocks - 1) x/(elsewhere + x)); solved by bisection.
        """
        constants = self.calibration.nccl
        pause, rate = constants.slice[link], float(cap) / blocks
        if link == "net":
            return Fraction(blocks * nbytes / (pause + nbytes / rate))
        slowest = min(
            self.at_first[each.name] for each in path if not each.link_class.startswith("staged")
        )
        alone = float(nbytes * factor / slowest)
        elsewhere = pause + max(nbytes / rate - alone, 0.0)
        low, high = alone, alone * blocks
        for _ in range(200):
            x = (low + high) / 2
            found = alone * (1 + (blocks - 1) * x / (elsewhere + x))
            low, high = (x, high) if found > x else (low, x)
        return Fraction(blocks * nbytes / (elsewhere + low))

    def _memory(self, passes: int, node: Node) -> dict[str, Fraction]:
        if not self.runtime.local or not isfinite(node.memory_bandwidth) or not passes:
            return {}
        return {f"memory of {node.name}": Fraction(passes)}

    def _passes(self, plan: Plan, op: int) -> int:
        """A local op reads its operands and writes its result; a join reads every byte once, and
        a view none.
        """
        if self._is_view(plan, op):
            return 0
        fixed = {Kind.COPY: 1, Kind.CONCAT: 2}
        return fixed.get(Kind(plan.kind[op]), len(plan.operands_of(op)) + 1)

    def _is_view(self, plan: Plan, op: int) -> bool:
        """TensorFlow's Slice shares memory if it takes all, or whole blocks of 64 bytes."""
        node = self.topology.nodes[plan.devices[plan.device[op]]]
        if plan.kind[op] != Kind.SLICE or self.calibration.cpu is None or node.kind != "cpu":
            return False
        (of,) = plan.operands_of(op)
        before, after = int(plan.lo[op] - plan.lo[of]), int(plan.hi[of] - plan.hi[op])
        nbytes, count = int(plan.nbytes[op]), int(plan.hi[op] - plan.lo[op])
        blocks = not nbytes or (before * nbytes // count % 64 == 0 and nbytes % 64 == 0)
        return blocks or not before + after

    # What happens

    def _submission(self, submission: Submission, jobs: list[Job]) -> Generator:
        yield self.env.timeout(Fraction(submission.at))
        for job in jobs:
            self.env.process(self._life(job, [jobs[op].done for op in job.before]))

    def _change(self, change: Change) -> Generator:
        yield self.env.timeout(Fraction(change.at))
        self.capacity[change.link] = Fraction(change.bandwidth)
        self._later(RATES, self._share)

    def _life(self, job: Job, before: list[simpy.Event]) -> Generator:
        events = list(before)
        if job.release is not None:
            events.append(self._after(job.release))
        yield self.env.all_of(events)
        job.ready = self.env.now
        yield from self._take(job, job.lanes)
        job.start = self.env.now
        if job.overhead:
            yield self._after(job.overhead)
        if not job.holds:
            self._free(job.lanes)
        if job.latency:
            yield self._after(job.latency)
        yield from self._take(job, job.pipes)
        if job.amount:
            flow = Flow(
                Demand(job.weights, job.cap, job.way), job.amount, self.env.event(), self.env.now
            )
            self._flows[job.id] = flow
            self._later(RATES, self._share)
            yield flow.moved
            del self._flows[job.id]
            self._later(RATES, self._share)
        self._free((job.lanes if job.holds else frozenset()) | job.pipes)
        job.finish = self.env.now
        job.done.succeed()

    def _take(self, job: Job, lanes: frozenset[str]) -> Generator:
        if lanes:
            granted = self.env.event()
            self._waiting.append((job, lanes, granted))
            self._later(LANES, self._grant)
            yield granted

    def _free(self, lanes: frozenset[str]) -> None:
        if lanes:
            self._busy -= lanes
            self._later(LANES, self._grant)

    def _grant(self) -> None:
        """Each waiting op, by time of readiness and id, goes on unless one of the lanes is taken or
        promised.
        """
        promised: set[str] = set()
        for job, lanes, granted in sorted(
            self._waiting, key=lambda entry: (entry[0].ready, entry[0].id)
        ):
            if lanes & (self._busy | promised):
                promised |= lanes
            else:
                self._busy |= lanes
                self._waiting.remove((job, lanes, granted))
                granted.succeed()

    def _share(self) -> None:
        """Count what has moved since the last time, then share every resource anew among
        all flows.
        """
        flows = list(self._flows.values())
        for flow in flows:
            flow.left -= flow.rate * (self.env.now - flow.since)
            flow.since = self.env.now
        for flow, rate in zip(flows, self._rates([f.demand for f in flows]), strict=True):
            flow.rate = rate
            if rate > 0:
                self._ring_at(flow.moved, self.env.now + flow.left / rate)
            else:
                self._alarms.pop(flow.moved, None)

    def _rates(self, demands: Sequence[Demand]) -> list[Fraction]:
        fair, switching = max_min(self.capacity, demands), self.topology.router.switching
        if switching.congestion == "isolated":
            return fair
        switches = {
            n.name for n in self.topology.nodes.values() if n.kind == "switch" and n.transit
        }
        fills = {k.name for k in self.topology.links if {k.source, k.target} <= switches}
        slowed = congested(self.capacity, demands, switching.congestion, fills)
        part = Fraction(switching.congested)
        return [one - part * (one - other) for one, other in zip(fair, slowed, strict=True)]

    # The clock

    def _later(self, priority: int, action: Callable[[], None]) -> None:
        """Do it at this instant, after everything of a lower priority."""
        if priority not in self._planned:
            self._planned.add(priority)
            event = self.env.event()
            event._ok, event._value = True, None
            event.callbacks.append(lambda _: (self._planned.discard(priority), action()))
            self.env.schedule(event, priority=priority)

    def _after(self, delay: Fraction) -> simpy.Event:
        event = self.env.event()
        self._ring_at(event, self.env.now + delay)
        return event

    def _ring_at(self, event: simpy.Event, due: Fraction) -> None:
        """Let `event` happen when it is due, and not at an earlier time it was given."""
        self._alarms[event] = due
        self.env.timeout(due - self.env.now).callbacks.append(lambda _: self._ring())

    def _ring(self) -> None:
        now = self.env.now
        if now not in self._alarms.values():
            return  # what was due has been given another time
        for event, due in list(self._alarms.items()):
            if due <= now + WINDOW * now:
                del self._alarms[event]
                event.succeed()
            elif due <= now + UNCLEAR * now:
                self.unclear = True


def as_times(timeline: object) -> Times:
    """The same of an engine's timeline."""
    return Times(
        *(np.asarray(getattr(timeline, name)).tolist() for name in ("ready", "start", "finish"))
    )
