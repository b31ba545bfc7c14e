"""The collectives of a sharded step as plans, each with the contract of its collective.

All shard groups run a collective at once, each among its own ranks; so do all groups of replicas,
which are the ranks with the same shard. One plan holds all groups, which share the fabric.

A collective has its cost alone, and the links and queues that it may share with others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from simreduce import dtypes
from simreduce.engine import CALM
from simreduce.engine.setup import Setup
from simreduce.errors import NotFoldable, StrategyError, TopologyError
from simreduce.files.formats.syntax import Faults
from simreduce.plan import Plan, side_by_side, verify, wrong_elements
from simreduce.planners.layouts import Layout
from simreduce.planners.strategy import Strategy, parse_strategy
from simreduce.planners.strategy.compiler import compile_collective, proved_on_few
from simreduce.topology import fold
from simreduce.training.calls import Busy, CallCost, busiest_use, held_by
from simreduce.training.interference import Channels
from simreduce.training.sharded import (
    HSDP,
    METHODS,
    Do,
    Instruction,
    Sharding,
    Unit,
    schedule,
    wrap,
)
from simreduce.training.step import StepJob
from simreduce.workload import Gradient, Workload

ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE = COLLECTIVES = (
    "all_gather",
    "reduce_scatter",
    "all_reduce",
)


class PlanKey(NamedTuple):
    """The input that a plan is compiled from: units of equal size share a plan."""

    collective: str
    elements: int
    dtype: int

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self.elements * dtypes.SIZES[self.dtype]


@dataclass(frozen=True, slots=True, eq=False)
class ShardedMethod:
    """A sharded method with the strategy of its collectives, on the ranks of a layout.

    `group` ranks hold one copy of the shards. `instructions` are a step's, and refer to `units`.
    `param_dtype` is that of all-gathers, `reduce_dtype` that of reductions.
    """

    method: str
    name: str
    layout: Layout
    strategies: dict[str, Strategy]
    sharding: Sharding
    units: tuple[Unit, ...]
    instructions: tuple[Instruction, ...]
    group: int
    param_dtype: int
    reduce_dtype: int
    _known: dict[PlanKey, Plan] = field(default_factory=dict)

    @property
    def replicas(self) -> int:
        """How many copies of the shards there are."""
        return self.layout.n // self.group

    def key(self, collective: str, unit: int) -> PlanKey:
        """Return the key of a unit's collective.

        It covers the padded flat parameter, or for an all-reduce one rank's shard of it.
        """
        elements = self.units[unit].padded(self.group)
        if collective == ALL_REDUCE:
            elements //= self.group
        gather = collective == ALL_GATHER
        return PlanKey(collective, elements, self.param_dtype if gather else self.reduce_dtype)

    def keys(self, instruction: Instruction) -> tuple[PlanKey, ...]:
        """The collectives of an instruction, one after another."""
        if instruction.do == Do.GATHER:
            return (self.key(ALL_GATHER, instruction.unit),)
        if instruction.do != Do.REDUCE:
            return ()
        scatter = self.key(REDUCE_SCATTER, instruction.unit)
        across = self.key(ALL_REDUCE, instruction.unit)
        return (scatter, across) if self.replicas > 1 else (scatter,)

    def stream(self, key: PlanKey) -> str:
        """The stream on which a collective waits for its turn."""
        if key.collective == REDUCE_SCATTER and self.sharding.streams > 1:
            return "gradients"
        return "replicas" if key.collective == ALL_REDUCE else "shards"

    @property
    def distinct(self) -> tuple[PlanKey, ...]:
        """Every key of a step, once, in the order of the first."""
        return tuple(dict.fromkeys(key for each in self.instructions for key in self.keys(each)))

    def workload(self, key: PlanKey) -> Workload:
        """The tensor that a plan moves."""
        return Workload(key.collective, (Gradient("shards", key.elements, key.dtype),))

    def plan(self, key: PlanKey, *, keep: bool = False) -> Plan:
        """The plan of a collective. StrategyError for what its algorithm does not accept."""
        if key in self._known:
            return self._known[key]
        strategy = self.strategies[key.collective]
        plans = [
            compile_collective(key.collective, strategy, self.workload(key), part)
            for part in self._parts(key.collective)
        ]
        plan = plans[0] if len(plans) == 1 else side_by_side(plans, self.layout.devices)
        if keep:
            self._known[key] = plan
        return plan

    def held(self, setup: Setup, key: PlanKey, plan: Plan, seconds: float = 0.0) -> Channels:
        """The channels of its kernel, and what links of a group's ranks bring a GPU; it takes so
        many `seconds` alone, if that is known.
        """
        return held_by(setup, plan, next(self._parts(key.collective)).ranks, seconds)

    def _parts(self, collective: str) -> Iterator[Layout]:
        """The layouts of the groups that run a collective among themselves."""
        n, size = self.layout.n, self.group
        if size == n:
            yield self.layout
        elif collective == ALL_REDUCE:
            yield from (self.layout.only(range(first, n, size)) for first in range(size))
        else:
            yield from (self.layout.only(range(first, first + size)) for first in range(0, n, size))


def sharded_method(
    method: str, strategy: Strategy, job: StepJob, layout: Layout, sharding: Sharding
) -> ShardedMethod:
    """A method of `METHODS`.

    StrategyError for a strategy without an all-gather, a reduce-scatter or, of replicas, an
    all-reduce; and for groups that the ranks do not divide into.
    """
    name = f"{method}, {strategy.text}"
    if method not in METHODS:
        raise StrategyError(f"{method}: no sharded method; one of {', '.join(METHODS)}")
    if layout.machines > 1:
        raise StrategyError(f"{name}: equal machines are not folded for sharded methods")
    group = _group(method, name, layout, sharding)
    kinds = COLLECTIVES if group < layout.n else COLLECTIVES[:2]
    strategies, faults = dict[str, Strategy](), Faults()
    for kind in kinds:
        if found := faults.attempt(name, parse_strategy, strategy.text, kind):
            strategies[kind] = found
    faults.raise_any(StrategyError)
    units = wrap(job.model, sharding.units)
    listed = {g.dtype for layer in job.model.layers for g in layer.gradients}
    param, reduce = sharding.wire(min(listed, default=0))
    instructions = schedule(
        method, units, sharding, job.accumulate, no_sync=job.no_sync, barrier=job.barrier
    )
    return ShardedMethod(
        method, name, layout, strategies, sharding, units, instructions, group, param, reduce
    )


def _group(method: str, name: str, layout: Layout, sharding: Sharding) -> int:
    """Ranks of a shard group."""
    if layout.n == 1:
        raise StrategyError(f"{name}: one GPU has nobody to share with")
    if method != HSDP:
        return layout.n
    sizes = {len(task) for task in layout.tasks}
    group = sharding.group or min(sizes)
    if not sharding.group and len(sizes) > 1:
        raise StrategyError(f"{name}: machines differ in their GPUs; give step.sharding.group")
    if group < 2 or layout.n % group:
        raise StrategyError(
            f"{name}: shard groups of {group} do not share {layout.n} GPUs evenly"
            "; give step.sharding.group, 2 GPUs or more"
        )
    return group


FOLDED_FROM = 64
"""Ranks from which on one of equal machines represents all."""


@dataclass(frozen=True, slots=True)
class PlanCost:
    """The cost of one plan.

    It has the plan's time alone on the machine with its channels, wrong elements, digest, and the
    links and queues that it `takes`. `busiest` is the link or memory that it needs for the longest.
    """

    call: CallCost
    wrong: int
    digest: str
    takes: frozenset[str]
    busiest: Busy


def measure_costs(method: ShardedMethod, setup: Setup, *, keep: bool) -> dict[PlanKey, PlanCost]:
    """Return the cost of every plan of a step.

    Plans are large: unless it is to `keep` them, there is one at a time, and where many machines
    are equal one of them represents all.
    """
    one = None if keep else fold_setup(method, setup)
    return {key: _cost(method, key, one, setup, keep=keep) for key in method.distinct}


def key_cost(method: ShardedMethod, key: PlanKey, setup: Setup) -> CallCost:
    """One collective of a step alone on the machine, without its proof."""
    one = fold_setup(method, setup)
    if folded := _folded(method, key, one):
        return CallCost.alone(*folded)
    plan = method.plan(key)
    seconds = setup.find_seconds(plan)
    return CallCost(seconds, *method.held(setup, key, plan, seconds))


def fold_setup(method: ShardedMethod, setup: Setup) -> Setup | None:
    """Return the setup with its equal machines folded into one; None if they cannot be.

    Only many ranks, all in one group, are folded.
    """
    shape = setup.layout
    whole = method.group == shape.n == len(setup.topology.devices) and not shape.order
    if not whole or shape.n < FOLDED_FROM or setup.disturbance != CALM:
        return None
    try:
        return setup.but(machine=fold(setup.topology), part=None)
    except TopologyError:
        return None


def _folded(method: ShardedMethod, key: PlanKey, one: Setup | None) -> tuple[Setup, Plan] | None:
    """The plan of equal machines on one of them; None if its algorithm does not do alike on all."""
    if one is None:
        return None
    strategy, workload = method.strategies[key.collective], method.workload(key)
    with suppress(NotFoldable):
        return one, compile_collective(key.collective, strategy, workload, one.layout)
    return None


def _cost(
    method: ShardedMethod, key: PlanKey, one: Setup | None, setup: Setup, *, keep: bool
) -> PlanCost:
    """The cost of a collective, on one of equal machines if it may be (proved on few of them)."""
    if folded := _folded(method, key, one):
        at, plan = folded
        _, wrong = proved_on_few(method.strategies[key.collective], method.workload(key), at.layout)
    else:
        at, plan = setup, method.plan(key, keep=keep)
        wrong = wrong_elements(verify(plan))
    found = at.summarise(plan)
    held = held_by(at, plan) if folded else method.held(setup, key, plan, found.seconds)
    takes = frozenset(use.name for use in (*found.links, *found.lanes))
    cost = CallCost(found.seconds, *held)
    return PlanCost(cost, wrong, plan.digest, takes, busiest_use(found.links, found.seconds))


def digest_of(costs: dict[PlanKey, PlanCost]) -> str:
    """A digest of all plans of a step."""
    text = " ".join(cost.digest for cost in costs.values())
    return hashlib.sha256(text.encode()).hexdigest()[:16]
