"""Meshes of a training step, fastest first: each legal one with every choice that goes with it.

A bound says which may win: a rank's passes with what they wait for, and the bubble of an ideal
pipeline. What needs more memory than a GPU has is not simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import inf

from simreduce.computing.watching import Watch, unwatched
from simreduce.engine import AtLeast
from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.export.meshes import MeshChoice, why_no_mesh
from simreduce.study.outcome import Postponed
from simreduce.study.scenario import Meshes
from simreduce.study.study import Limit, collect, study
from simreduce.training.executions import Execution
from simreduce.training.memory import device_memory
from simreduce.training.mesh.costs import Costs
from simreduce.training.mesh.held import held_by, largest
from simreduce.training.mesh.job import DEEPEP, MeshJob, split_evenly
from simreduce.training.mesh.passes import Passes
from simreduce.training.mesh.pipeline import load_schedule
from simreduce.training.mesh.simulate import MeshStep, at_least, simulate_mesh
from simreduce.training.mesh.ways import PP, Mesh
from simreduce.training.mesh.write import write_ranks
from simreduce.training.recompute import FUSED

MOST_NODES = 2_000_000
_NEAR = 1.05
"""Times the best step up to which others are simulated too, where all meshes are tried."""


@dataclass(frozen=True)
class MeshRanking:
    """Steps, fastest first; what does not fit a GPU's `memory` comes last.

    `refused` says why a job cannot be. `bounded` have a lower bound above the best, or were too
    many; `untried` were left out when the command was stopped.
    """

    scenario: Meshes
    steps: tuple[MeshStep, ...]
    refused: tuple[tuple[str, str], ...]
    memory: int
    bounded: int = 0
    untried: int = 0

    def fits(self, step: MeshStep) -> bool | None:
        """Whether every rank's share fits; None where nobody says how much a GPU has."""
        return largest(step.held).peak <= self.memory if self.memory else None

    @property
    def best(self) -> MeshStep:
        """The fastest that fits."""
        return self.steps[0]


def rank_meshes(scenario: Meshes, workers: int = 1, watch: Watch = unwatched) -> MeshRanking:
    """The step of every mesh; InputError if none can be simulated."""
    question, setup = scenario.question, scenario.setup
    memory = device_memory(setup.topology, setup.layout.ranks)
    jobs = [job for job in question.jobs if question.named or not memory or _peak(job) <= memory]
    jobs = jobs or [*question.jobs]

    def limits(outcomes: Mapping[int, object]) -> Callable[[int], float]:
        done = (each.seconds for each in outcomes.values() if isinstance(each, MeshStep))
        best = min(done, default=inf) * _NEAR
        return lambda _: best

    coming = study(
        jobs,
        partial(_simulate, setup),
        workers=workers,
        limits=None if question.named else limits,
    )
    found, refused, untried, _ = collect(
        watch(coming, len(jobs)), [each.text for each in jobs], by_name=question.named
    )
    late = len(question.jobs) - len(jobs)
    late += sum(isinstance(each, AtLeast) for each in found.values())
    steps = [step for step in found.values() if isinstance(step, MeshStep)]
    if not steps:
        raise InputError([reason for _, reason in refused])
    rows = MeshRanking(scenario, (), (), memory)
    steps.sort(key=lambda step: (rows.fits(step) is False, step.seconds))
    noted = [(each.name, "; ".join(each.reasons)) for each in question.refused]
    return MeshRanking(
        scenario, tuple(steps), (*noted, *refused), memory, bounded=late, untried=untried
    )


def _peak(job: MeshJob) -> float:
    schedule = load_schedule(job.schedule, job.mesh.pp, job.virtual, job.micros)
    return max((held_by(job, schedule, r).peak for r in range(job.mesh.pp)), default=inf)


@lru_cache(maxsize=1)
def _any_costs(setup: Setup) -> Costs:
    return Costs(setup, Mesh())


@lru_cache(maxsize=64)
def _costs(setup: Setup, mesh: Mesh) -> Costs:
    """What a mesh moves; what it has in common with others is simulated once."""
    return _any_costs(setup).of_mesh(mesh)


def choice_of_job(job: MeshJob) -> MeshChoice:
    """A job in plain figures, to export."""
    mesh, shape = job.mesh, job.shape
    return MeshChoice(
        ways={"tp": mesh.tp, "cp": mesh.cp, "ep": mesh.ep, "dp": mesh.dp, "pp": mesh.pp},
        expert_tensor=mesh.expert_tensor, order=mesh.order, micro_batch=job.micro_batch,
        micros=job.micros, global_batch=job.global_batch, sequence=job.sequence,
        schedule=job.schedule, virtual=job.virtual, split=_split(job),
        recompute=job.recompute, fused=job.attention == FUSED,
        sequence_parallel=job.sequence_parallel, optimizer=job.optimizer, overlap=job.overlap,
        bits=job.bits, half=job.half, reduced=job.reduced, latent=shape.latent,
        head=shape.head, dropout=shape.dropout, shared=shape.shared * shape.expert,
        dense=shape.dense, learned=bool(shape.positions), blocks=shape.blocks, width=shape.width,
        heads=shape.heads, groups=shape.groups, inner=shape.inner, words=shape.words,
        gated=shape.gated, bias=shape.bias, tied=shape.tied, experts=shape.experts,
        active=shape.active, expert=shape.expert, capacity=job.capacity, pad=job.pad,
        merged=job.dispatch == DEEPEP, graphs=job.graphs, limited=shape.limited,
    )  # fmt: skip


def _split(job: MeshJob) -> str:
    """How blocks are split into stages: `even`, `ends` with one less on the first and the last, or
    `listed`.
    """
    if len({*job.split}) == 1:
        return "even"
    return "ends" if job.split == split_evenly(job.shape.blocks, len(job.split)) else "listed"


def best_for(ranking: MeshRanking, target: str) -> MeshStep:
    """The fastest step that a program can run, of those that fit; InputError if there is none."""
    reasons: dict[str, None] = {}
    for step in ranking.steps:
        why = why_no_mesh(target, choice_of_job(step.job))
        if not why and ranking.fits(step) is not False:
            return step
        reasons |= dict.fromkeys(why or ["what it could run needs more memory than a GPU has"])
    raise InputError([f"{ranking.scenario.name}: {reason}" for reason in reasons])


def simulate_best(ranking: MeshRanking) -> MeshStep:
    """The best step, with when every node of it ran."""
    job, setup = ranking.best.job, ranking.scenario.setup
    return simulate_mesh(job, setup, _costs(setup, job.mesh), closely=True)


def best_execution(ranking: MeshRanking, most: int = MOST_NODES) -> Execution:
    """What every rank does in the best step.

    With more than `most` nodes, those of the first pipeline, as a note of it says.
    """
    job = ranking.best.job
    schedule = load_schedule(job.schedule, job.mesh.pp, job.virtual, job.micros)
    passes, rows = Passes(job, _costs(ranking.scenario.setup, job.mesh)), job.mesh.groups(PP)
    first = write_ranks(job, schedule, passes, rows[:1])
    nodes = sum(map(len, first.nodes.values())) * len(rows)
    if nodes <= most:
        return write_ranks(job, schedule, passes, rows)
    note = f"of {job.mesh.ranks:,} ranks, those of the first pipeline: all have {nodes:,} nodes"
    return replace(first, notes=(note,))


def _simulate(setup: Setup, job: MeshJob, limit: Limit) -> MeshStep | AtLeast | Postponed:
    """The step of a job. Without a limit, its bound says when it is its turn."""
    costs = _costs(setup, job.mesh)
    if limit == inf:
        return simulate_mesh(job, setup, costs)
    bound = at_least(job, costs)
    if limit is None:
        return Postponed(round(bound * 1e6))
    if bound > limit:
        return AtLeast(bound, "its passes")
    return simulate_mesh(job, setup, costs)
