"""What ops on CPU devices cost: the constants of a `Processor`, call by call."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simreduce.arrays import AnyInts, Bools, Floats, blocks
from simreduce.engine.calibration import Processor
from simreduce.plan import Executor, Kind, Plan
from simreduce.plan.plan import IN_PLACE
from simreduce.topology import Node, Topology

COMPUTER = "computer"
"""Stands for all machines where one computer does the work of all."""

CPU = "cpu"
"""The kind of lane on which ops take their turns at the cores."""

MEMORY = "memory"
"""The kind of what is between caches and memory."""

TRANSFER = "transfer"
"""The kind of a copy to another machine, where rates are meant."""


_WRITING = (Kind.COPY, Kind.ADD, Kind.CONCAT, Kind.SCALE, Kind.CAST)
"""Ops that write every byte of their value: a SLICE shares what it narrows, as INPUTs and OUTPUTs
share a variable.
"""

_OWNING = (Kind.INPUT, *_WRITING)
"""Ops whose values have memory of their own."""


def scope(processor: Processor, machine: str) -> str:
    """Whose cores those of a machine are."""
    return COMPUTER if processor.shared else machine


def scopes(topology: Topology, processor: Processor) -> list[str]:
    """All there are, in the order of the nodes."""
    owners = (
        scope(processor, node.machine) for node in topology.nodes.values() if node.kind == "cpu"
    )
    return list(dict.fromkeys(owners))


def working_set(plan: Plan, nodes: Sequence[Node], processor: Processor) -> dict[str, float]:
    """How many bytes the values take that have memory of their own, by whose cores those of their
    `nodes` are: once, however many times the plan is chained; 0 where nobody asks.
    """
    held = {scope(processor, node.machine): 0.0 for node in nodes}
    if not math.isfinite(processor.memory):
        return held
    own = np.zeros(len(nodes))
    for some in blocks(len(plan)):
        kind = plan.kind[some]
        made = np.isin(kind, _OWNING) & ((kind != Kind.CONCAT) | (plan.arg[some] != IN_PLACE))
        own += np.bincount(plan.device[some][made], plan.sizes(some)[made], minlength=len(own))
    machines = plan.machines if processor.shared else 1
    for node, nbytes in zip(nodes, own.tolist(), strict=True):
        held[scope(processor, node.machine)] += nbytes * machines / plan.times
    return held


@dataclass(frozen=True, slots=True)
class Work:
    """What calls ask of the cores. Entries are those of `calls`, the places of calls that do, in
    ascending order.

    `seconds` is how long one core works, whatever the size; `per_byte` how long for each byte of
    the result, 0 where it is not known, and `past` how long beside that for each that it reads and
    writes beyond its own cache, of which there are `touched` by byte of the result; `through` how
    many bytes of memory are written for each, past the cache, 0 where memory limits nothing;
    `apart` whether its bytes move after its work, not with it; `owner` whose cores they are.
    """

    calls: AnyInts
    seconds: Floats
    per_byte: Floats
    past: Floats
    touched: Floats
    through: Floats
    apart: Bools
    owner: tuple[str, ...]
    own_cache: int

    @property
    def at_once(self) -> Floats:
        """Of `seconds`, what is one flow with the bytes."""
        return np.where(self.apart, 0.0, self.seconds)

    def moves(self, which: AnyInts, nbytes: Floats) -> Floats:
        """How long one core moves results of so many bytes, of the entries `which`."""
        beyond = np.maximum(self.touched[which] * nbytes - self.own_cache, 0.0)
        return nbytes * self.per_byte[which] + beyond * self.past[which]

    @property
    def in_turn(self) -> Floats:
        """Of `seconds`, what comes before the bytes."""
        return np.where(self.apart, self.seconds, 0.0)

    def turns(self, processor: Processor) -> Floats:
        """For how long each call has its turn at the cores."""
        return self.in_turn / processor.cores

    def rests(self, processor: Processor) -> Floats:
        """What is left of `in_turn` after the turn, when another may have its own."""
        return self.in_turn - self.in_turn / processor.cores


_NOTHING = np.zeros(0)
NO_WORK = Work(
    calls=np.zeros(0, dtype=np.int64), seconds=_NOTHING, per_byte=_NOTHING, past=_NOTHING, touched=_NOTHING, through=_NOTHING,
    apart=np.zeros(0, dtype=np.bool_), owner=(), own_cache=0,
)  # fmt: skip
"""Nothing is asked of any cores."""


def work(
    kind: AnyInts, executor: AnyInts, passes: AnyInts, source: Sequence[Node], target: Sequence[Node], processor: Processor,
    dispatch: Mapping[str, float], slow: Mapping[str, float], held: Mapping[str, float],
) -> Work:  # fmt: skip
    """Of calls, by column: those that are dispatched on CPU devices and stay on them. `slow`
    devices take so many times as long. `held` is what a step works on (`working_set`).

    The work of a sum of n values is that of reading n and writing one, `passes` in all.
    """
    both = np.array([a.kind == b.kind == "cpu" for a, b in zip(source, target, strict=True)])
    both[0] = False  # what costs nothing
    calls = np.flatnonzero(both & (executor == Executor.TF))
    crosses = np.array(
        [source[c].machine != target[c].machine for c in calls.tolist()], dtype=np.bool_
    )
    factor = np.array([slow.get(source[c].name, 1.0) for c in calls.tolist()])
    names = [Kind(k).name.lower() for k in kind[calls].tolist()]
    costs = np.array([dispatch.get(name, 0.0) for name in names])
    moved = np.where(kind[calls] == Kind.COPY, 1, passes[calls])
    rated = (TRANSFER if away else name for name, away in zip(names, crosses, strict=True))
    owner = tuple(scope(processor, source[c].machine) for c in calls.tolist())
    missed = np.array([processor.missed(held[name]) for name in owner])
    written = np.isin(kind[calls], _WRITING) & ~crosses & math.isfinite(processor.memory)
    per_byte = moved * factor * np.array([_seconds(processor.rates, name) for name in rated])
    return Work(
        calls=calls,
        seconds=(costs + processor.message * crosses) * factor,
        per_byte=per_byte,
        past=np.where((per_byte > 0.0) & ~crosses, factor / processor.past_own, 0.0),
        touched=np.where(kind[calls] == Kind.COPY, 2.0, moved),
        through=written * missed * factor,
        # Within one computer, bytes for another machine are moved by its cores as well.
        apart=crosses & ~((per_byte > 0.0) & processor.shared),
        owner=owner,
        own_cache=processor.own_cache,
    )


def _seconds(rates: Mapping[str, float], name: str) -> float:
    return 1.0 / rates[name] if name in rates else 0.0
