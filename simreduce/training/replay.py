"""Replays what another program recorded.

Its compute takes as long as it took, and its collectives run as plans on a machine's fabric.

`executor` says when nodes run. Ranks that were not recorded keep nobody waiting, but take part:
their links carry what they send.

Not modelled: kernels of NCCL slow no other kernels down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import simpy

from simreduce.computing.watching import Watch, unwatched
from simreduce.engine import Fabric
from simreduce.engine.setup import Setup
from simreduce.files.formats import Faults
from simreduce.planners.strategy import parse_strategy
from simreduce.training.executions import COLLECTIVE, COMPUTE, Execution, ExecutionNode
from simreduce.training.executor import Movement, Ran, Run, run_nodes
from simreduce.training.group_plans import GroupPlans

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Replay:
    """A finished replay, which took `seconds` from begin to end.

    `exposed` is how long the slowest recorded rank computed nothing while something of its own was
    under way.
    """

    execution: Execution
    seconds: float
    exposed: float
    computed: float
    moved: tuple[Movement, ...]
    ran: tuple[Ran, ...]


def replay_execution(
    execution: Execution, setup: Setup, algorithm: str, watch: Watch = unwatched
) -> Replay:
    """The run on `setup`, rank i on its i-th device.

    InputError with all that the machine or the algorithm cannot do, or in which ranks disagree.
    """
    chosen = setup.running(parse_strategy(algorithm))
    plans = GroupPlans(chosen, algorithm)
    _check(execution, plans)
    env = simpy.Environment()
    fabric = Fabric(env, chosen.topology, chosen.constants, chosen.runtime, chosen.disturbance)

    def move(node: ExecutionNode, group: tuple[int, ...]) -> simpy.Event:
        plan = plans.of(node, group)
        return fabric.submit(plan) if plan else env.timeout(0.0)

    slow = {
        rank: chosen.disturbance.slow.get(name, 1.0)
        for rank, name in enumerate(chosen.layout.ranks)
    }
    run = Run(execution, env, move, slow)
    found = watch(run.finish(), run.total)
    ran = tuple(sorted(found, key=lambda each: (each.begin, each.rank)))
    run.check_done()
    mine: dict[int, list[Ran]] = {rank: [] for rank in execution.nodes}
    for each in ran:
        mine[each.rank].append(each)
    exposed, computed = max(map(_exposed, mine.values()), key=lambda found: found[0])
    seconds = max((each.end for each in ran), default=0.0)
    return Replay(execution, seconds, exposed, computed, tuple(run.moved), ran)


def replay_compute(execution: Execution) -> tuple[Ran, ...]:
    """The run where all that moves takes no time, in the order of ends."""
    env = simpy.Environment()
    return run_nodes(execution, env, lambda _node, _group: env.timeout(0.0))


def _check(execution: Execution, plans: GroupPlans) -> None:
    """Compile all that the run needs."""
    faults = Faults(execution.source)
    n = plans.setup.layout.n
    if execution.world > n:
        faults.add(
            "", f"has {execution.world} ranks, and {plans.setup.topology.name} has {n} devices"
        )
        faults.raise_any()
    for rank, nodes in execution.nodes.items():
        for node in nodes:
            if node.kind == COLLECTIVE:
                group = execution.members(node)
                if not all(member < n for member in group):
                    faults.add(node.name, f"rank {max(group)} of its group: there are {n} devices")
                elif rank not in group:
                    faults.add(node.name, f"rank {rank} is not in its group {group}")
                elif not 0 <= node.root < len(group):
                    faults.add(node.name, f"root {node.root}: its group has {len(group)} ranks")
                elif len(group) > 1 and node.nbytes:
                    facts = node.collective, node.nbytes, group, node.root
                    faults.attempt(node.name, plans.plan, *facts)
            elif node.kind != COMPUTE and node.peer >= n:
                faults.add(node.name, f"rank {node.peer} is its peer: there are {n} devices")
            if len(faults.problems) > _SHOWN:
                faults.raise_any()
    faults.raise_any()


def _exposed(mine: Sequence[Ran]) -> tuple[float, float]:
    """Return the seconds in which a rank's work is exposed, and in which it computes.

    Exposed means that something is under way and it computes nothing.
    """
    computes = _union([(e.begin, e.end) for e in mine if e.node.kind == COMPUTE])
    everything = _union([(e.begin, e.end) for e in mine])
    return everything - computes, computes


def _union(spans: Sequence[tuple[float, float]]) -> float:
    """The length of what spans cover together."""
    total, until = 0.0, 0.0
    for begin, end in sorted(spans):
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total
