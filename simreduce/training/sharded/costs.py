"""The cost of each collective of a sharded step alone, and which of them share something."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import simpy

from simreduce.engine import CALM, Fabric
from simreduce.engine.setup import Setup
from simreduce.errors import NotFoldable, TopologyError
from simreduce.plan import verify, wrong_elements
from simreduce.planners.strategy import compile_collective, proved_on_few
from simreduce.topology import fold
from simreduce.training.sharded.collectives import PlanKey, ShardedMethod

FOLDED_FROM = 64
"""Ranks from which on one of equal machines represents all."""


@dataclass(frozen=True, slots=True)
class PlanCost:
    """The cost of one plan.

    It has the plan's time alone on the machine, wrong elements, digest, and the links and queues
    that it uses, by number, unless it is alone anyway. `busiest` is the link or memory that it
    needs for the longest, with the seconds.
    """

    seconds: float
    wrong: int
    digest: str
    links: frozenset[int]
    queues: frozenset[int]
    busiest: tuple[str, float] = ("", 0.0)

    def meets(self, other: PlanCost) -> bool:
        """Whether the two would share a link or a queue."""
        return bool(self.links & other.links or self.queues & other.queues)


def measure_costs(method: ShardedMethod, setup: Setup, *, keep: bool) -> dict[PlanKey, PlanCost]:
    """Return the cost of every plan of a step.

    Plans are large: unless it is to `keep` them, there is one at a time, and where many machines
    are equal one of them represents all.
    """
    numbers: dict[str, int] = {}
    one = None if keep else fold_setup(method, setup)
    costs = {}
    for key in method.distinct:
        found = _folded_cost(method, key, one) if one is not None else None
        costs[key] = found or _cost(method, key, setup, numbers, keep=keep)
    return costs


def key_seconds(method: ShardedMethod, key: PlanKey, setup: Setup) -> float:
    """Seconds of one collective of a step alone on the machine, without its proof."""
    env, one = simpy.Environment(), fold_setup(method, setup)
    if one is not None:
        strategy, workload = method.strategies[key.collective], method.workload(key)
        try:
            plan = compile_collective(key.collective, strategy, workload, one.layout)
        except NotFoldable:
            one = None
    if one is None:
        plan = method.plan(key)
    at = one or setup
    fabric = Fabric(env, at.machine, at.constants_of(plan), at.runtime, at.disturbance, fixed=True)
    env.run(until=fabric.submit(plan))
    return float(env.now)


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


def _folded_cost(method: ShardedMethod, key: PlanKey, one: Setup) -> PlanCost | None:
    """Return the cost of a plan of equal machines, proved on few of them.

    None if its algorithm does not do the same on each.
    """
    strategy, workload = method.strategies[key.collective], method.workload(key)
    try:
        plan = compile_collective(key.collective, strategy, workload, one.layout)
    except NotFoldable:
        return None
    env = simpy.Environment()
    fabric = Fabric(env, one.machine, one.constants_of(plan), one.runtime)
    lowered = fabric.lower(plan)
    busiest = fabric.busiest(lowered)
    env.run(until=fabric.submit(plan, lowered=lowered))
    _, wrong = proved_on_few(strategy, workload, one.layout)
    return PlanCost(float(env.now), wrong, plan.digest, frozenset(), frozenset(), busiest)


def _cost(
    method: ShardedMethod, key: PlanKey, setup: Setup, numbers: dict[str, int], *, keep: bool
) -> PlanCost:
    plan = method.plan(key, keep=keep)
    env = simpy.Environment()
    constants = setup.constants_of(plan)
    fabric = Fabric(
        env, setup.topology, constants, setup.runtime, setup.disturbance, numbers, fixed=True
    )
    lowered = fabric.lower(plan)
    links, queues = (
        frozenset(set(each.tolist())) for each in (lowered.calls.uses, lowered.calls.lanes)
    )
    busiest = fabric.busiest(lowered)
    env.run(until=fabric.submit(plan, lowered=lowered))
    wrong = wrong_elements(verify(plan))
    return PlanCost(float(env.now), wrong, plan.digest, links, queues, busiest)


def digest_of(costs: dict[PlanKey, PlanCost]) -> str:
    """A digest of all plans of a step."""
    text = " ".join(cost.digest for cost in costs.values())
    return hashlib.sha256(text.encode()).hexdigest()[:16]
