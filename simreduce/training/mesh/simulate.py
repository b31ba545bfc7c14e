"""Simulates the step of a mesh: writes its execution, and runs it."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import replace

import simpy

from simreduce.training.calls import CallCost
from simreduce.training.executions import (
    COLLECTIVE,
    COMPUTE,
    SEND,
    UPDATE,
    Execution,
    ExecutionNode,
)
from simreduce.training.executor import Ran, run_nodes
from simreduce.training.mesh.held import held_by
from simreduce.training.mesh.job import EP, NCCL, TP, MeshJob
from simreduce.training.mesh.parts import ALL_REDUCE, MeshCall
from simreduce.training.mesh.passes import ENDS, Costs, MeshPasses
from simreduce.training.mesh.pipeline import (
    BACKWARD,
    FORWARD,
    IN_A_V,
    ONE_STAGE,
    Action,
    load_schedule,
)
from simreduce.training.mesh.write import LANE, Spent, write_step
from simreduce.training.passes import spans_of
from simreduce.training.path import STAGES, run_path
from simreduce.training.step import DATA, SLOWED, Bucket, StepResult

_ROUNDING = 1e-12


def simulate_mesh(job: MeshJob, costs: Costs, *, closely: bool = False) -> StepResult:
    """The step of a job, whose mesh has the `costs`.

    Only if `closely` it keeps when every node ran.
    """
    schedule = load_schedule(job.schedule, job.mesh.pp, job.virtual, job.micros)
    spent: Spent = {}
    execution = write_step(job, schedule, MeshPasses(job, costs), spent)
    ran = _run(execution, costs, job)
    held = tuple(held_by(job, schedule, rank) for rank in range(job.mesh.pp))
    seconds = max(each.end for each in ran)
    found = StepResult(
        job.text, job.mesh.ranks, job.global_batch, seconds, _spent(ran, spent), held,
        tokens=job.sequence,
    )  # fmt: skip
    if not closely:
        return found
    moved = {id(each.node): _transfer(execution, each) for each in ran if each.node.kind != COMPUTE}
    spans = [
        replace(span, device=f"stage {stage}, rank {rank}")
        for stage, rank in enumerate(execution.nodes, 1)
        for span in spans_of(each for each in ran if each.rank == rank)
    ]
    sent = (moved[id(each.node)] for each in ran if each.node.kind in (COLLECTIVE, SEND))
    return replace(
        found, ran=ran, path=run_path(ran, buckets=moved), spans=tuple(spans), buckets=tuple(sent)
    )


def _transfer(execution: Execution, each: Ran) -> Bucket:
    """What a node moved, on the lane of its replicas or between stages."""
    node, collective = each.node, each.node.kind == COLLECTIVE
    ranks = execution.members(node) if collective else (each.rank, node.peer)
    where = node.lane if collective else STAGES
    return Bucket((), ranks, node.nbytes, each.begin, each.since, each.end, where)


def _run(execution: Execution, costs: Costs, job: MeshJob) -> tuple[Ran, ...]:
    env = simpy.Environment()
    places = {rank: place for place, rank in enumerate(execution.nodes)}

    def cost(node: ExecutionNode, group: tuple[int, ...]) -> CallCost:
        if node.kind == COLLECTIVE:
            ends = tuple(places[rank] for rank in group) if node.lane == ENDS else ()
            sums = (node.lane, node.collective) == (TP, ALL_REDUCE)
            by = job.tensor_all_reduce if sums else NCCL
            call = MeshCall(node.lane, node.collective, node.nbytes, spread=ends, by=by)
            return costs.of(call, places.get(group[0], 0))
        return costs.send(node.nbytes, places[group[0]], places[group[1]])

    return run_nodes(
        execution, env,
        lambda node, group: env.timeout(cost(node, group).seconds),
        lambda node, group: job.slows(cost(node, group).channels),
    )  # fmt: skip


def at_least(job: MeshJob, costs: Costs) -> float:
    """A lower bound of a step: the passes of a rank, one after another, for the slowest rank.

    Before them, the first micro batch passes the stages before its first one; and where backward is
    whole, the last comes back through these. For 1F1B with equal stages that is the step itself,
    with the bubble of (p - 1) / m (Narayanan et al. 2021, arXiv 2104.04473). Where passes overlap,
    all-to-alls count as hidden.
    """
    passes, stages = MeshPasses(job, costs), range(len(job.split))
    overlaps = job.schedule in IN_A_V or bool(job.placed)
    whole = job.schedule in (*ONE_STAGE, "interleaved")

    def seconds(stage: int, kind: str) -> float:
        found = passes.of(Action(stage, kind, 0))
        return found.seconds - (found.by.get(EP, 0.0) if overlaps else 0.0)

    forward = [seconds(stage, FORWARD) for stage in stages]
    backward = [seconds(stage, BACKWARD) for stage in stages]
    found = []
    for rank in range(job.mesh.pp):
        mine = [stage for stage in stages if job.home[stage] == rank]
        busy = sum(forward[stage] + backward[stage] for stage in mine) * job.micros
        before = sum(forward[: mine[0]]) + (sum(backward[: mine[0]]) if whole else 0.0)
        found.append(busy + before)
    return max(found)


def _spent(ran: tuple[Ran, ...], spent: Spent) -> tuple[tuple[str, float], ...]:
    """What the rank that ends last did, by axis; waits by what they waited for."""
    last = max(ran, key=lambda each: each.end)
    mine = sorted((each for each in ran if each.rank == last.rank), key=lambda each: each.begin)
    moved = sorted((e.end, e.node.kind) for e in mine if e.node.kind != COMPUTE)
    ends = [end for end, _ in moved]
    found, now = defaultdict[str, float](float), 0.0
    for each in mine:
        if each.node.lane != LANE:
            continue
        if each.begin > now:
            late = bisect_right(ends, each.begin) - 1
            data = late >= 0 and ends[late] > now and moved[late][1] == COLLECTIVE
            found[DATA if data else "pipeline"] += each.begin - now
        known = spent.get(id(each.node), {UPDATE: each.node.seconds or 0.0})
        for axis, seconds in known.items():
            found[axis] += seconds
        found[SLOWED] += max(each.end - each.begin - sum(known.values()), 0.0)
        now = each.end
    found[DATA] += last.end - now
    return tuple(pair for pair in found.items() if pair[1] > _ROUNDING * last.end)
