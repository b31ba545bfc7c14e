"""Simulates the step of a mesh: writes its execution, and runs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import simpy

from simreduce.engine.setup import Setup
from simreduce.training.executions import COLLECTIVE, COMPUTE, RECEIVE, Execution, Node
from simreduce.training.mesh.costs import Costs
from simreduce.training.mesh.held import Held, held_by
from simreduce.training.mesh.job import MeshJob
from simreduce.training.mesh.parts import Call
from simreduce.training.mesh.passes import Passes
from simreduce.training.mesh.pipeline import Schedule, load_schedule
from simreduce.training.mesh.write import LANE, write_step
from simreduce.training.replay import Ran, run_nodes


@dataclass(frozen=True)
class MeshStep:
    """A step of `seconds`. `by` says what the rank that ends last did, or waited for, how long.

    `held` has what each pipeline rank holds; `ran` all nodes with their times.
    """

    job: MeshJob
    schedule: Schedule
    seconds: float
    by: Mapping[str, float]
    held: tuple[Held, ...]
    ran: tuple[Ran, ...]

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all replicas."""
        return self.job.global_batch * self.job.sequence / self.seconds


def simulate_mesh(job: MeshJob, setup: Setup, costs: Costs | None = None) -> MeshStep:
    """The step of a job on a machine with as many GPUs as its mesh has ranks."""
    known = costs or Costs(setup, job.mesh)
    schedule = load_schedule(job.schedule, job.mesh.pp, job.virtual, job.micros)
    passes = Passes(job, known)
    execution = write_step(job, schedule, passes)
    ran = _run(execution, known, job)
    held = tuple(held_by(job, schedule, rank) for rank in range(job.mesh.pp))
    seconds = max(each.end for each in ran)
    return MeshStep(job, schedule, seconds, _by(ran, passes, schedule), held, ran)


def _run(execution: Execution, costs: Costs, job: MeshJob) -> tuple[Ran, ...]:
    env = simpy.Environment()
    places = {rank: place for place, rank in enumerate(execution.nodes)}

    def move(node: Node, group: tuple[int, ...]) -> simpy.Event:
        if node.kind == COLLECTIVE:
            call = Call(node.lane, node.collective, node.nbytes)
            return env.timeout(costs.of(call, places[group[0]] if group[0] in places else 0).seconds)
        return env.timeout(costs.send(node.nbytes, places[group[0]], places[group[1]]))

    return run_nodes(execution, env, move)


def _by(ran: tuple[Ran, ...], passes: Passes, schedule: Schedule) -> Mapping[str, float]:
    """What the rank that ends last did, by axis; waits by what they waited for."""
    last = max(ran, key=lambda each: each.end).rank
    mine = [each for each in ran if each.rank == last]
    found, now = Counter[str](), 0.0
    ends = {id(each.node): each for each in mine}
    place = sorted({each.rank for each in ran}).index(last)
    actions = {str(a): a for a in schedule.rows[place]}
    computed = [each for each in mine if each.node.lane == LANE]
    nodes = sorted(mine, key=lambda each: each.end)
    del ends
    for each in sorted(computed, key=lambda each: each.begin):
        if each.begin > now:
            late = [o for o in nodes if o.node.kind != COMPUTE and now < o.end <= each.begin]
            kind = "pipeline" if late and late[-1].node.kind != COLLECTIVE else "data"
            found[kind if late else "pipeline"] += each.begin - now
        name = each.node.name.partition(".")[0]
        if name in actions and "." not in each.node.name:
            found.update(passes.of(actions[name]).by)
        else:
            found["update" if name == "update" else "compute"] += each.end - each.begin
        now = each.end
    end = max(each.end for each in mine)
    if end > now:
        found["data"] += end - now
    return {key: value for key, value in found.items() if value}


_ = RECEIVE
