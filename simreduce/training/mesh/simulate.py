"""Simulates the step of a mesh: writes its execution, and runs it."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import simpy

from simreduce.engine.setup import Setup
from simreduce.training.executions import COLLECTIVE, COMPUTE, Execution, Node
from simreduce.training.executor import Ran, run_nodes
from simreduce.training.mesh.costs import Costs
from simreduce.training.mesh.held import Held, held_by
from simreduce.training.mesh.job import MeshJob
from simreduce.training.mesh.parts import Call
from simreduce.training.mesh.passes import Passes
from simreduce.training.mesh.pipeline import (
    BACKWARD,
    FORWARD,
    IN_A_V,
    ONE_STAGE,
    Action,
    Schedule,
    load_schedule,
)
from simreduce.training.mesh.ways import EP
from simreduce.training.mesh.write import LANE, write_step


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


def simulate_mesh(
    job: MeshJob, setup: Setup, costs: Costs | None = None, *, closely: bool = False
) -> MeshStep:
    """The step of a job on a machine with as many GPUs as its mesh has ranks.

    Only if `closely` it keeps when every node ran.
    """
    known = costs or Costs(setup, job.mesh)
    schedule = load_schedule(job.schedule, job.mesh.pp, job.virtual, job.micros)
    passes = Passes(job, known)
    execution = write_step(job, schedule, passes)
    ran = _run(execution, known)
    held = tuple(held_by(job, schedule, rank) for rank in range(job.mesh.pp))
    seconds = max(each.end for each in ran)
    return MeshStep(
        job, schedule, seconds, _by(ran, passes, schedule), held, ran if closely else ()
    )


def _run(execution: Execution, costs: Costs) -> tuple[Ran, ...]:
    env = simpy.Environment()
    places = {rank: place for place, rank in enumerate(execution.nodes)}

    def move(node: Node, group: tuple[int, ...]) -> simpy.Event:
        if node.kind == COLLECTIVE:
            call = Call(node.lane, node.collective, node.nbytes)
            return env.timeout(costs.of(call, places.get(group[0], 0)).seconds)
        return env.timeout(costs.send(node.nbytes, places[group[0]], places[group[1]]))

    return run_nodes(execution, env, move)


def at_least(job: MeshJob, costs: Costs) -> float:
    """A lower bound of a step: all passes of the busiest rank, and the bubble of the schedule.

    Of 1F1B and GPipe the bubble is (p - 1) / m of all passes, and 1 / v of that interleaved
    (Narayanan et al. 2021, arXiv 2104.04473); other schedules count as without one. Where passes
    overlap, all-to-alls count as hidden.
    """
    passes, p = Passes(job, costs), job.mesh.pp
    overlaps = job.schedule in IN_A_V or bool(job.placed)
    seconds = [0.0] * p
    for stage in range(len(job.split)):
        for kind in (FORWARD, BACKWARD):
            found = passes.of(Action(stage, kind, 0))
            hidden = found.by.get(EP, 0.0) if overlaps else 0.0
            seconds[job.home[stage]] += found.seconds - hidden
    bubble = (p - 1) / job.virtual if job.schedule in (*ONE_STAGE, "interleaved") else 0.0
    return max(seconds) * job.micros + min(seconds) * bubble


def _by(ran: tuple[Ran, ...], passes: Passes, schedule: Schedule) -> Mapping[str, float]:
    """What the rank that ends last did, by axis; waits by what they waited for."""
    last = max(ran, key=lambda each: each.end).rank
    mine = sorted((each for each in ran if each.rank == last), key=lambda each: each.begin)
    place = sorted({each.rank for each in ran}).index(last)
    actions = {str(action): action for action in schedule.rows[place]}
    moved = sorted((e.end, e.node.kind) for e in mine if e.node.kind != COMPUTE)
    ends = [end for end, _ in moved]
    found, now = defaultdict[str, float](float), 0.0
    for each in mine:
        if each.node.lane != LANE:
            continue
        if each.begin > now:
            late = bisect_right(ends, each.begin) - 1
            data = late >= 0 and ends[late] > now and moved[late][1] == COLLECTIVE
            found["data" if data else "pipeline"] += each.begin - now
        name = each.node.name
        if name in actions:
            for axis, seconds in passes.of(actions[name]).by.items():
                found[axis] += seconds
        else:
            found["update" if name == "update" else "compute"] += each.end - each.begin
        now = each.end
    end = max(each.end for each in mine)
    found["data"] += end - now
    return {key: value for key, value in found.items() if value}
