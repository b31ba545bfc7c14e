"""The time that ops on CPU devices take of the cores, and the flows that represent it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simreduce.computing.arrays import AnyInts, Bools, Floats, blocks
from simreduce.engine.calibration import Processor
from simreduce.engine.disturbance import Disturbance, scatter
from simreduce.engine.lowering.calls import Calls, give_own_calls
from simreduce.engine.lowering.signatures import views
from simreduce.plan import Executor, Kind, Plan
from simreduce.plan.plan import IN_PLACE
from simreduce.topology import Node, Topology

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


def core_owners(topology: Topology, processor: Processor) -> list[str]:
    """Every owner of cores once, in the order of the nodes."""
    cpus = (node for node in topology.nodes.values() if node.kind == "cpu")
    return list(dict.fromkeys(core_owner(processor, node.machine) for node in cpus))


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

    def turns(self, processor: Processor) -> Floats:
        """Seconds of each call's turn at the cores."""
        return self.in_turn / processor.cores

    def rests(self, processor: Processor) -> Floats:
        """Seconds of `in_turn` after the turn, while another call may have its own."""
        return self.in_turn - self.in_turn / processor.cores


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
    kind: AnyInts,
    executor: AnyInts,
    passes: AnyInts,
    source: Sequence[Node],
    target: Sequence[Node],
    processor: Processor,
    dispatch: Mapping[str, float],
    slow: Mapping[str, float],
    working_set: Mapping[str, float],
) -> CoreWork:
    """The work of calls, given by column, that are dispatched on CPU devices and stay on them.

    `slow` devices take so many times as long. A sum of n values reads n and writes one, which makes
    `passes`.
    """
    both = np.array([a.kind == b.kind == "cpu" for a, b in zip(source, target, strict=True)])
    both[0] = False  # the call of ops that cost nothing
    calls = np.flatnonzero(both & (executor == Executor.TF))
    crosses = np.array(
        [source[c].machine != target[c].machine for c in calls.tolist()], dtype=np.bool_
    )
    factor = np.array([slow.get(source[c].name, 1.0) for c in calls.tolist()])
    rates = processor.rates
    names = [Kind(k).name.lower() for k in kind[calls].tolist()]
    costs = np.array([dispatch.get(name, 0.0) for name in names])
    moved = np.where(kind[calls] == Kind.COPY, 1, passes[calls])
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
