"""What each collective of a sharded step costs alone, and which of them share something."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import simpy

from simreduce.engine import Fabric
from simreduce.plan import verify, wrong_elements
from simreduce.setup import Setup
from simreduce.training.sharded.collectives import Key, ShardedMethod


@dataclass(frozen=True, slots=True)
class Cost:
    """One plan: its time alone on the machine, wrong elements, digest, and the links and queues
    that it uses, by number.
    """

    seconds: float
    wrong: int
    digest: str
    links: frozenset[int]
    queues: frozenset[int]

    def meets(self, other: Cost) -> bool:
        """Whether the two would share a link or a queue."""
        return bool(self.links & other.links or self.queues & other.queues)


def measure_costs(method: ShardedMethod, setup: Setup, *, keep: bool) -> dict[Key, Cost]:
    """The cost of every plan of a step. Plans are large: unless it is to `keep` them, there is one
    at a time.
    """
    numbers: dict[str, int] = {}
    return {key: _cost(method, key, setup, numbers, keep=keep) for key in method.distinct}


def _cost(
    method: ShardedMethod, key: Key, setup: Setup, numbers: dict[str, int], *, keep: bool
) -> Cost:
    plan = method.plan(key, keep=keep)
    env = simpy.Environment()
    constants = setup.constants_of(plan)
    fabric = Fabric(env, setup.topology, constants, setup.runtime, setup.disturbance, numbers)
    lowered = fabric.lower(plan)
    links, queues = (
        frozenset(set(each.tolist())) for each in (lowered.calls.uses, lowered.calls.lanes)
    )
    env.run(until=fabric.submit(plan, lowered=lowered))
    return Cost(float(env.now), wrong_elements(verify(plan)), plan.digest, links, queues)


def digest_of(costs: dict[Key, Cost]) -> str:
    """A digest of all plans of a step."""
    text = " ".join(cost.digest for cost in costs.values())
    return hashlib.sha256(text.encode()).hexdigest()[:16]
