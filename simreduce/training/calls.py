"""The reductions of a step, and what calls cost: alone on the machine, or at once on one fabric.

A call that nothing else is in flight beside takes what it takes alone (`Alone`). Calls that may be
in flight together share links, lanes and memories (`OnFabric`). Steps move their reductions by one
or the other. While a kernel of NCCL moves data, it has SMs of its own, one a channel.

`GroupPlans` has the plans of collectives in groups of a machine's ranks, and of sends between two
of them; `Lowering` lowers the plans of a step.

One proved plan moves all gradients of a step, by a strategy or a mode of tf_cnn_benchmarks. It is
split here into independent reductions, of a gradient, a pack or a bucket, each with the gradients
that it waits for.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import simpy

from simreduce import dtypes
from simreduce.computing import grouped, once
from simreduce.computing.arrays import Ints
from simreduce.engine import CALM, IDEAL, NCCL, Fabric, Use
from simreduce.engine.calibrate.intervals import NcclCall
from simreduce.engine.lowering import Lowered
from simreduce.engine.result import waited_until
from simreduce.engine.setup import Setup, read_strategy
from simreduce.engine.simulator import step_cost
from simreduce.errors import InternalError
from simreduce.plan import ZEROS, Executor, Kind, Plan, part_for, side_by_side, split_independent
from simreduce.plan.ops import ENGINE, count_blocks
from simreduce.planners.layouts import Layout
from simreduce.planners.nccl.communicator import capability
from simreduce.planners.nccl.constants import symmetric_blocks
from simreduce.planners.packing import DdpBuckets, Fusion
from simreduce.planners.strategy import Strategy
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.topology import Folded
from simreduce.training.executions import COLLECTIVE, ExecutionNode
from simreduce.training.interference import Channels
from simreduce.training.variable_update import STRATEGIES, Flags, variable_update
from simreduce.workload import Gradient, Workload

CYCLE = 1e-3
"""`HOROVOD_CYCLE_TIME` in seconds, since 0.21; before it was 5 ms."""

ENDLESS = 1 << 62
"""Bytes of a buffer that takes all."""

FIXED = math.inf
"""A cycle that never ends: which gradients share a buffer is settled before the step, as by XLA."""


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    """A plan that moves some gradients, by index; a read moves the variables of those gradients.

    A reduction starts when all `ranks` have all `gradients`; each rank's part when it has them, if
    ranks do not meet. A read ends on `ranks`, which wait for it. There is no plan of calls whose
    plans are too large to make; their costs are known.
    """

    plan: Plan | None
    gradients: tuple[int, ...]
    ranks: tuple[int, ...]

    @property
    def moves(self) -> Plan:
        """The plan; InternalError if there is none."""
        return _required(self.plan)

    @property
    def meets(self) -> bool:
        """Whether its devices wait for each other before the first transfer, as with NCCL."""
        return self.plan is None or bool((self.plan.executor != Executor.TF).any())


@dataclass(frozen=True, slots=True)
class Method:
    """How a step reduces its gradients and reads its variables.

    `plan` is the whole, for the proof, if it is not too large. `reductions` ready at once start in
    this order; with `in_order`, none overtakes another. Up to `streams` are in flight, first ready,
    first served; 0 is no limit but the queues of the runtime. `reads` start a step.

    `servers` hold and update the variables; empty if every rank updates its own. With a `fusion`,
    ready gradients are fused into buffers and start every `cycle` seconds, as in Horovod.
    """

    name: str
    plan: Plan | None
    reductions: tuple[Reduction, ...]
    reads: tuple[Reduction, ...] = ()
    streams: int = 0
    in_order: bool = False
    fusion: Fused | None = None
    servers: tuple[str, ...] = ()

    @property
    def whole(self) -> Plan:
        """The plan of the whole; InternalError if there is none."""
        return _required(self.plan)


def _required(plan: Plan | None) -> Plan:
    if plan is None:
        raise InternalError("this call has no plan of its own")
    return plan


@dataclass(frozen=True, slots=True, eq=False)
class Fused:
    """Fusion of ready gradients into buffers, and the reductions of each buffer.

    Of buffers whose costs are known nobody makes plans: each is one reduction without one.
    """

    fusion: Fusion
    strategy: Strategy
    workload: Workload
    layout: Layout
    faithful: bool
    cycle: float = CYCLE
    planned: bool = True

    def buffers(self, ready: Sequence[int]) -> list[tuple[int, ...]]:
        """The gradients of each buffer, from waiting gradients in the order they became ready."""
        queue = list(reversed(ready))  # a packer expects the first ready gradient last
        groups = self.fusion.arrange([self.workload.gradients[i] for i in queue]).groups
        return [tuple(queue[i] for i in group) for group in groups]

    def reductions(self, buffer: tuple[int, ...]) -> list[Reduction]:
        """The reductions of one buffer."""
        if not self.planned:
            return [Reduction(None, tuple(sorted(buffer)), tuple(range(self.layout.n)))]
        order = buffer[::-1]  # likewise
        part = Workload(self.workload.name, tuple(self.workload.gradients[i] for i in order))
        plan = compile_plan(self.strategy, part, self.layout, faithful=self.faithful)
        found, _ = _parts(plan, part)
        return [replace(r, gradients=tuple(sorted(order[i] for i in r.gradients))) for r in found]


def method_for_strategy(
    strategy: Strategy,
    workload: Workload,
    layout: Layout,
    *,
    faithful: bool = False,
    streams: int | None = None,
    cycle: float = CYCLE,
) -> Method:
    """Return an all-reduce of all gradients by `strategy`.

    Without `streams`, DDP and Horovod reduce one bucket at a time, as NCCL does on one
    communicator. With a `FIXED` cycle, the buffers are the packer's.
    """
    plan = compile_plan(strategy, workload, layout, faithful=faithful)
    found, _ = _parts(plan, workload)
    packer = strategy.packer
    copies = plan.kind == Kind.COPY
    only_nccl = copies.any() and (plan.executor[copies] != Executor.TF).all()
    alone = isinstance(packer, DdpBuckets | Fusion) or bool(only_nccl)
    return Method(
        strategy.text,
        plan,
        tuple(
            found
            if isinstance(packer, DdpBuckets)
            else sorted(found, key=lambda r: -r.gradients[0])
        ),
        streams=int(alone) if streams is None else streams,
        in_order=isinstance(packer, DdpBuckets),
        fusion=Fused(packer, strategy, workload, layout, faithful, cycle)
        if isinstance(packer, Fusion) and cycle != FIXED
        else None,
    )


def method_for_mode(
    mode: str,
    workload: Workload,
    layout: Layout,
    flags: Flags,
    *,
    streams: int | None = None,
    cycle: float = CYCLE,
) -> Method:
    """The method of tf_cnn_benchmarks' `--variable_update=mode`; `horovod` fuses by default.

    Variables on servers are read at the start of the next step (`parameter_server`) or, after a
    barrier for each, at the end of this one (`distributed_replicated`).
    """
    if mode == "horovod" and not flags.packing:
        flags = replace(flags, packing="fusion")
    if mode in STRATEGIES:
        strategy = STRATEGIES[mode](layout, flags)
        found = method_for_strategy(
            strategy, workload, layout, faithful=flags.faithful, streams=streams, cycle=cycle
        )
        return replace(found, name=f"{mode}, {strategy.text}")
    plan = variable_update(mode, workload, layout, flags)
    reductions, reads = _parts(plan, workload, loose=mode == "parameter_server")
    latest = sorted(reductions, key=lambda r: -r.gradients[0])
    return Method(
        mode, plan, tuple(latest), tuple(reads), streams=streams or 0, servers=_servers(plan)
    )


def _servers(plan: Plan) -> tuple[str, ...]:
    """The devices with new values of variables."""
    updated = (plan.kind == Kind.INPUT) & (plan.arg == len(plan.devices))
    return tuple(plan.devices[device] for device in np.unique(plan.device[updated]).tolist())


def _parts(
    plan: Plan, workload: Workload, *, loose: bool = True
) -> tuple[list[Reduction], list[Reduction]]:
    """The reductions of a plan, in the order of their first ops, and its reads."""
    variable = len(plan.devices)  # the contributor that represents a variable's new value
    places = _Places.of(plan, workload)
    reductions, reads = list[Reduction](), list[Reduction]()
    for part in split_independent(plan, loose=loose):
        inputs = np.flatnonzero((part.kind == Kind.INPUT) & (part.arg != ZEROS))
        given = inputs[part.arg[inputs] != variable]
        starts, ends = (
            (given, given) if len(given) else (inputs, np.flatnonzero(part.kind == Kind.OUTPUT))
        )
        spans = set(zip(part.lo[starts].tolist(), part.hi[starts].tolist(), strict=True))
        owners = tuple(sorted({i for lo, hi in spans for i in places.between(lo, hi)}))
        ranks = tuple(np.unique(part.device[ends]).tolist())
        if owners:
            (reductions if len(given) else reads).append(Reduction(part, owners, ranks))
    return reductions, reads


class _Places(NamedTuple):
    """Gradients by address: order[k] has [lo[k], hi[k]), ascending, in every `period`."""

    order: Ints
    lo: Ints
    hi: Ints
    period: int

    @staticmethod
    def of(plan: Plan, workload: Workload) -> _Places:
        """From the contract of an all-reduce, which has gradients by rank in the order of the list.

        Other modes lay out the list end to end, again and again.
        """
        period = int(plan.hi.max(initial=0)) + 1
        size = np.array([g.elements for g in workload.gradients], dtype=np.int64)
        if plan.contract.collective == "all_reduce":
            lo = plan.contract.lo[: len(size)].astype(np.int64)
        else:
            lo = np.cumsum(size) - size
            period = max(workload.elements, 1)
        order = np.lexsort((size, lo)).astype(np.int64)
        return _Places(order, lo[order], (lo + size)[order], period)

    def between(self, lo: int, hi: int) -> list[int]:
        """The gradients with an address in [lo, hi).

        For an empty interval, they are the empty gradients there.
        """
        base = lo - lo % self.period
        lo, hi = lo - base, hi - base
        inside = slice(np.searchsorted(self.hi, lo, "right"), np.searchsorted(self.lo, hi, "left"))
        here = (self.lo == lo) & (self.hi == lo) if lo == hi else inside
        return [int(i) for i in self.order[here]]


_UNIT = dtypes.SIZES[0]


def is_calm(setup: Setup) -> bool:
    """Whether a reduction by NCCL takes as long whenever it starts."""
    calm = not setup.disturbance.jitter and not setup.disturbance.faults
    return calm and setup.runtime in (NCCL, IDEAL)


@dataclass
class GroupPlans:
    """A plan for each collective, group and size, made once; `calls` are those of NCCL in them."""

    setup: Setup
    algorithm: str
    made: dict[tuple[str, int, tuple[int, ...], int], Plan] = field(default_factory=dict)
    calls: set[NcclCall] = field(default_factory=set)

    def plan(self, collective: str, nbytes: int, group: tuple[int, ...], root: int = 0) -> Plan:
        """The plan of a collective in a group; `nbytes` are those that a rank gives."""
        facts = collective, nbytes, group, root
        return once(self.made, facts, lambda: self._compile(*facts))

    def transfer(self, nbytes: int, source: int, target: int) -> Plan:
        """The plan of a send: the part of an exchange of two ranks that the result of one needs.

        It begins after both have arrived.
        """

        def send() -> Plan:
            exchange = self._compile("send_receive", nbytes, (source, target), 0)
            home = exchange.devices.index(self.setup.layout.ranks[source])
            results = (exchange.kind == Kind.OUTPUT) & (exchange.device != home)
            return part_for(exchange, np.flatnonzero(results))

        return once(self.made, ("send", nbytes, (source, target), 0), send)

    def of(self, node: ExecutionNode, group: tuple[int, ...]) -> Plan | None:
        """The plan of what a node moves in a group or between a pair; None if that is nothing."""
        if len(group) < 2 or not node.nbytes:
            return None
        if node.kind == COLLECTIVE:
            return self.plan(node.collective, node.nbytes, group, node.root)
        return self.transfer(node.nbytes, *group)

    def _compile(self, collective: str, nbytes: int, group: tuple[int, ...], root: int) -> Plan:
        n = len(group)
        whole = nbytes * n if collective == "all_gather" else nbytes
        unit = _UNIT * (1 if collective in ("all_reduce", "broadcast", "reduce") else n)
        elements = -(-whole // unit) * unit // _UNIT  # each rank has a part, of whole elements
        layout = self.setup.layout.only(sorted(group))  # which has its ranks in that order
        root = sorted(group).index(group[root])
        tensor = Workload("recorded", (Gradient("tensor", elements),))
        setup, strategy = self.setup.but(part=layout), read_strategy(self.algorithm, collective)
        plan = setup.compile(strategy, tensor, root=root)
        self.calls |= {*setup.calls_of(strategy, tensor)}
        return plan


class Lowering:
    """Lowers each plan once.

    Plans known from the start are lowered together, which is faster; with jitter, which depends on
    op numbers, each alone. All share the working set of the `whole` step.
    """

    def __init__(self, fabric: Fabric, whole: Plan, plans: Sequence[Plan]) -> None:
        self._fabric = fabric
        self._working_set = fabric.measure_working_set(whole)
        self._known: dict[int, tuple[Plan, Lowered]] = {}
        plans = list({id(plan): plan for plan in plans}.values())
        if not plans or fabric.disturbance.jitter:
            return
        devices = dict.fromkeys(name for plan in plans for name in plan.devices)
        joint = fabric.lower(side_by_side(plans, tuple(devices)), working_set=self._working_set)
        first = 0
        for plan in plans:
            self._known[id(plan)] = plan, joint.part(plan, first)
            first += len(plan)

    def of(self, plan: Plan) -> Lowered:
        """A lowered plan."""
        number = len(self._known)
        _, lowered = once(
            self._known,
            id(plan),
            lambda: (plan, self._fabric.lower(plan, number, self._working_set)),
        )
        return lowered

    def queues_behind(self, ranks: Iterable[str], plans: Iterable[Plan]) -> bool:
        """Whether `plans` take lanes of the kernels of `ranks`."""
        kernels = {lane for name in ranks for lane in self._fabric.compute_lanes(name)}
        return any(
            lowered.lane_names[i] in kernels
            for lowered in map(self.of, plans)
            for i in np.unique(lowered.calls.lanes).tolist()
        )


_BITS = 11
"""Leading bits of the size of a call that is simulated for those of about its size."""

PRECISION = 2.0 ** (1 - _BITS)
"""The part of its size by which a simulated call may be smaller than the one it represents."""


def leading(size: int) -> int:
    """The size of the call that is simulated for one of this size: at most `PRECISION` smaller."""
    shift = max(size.bit_length() - _BITS, 0)
    return size >> shift << shift


class CallCost(NamedTuple):
    """Seconds of a call by itself, and the channels of its kernel, each a block on an SM.

    Links bring each of its GPUs `rate` bytes a second at most; 0: as those of all ranks do. It
    `brings` so many; 0: what its channels move.
    """

    seconds: float
    channels: int
    rate: float = 0.0
    brings: float = 0.0

    @property
    def held(self) -> Channels:
        """The channels, that rate, and what it brings."""
        return Channels(*self[1:])

    @staticmethod
    def in_turn(calls: Sequence[CallCost], more: float = 0.0) -> CallCost:
        """Calls one after another, which with what comes between them take `more` seconds."""
        seconds = sum(each.seconds for each in calls) + more
        return CallCost(seconds, *max(each.held for each in calls))

    @staticmethod
    def alone(setup: Setup, plan: Plan) -> CallCost:
        """The cost of a plan by itself on a machine."""
        seconds = setup.find_seconds(plan)
        return CallCost(seconds, *held_by(setup, plan, seconds=seconds))


NOTHING = CallCost(0.0, 0)

Busy = tuple[str, float]
"""A link, a memory or a lane, and the seconds that bytes need of it."""


def busiest_use(uses: Sequence[Use], seconds: float) -> Busy:
    """The first of what is used in so many seconds, the busiest first; "" if there is nothing."""
    return (uses[0].name, uses[0].share * seconds) if uses else ("", 0.0)


def busiest_of(needed: Iterable[Busy]) -> str:
    """The link or memory that calls need for the longest; "" if nothing moves."""
    seconds = defaultdict[str, float](float)
    for name, busy in needed:
        seconds[name] += busy
    return max(seconds, key=seconds.__getitem__, default="")


def held_by(
    setup: Setup, plan: Plan, group: tuple[str, ...] = (), seconds: float = 0.0
) -> Channels:
    """The channels of a plan's kernel, and what links of its ranks bring a GPU; of several groups
    at once, those of one. A plan of two machines that stand for all is one of all ranks.

    Kernels without channels have the blocks of NCCL's symmetric kernels, copy engines none. Both
    bring a GPU the tensor's bytes in the `seconds` that the plan takes alone; 0: not known yet.
    """
    ranks = group or plan.devices
    some = len(ranks) < setup.layout.n and not isinstance(setup.machine, Folded)
    rate = arriving(setup, ranks) if some else 0.0
    launches = (plan.kind == Kind.INPUT) & (plan.executor > 0) & (plan.stream >= 0)
    channels, executors = plan.stream[launches] // len(plan.devices), plan.executor[launches]
    if not (executors >= Executor.KERNEL).any():
        return Channels(int(count_blocks(channels).max(initial=0)), rate)
    known = {name: i for i, name in enumerate(plan.devices) if name in setup.layout.ranks}
    gpus = [known[name] for name in ranks if name in known]
    given, results = (
        np.bincount(plan.device[ops], plan.sizes(ops), len(plan.devices))[gpus]
        for ops in (np.flatnonzero(plan.kind == kind) for kind in (Kind.INPUT, Kind.OUTPUT))
    )
    nbytes = int(np.maximum(given, results).max())
    brings = nbytes / (seconds or setup.but(disturbance=CALM).find_seconds(plan))
    if (channels & ENGINE).any():
        return Channels(0, rate, brings)
    blocks = symmetric_blocks(
        plan.contract.collective, len(gpus), nbytes,
        capability(setup.topology, plan.devices[gpus[0]]),
        flagged=bool((executors == Executor.KERNEL_LL).any()),
        switched=not {*plan.device[plan.kind == Kind.COPY].tolist()} <= {*known.values()},
    )  # fmt: skip
    return Channels(blocks, rate, brings)


class _Links(NamedTuple):
    """Bytes/s of the links into each GPU, by where they come from; those from and to each machine;
    and how many ranks each has.
    """

    into: Mapping[str, Sequence[tuple[str, float]]]
    machines: Mapping[str, float]
    ranks: Mapping[str, int]


@lru_cache(maxsize=256)
def _links(setup: Setup) -> _Links:
    wires, nodes = setup.topology.wires, setup.topology.nodes
    ranks = Counter(nodes[name].machine for name in setup.layout.ranks)
    ends = ((nodes[a.source].machine, nodes[a.target].machine, a.bandwidth) for a in wires)
    joins = [each for each in ends if each[0] != each[1]]
    into = grouped((target, bandwidth) for _, target, bandwidth in joins)
    out = grouped((source, bandwidth) for source, _, bandwidth in joins)
    return _Links(
        grouped((link.target, (link.source, link.bandwidth)) for link in wires),
        {each: max(sum(into.get(each, ())), sum(out.get(each, ()))) for each in ranks},
        ranks,
    )


def slowest_gpu(setup: Setup, ranks: Sequence[str] = ()) -> float:
    """Bytes/s that reach the GPU with the least: all its links together, but for those from GPUs
    that are not among the `ranks`.
    """
    into, every = _links(setup).into, setup.layout.ranks
    others = {*every} - {*ranks} if ranks else frozenset[str]()
    each = (into.get(rank, ()) for rank in ranks or every)
    return min(sum(rate for source, rate in links if source not in others) for links in each)


def across(setup: Setup) -> float:
    """Seconds for each byte that the machine with the narrowest links gets or sends.

    Bytes go to or come from other machines, whichever takes less; 0 of one machine.
    """
    machines = _links(setup).machines
    narrowest = min(machines.values())
    return 1 / narrowest if len(machines) > 1 and narrowest > 0 else 0.0


@lru_cache(maxsize=1 << 12)
def arriving(setup: Setup, ranks: tuple[str, ...] = ()) -> float:
    """Bytes/s of a collective of these ranks, or of all, that reach a GPU at most.

    Those from other machines pass all of its GPUs of one, as in a ring: these have their part of
    the machine's links.
    """
    known, nodes = _links(setup), setup.topology.nodes
    here = Counter(nodes[name].machine for name in ranks or setup.layout.ranks)
    parts = (known.machines[each] * count / known.ranks[each] for each, count in here.items())
    between = min(parts) if len(here) > 1 else 0.0
    return min(slowest_gpu(setup, ranks), between or math.inf)


class Alone:
    """Moves reductions that take turns, each in the time that it takes alone."""

    launch = 0.0
    queued = False

    def __init__(self, cost: Callable[[Reduction], CallCost]) -> None:
        self.env = simpy.Environment()
        self._cost = cost

    def channels(self, what: Reduction) -> Channels:
        """The channels of its kernel."""
        return self._cost(what).held

    def move(self, what: Reduction, held: Ints | None = None) -> simpy.Event:
        """Start a reduction; the event is its end."""
        if held is not None:
            raise InternalError("a call that takes turns begins when all ranks are there")
        return self.env.timeout(self._cost(what).seconds)

    def waited(self, what: Reduction, done: simpy.Event) -> float | None:  # noqa: ARG002 - as others
        """Nothing holds up a call that has its turn."""
        return None


class OnFabric:
    """Moves the reductions and `reads` of a method on a fabric, on the ranks of a setup.

    `queued`: they share queues of the devices with kernels. `launch` is the cost of starting a
    step, in seconds. `known` are plans that have been lowered before.
    """

    def __init__(
        self, fabric: Fabric, method: Method, reads: Sequence[Reduction], setup: Setup,
        known: Lowering | None = None,
    ) -> None:  # fmt: skip
        self.fabric, self.env, self._setup = fabric, fabric.env, setup
        plans = [each.moves for each in (*method.reductions, *reads)]
        self.lowering = known or Lowering(fabric, method.whole, plans)
        self.queued = self.lowering.queues_behind(
            setup.layout.ranks, plans[: len(method.reductions)]
        )
        self.launch = step_cost(method.whole, fabric.unfolded(), fabric.runtime, fabric.calibration)
        self._channels: dict[int, tuple[Plan, Channels]] = {}

    def channels(self, what: Reduction) -> Channels:
        """The channels of its kernel."""
        plan = what.moves
        return once(self._channels, id(plan), lambda: (plan, held_by(self._setup, plan)))[1]

    def move(self, what: Reduction, held: Ints | None = None) -> simpy.Event:
        """Start a reduction without the inputs at the places that are `held`."""
        return self.fabric.submit(what.moves, lowered=self.lowering.of(what.moves), held=held)

    def waited(self, what: Reduction, done: simpy.Event) -> float | None:
        """When the critical path of a reduction got a lane that something else had held."""
        timeline: Any = done.value
        return waited_until(self.lowering.of(what.moves), timeline)
