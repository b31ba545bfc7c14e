"""The cost of each collective of a sharded step alone, and which of them share something."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass

import simpy

from simreduce.engine import CALM, Fabric
from simreduce.engine.lowering.lowered import Lowered
from simreduce.engine.setup import Setup
from simreduce.errors import NotFoldable, TopologyError
from simreduce.plan import Plan, verify, wrong_elements
from simreduce.planners.strategy import compile_collective, proved_on_few
from simreduce.topology import fold
from simreduce.training.calls import CallCost, channels_of
from simreduce.training.sharded.collectives import PlanKey, ShardedMethod

FOLDED_FROM = 64
"""Ranks from which on one of equal machines represents all."""


@dataclass(frozen=True, slots=True)
class PlanCost:
    """The cost of one plan.

    It has the plan's time alone on the machine with its channels, wrong elements, digest, and the
    links and queues that it uses, by number, unless it is alone anyway. `busiest` is the link or
    memory that it needs for the longest, with the seconds.
    """

    call: CallCost
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
    return {key: _cost(method, key, one, setup, numbers, keep=keep) for key in method.distinct}


def key_cost(method: ShardedMethod, key: PlanKey, setup: Setup) -> CallCost:
    """One collective of a step alone on the machine, without its proof."""
    found = _folded(method, key, fold_setup(method, setup)) or (setup, method.plan(key))
    cost, _, _ = _run_alone(*found)
    return cost


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


def _run_alone(
    setup: Setup, plan: Plan, numbers: dict[str, int] | None = None
) -> tuple[CallCost, Lowered, tuple[str, float]]:
    """The cost of a plan alone, with its lanes by `numbers`, and what it needs for the longest."""
    constants, env = setup.constants_of(plan), simpy.Environment()
    fabric = Fabric(
        env, setup.machine, constants, setup.runtime, setup.disturbance, numbers, fixed=True
    )
    lowered = fabric.lower(plan)
    busiest = fabric.busiest(lowered)
    env.run(until=fabric.submit(plan, lowered=lowered))
    return CallCost(float(env.now), channels_of(plan)), lowered, busiest


def _cost(
    method: ShardedMethod, key: PlanKey, one: Setup | None, setup: Setup,
    numbers: dict[str, int], *, keep: bool,
) -> PlanCost:  # fmt: skip
    """The cost of a collective, on one of equal machines if it may be (proved on few of them)."""
    nothing = frozenset[int]()
    if folded := _folded(method, key, one):
        at, plan = folded
        cost, _, busiest = _run_alone(at, plan)
        strategy, workload = method.strategies[key.collective], method.workload(key)
        _, wrong = proved_on_few(strategy, workload, at.layout)
        return PlanCost(cost, wrong, plan.digest, nothing, nothing, busiest)
    plan = method.plan(key, keep=keep)
    cost, lowered, busiest = _run_alone(setup, plan, numbers)
    links, queues = (frozenset(each.tolist()) for each in (lowered.calls.uses, lowered.calls.lanes))
    return PlanCost(cost, wrong_elements(verify(plan)), plan.digest, links, queues, busiest)


def digest_of(costs: dict[PlanKey, PlanCost]) -> str:
    """A digest of all plans of a step."""
    text = " ".join(cost.digest for cost in costs.values())
    return hashlib.sha256(text.encode()).hexdigest()[:16]
