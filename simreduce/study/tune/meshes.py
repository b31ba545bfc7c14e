"""Meshes of a training step, fastest first: each legal one with every choice that goes with it.

A bound says which may win: a rank's passes with what they wait for, and the bubble of an ideal
pipeline. What needs more memory than a GPU has is not simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial
from math import inf

from simreduce.computing.watching import Watch, unwatched
from simreduce.engine import AtLeast
from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.export.frameworks import MESH_PROGRAMS
from simreduce.study.ranking import RankedRows
from simreduce.study.scenario import Meshes
from simreduce.study.study import Limit, Postponed, answer_all
from simreduce.training.executions import Execution
from simreduce.training.gpus import utilization
from simreduce.training.memory import device_memory
from simreduce.training.mesh.costs import Costs
from simreduce.training.mesh.held import held_by
from simreduce.training.mesh.job import ORDER, Mesh, MeshJob
from simreduce.training.mesh.passes import MeshPasses
from simreduce.training.mesh.pipeline import NAMES, grid, load_schedule
from simreduce.training.mesh.simulate import MeshStep, at_least, simulate_mesh
from simreduce.training.mesh.write import MOST_NODES, write_ranks
from simreduce.workload.decoder import Decoder

_NEAREST = 12
"""Meshes that are simulated where none fits."""
_NEAR = 1.05
"""Times the best step up to which others are simulated too, where all meshes are tried: of a mesh
and a schedule, what may be the best.
"""


@dataclass(frozen=True)
class MeshRanking(RankedRows[Meshes, MeshStep]):
    """Steps, fastest first; what does not fit a GPU's `memory` comes last.

    `refused` says why a job cannot be, in a pair for each reason. `bounded` have a lower bound
    above the best, do not fit, or take as long in the usual order of ranks.
    """

    memory: int = 0
    bounded: int = 0

    def fits(self, step: MeshStep) -> bool | None:
        """Whether every rank's share fits; None where nobody says how much a GPU has."""
        return step.fullest.peak <= self.memory if self.memory else None

    @property
    def best(self) -> MeshStep:
        """The fastest that fits."""
        return self.candidates[0]

    @cached_property
    def closely(self) -> MeshStep:
        """The best step, with when every node of it ran."""
        job, setup = self.best.job, self.scenario.setup
        return simulate_mesh(job, setup, _costs(setup, job.mesh), closely=True)


def rank_meshes(scenario: Meshes, workers: int = 1, watch: Watch = unwatched) -> MeshRanking:
    """The step of every mesh that the scenario's framework can run; InputError if none can be
    simulated.
    """
    question, setup = scenario.question, scenario.setup
    memory = device_memory(setup.topology, setup.layout.ranks)
    able, unable = _split_by_framework(scenario)
    jobs = able if question.named or not memory else _fitting(able, memory) or _least(able)

    def limits(outcomes: Mapping[int, object]) -> Callable[[int], float]:
        best: dict[object, float] = {}
        for each in outcomes.values():
            if isinstance(each, MeshStep):
                alike = _alike(each.job)
                best[alike] = min(each.seconds, best.get(alike, inf))
        near = min(best.values(), default=inf) * _NEAR
        return lambda place: min(near, best.get(_alike(jobs[place]), inf))

    found, refused, untried, hurried = answer_all(
        jobs,
        [each.text for each in jobs],
        partial(_simulate, setup),
        by_name=question.named,
        workers=workers,
        watch=watch,
        limits=None if question.named else limits,
    )
    simulated = [step for step in found.values() if isinstance(step, MeshStep)]
    steps = simulated if question.named else _without_twins(simulated)
    if not steps:
        raise InputError([reason for _, reason in refused])
    steps.sort(key=lambda step: (0 < memory < step.fullest.peak, step.seconds))
    noted = [(each.name, why) for each in question.refused for why in each.reasons]
    late = sum(isinstance(each, AtLeast) for each in found.values())
    late += len(able) - len(jobs) + len(simulated) - len(steps)
    return MeshRanking(
        scenario, tuple(steps), (*noted, *unable, *refused), untried, memory, late, hurried=hurried
    )


def _without_twins(steps: Sequence[MeshStep]) -> list[MeshStep]:
    """The steps, but for those that take as long to the bit in the usual order of ranks."""
    usual = {step.job: step.seconds for step in steps if step.job.mesh.order == ORDER}

    def is_twin(step: MeshStep) -> bool:
        mesh = step.job.mesh
        twin = replace(step.job, mesh=replace(mesh, order=ORDER))
        return mesh.order != ORDER and usual.get(twin) == step.seconds

    return [step for step in steps if not is_twin(step)]


def _split_by_framework(scenario: Meshes) -> tuple[list[MeshJob], list[tuple[str, str]]]:
    """The jobs that the scenario's framework can run, and why it cannot run the others.

    InputError with all these reasons if it can run none.
    """
    jobs, name = scenario.question.jobs, scenario.framework
    if not name:
        return [*jobs], []
    looked_at = [(job, MESH_PROGRAMS[name].why_not(job)) for job in jobs]
    able = [job for job, why in looked_at if not why]
    if not able:
        found = dict.fromkeys(each for _, why in looked_at for each in why)
        raise InputError([f"{scenario.name}: {each}" for each in found])
    return able, [(job.text, each) for job, why in looked_at for each in why]


_ROUNDS = 4
"""Rounds of micro batches after which no more are in flight, but for GPipe."""


def _alike(job: MeshJob) -> object:
    return job.mesh, job.schedule


def _peaks(job: MeshJob) -> Iterator[int]:
    """What each rank holds at most. The order of ranks does not count."""
    micros = job.micros
    if job.schedule in NAMES and job.schedule != "gpipe" and micros % job.mesh.pp == 0:
        micros = min(micros, _ROUNDS * job.mesh.pp)
    schedule = _schedule(job.schedule, job.mesh.pp, job.virtual, micros)
    return (held_by(job, schedule, rank).peak for rank in range(job.mesh.pp))


_schedule = lru_cache(maxsize=64)(load_schedule)


def _least(jobs: Sequence[MeshJob]) -> list[MeshJob]:
    """Those that need the least memory."""
    return sorted(jobs, key=lambda job: max(_peaks(job)))[:_NEAREST]


def _fitting(jobs: Iterable[MeshJob], memory: int) -> list[MeshJob]:
    """The jobs that fit a GPU's memory."""

    @cache
    def fits(alike: MeshJob) -> bool:
        return all(peak <= memory for peak in _peaks(alike))

    return [job for job in jobs if fits(replace(job, mesh=replace(job.mesh, order=ORDER)))]


_any_costs = lru_cache(maxsize=1)(Costs)
"""The costs on a setup, with what all meshes have in common."""


@lru_cache(maxsize=64)
def _costs(setup: Setup, mesh: Mesh) -> Costs:
    """What a mesh moves; what it has in common with others is simulated once."""
    return _any_costs(setup, Mesh()).of_mesh(mesh)


def mfu(step: MeshStep) -> float:
    """Model FLOPs of a step over what all GPUs could do in its time, 3 times the forward pass."""
    job = step.job
    flops = 3.0 * _forward(job.shape, job.sequence) * job.global_batch
    return utilization(job.gpu, flops, step.seconds, job.mesh.ranks, job.bits)


@lru_cache(maxsize=8)
def _forward(shape: Decoder, tokens: int) -> float:
    """FLOPs of a sequence's forward pass; all rows of a ranking share it."""
    return sum(layer.forward for layer in shape.layers(tokens))


def limit_of(step: MeshStep) -> str:
    """What a rank waits for the longest; `compute` where it hardly waits."""
    waits = {key: seconds for key, seconds in step.by.items() if key not in ("compute", "update")}
    longest = max(waits, key=waits.__getitem__, default="compute")
    return longest if waits.get(longest, 0.0) > 0.05 * step.seconds else "compute"


def bubble(step: MeshStep) -> float:
    """The part of the time that ranks idle if passes take as long everywhere and sends no time."""
    rows = grid(step.schedule)
    ends = max(map(len, rows))
    return 1.0 - sum(sum(map(bool, row)) for row in rows) / (ends * len(rows))


def programs_for(job: MeshJob) -> list[str]:
    """Programs that can run a job, by the names of targets."""
    return [name for name, program in MESH_PROGRAMS.items() if not program.why_not(job)]


def files_of_mesh(ranking: MeshRanking) -> Mapping[str, str]:
    """The files of the best step for the scenario's framework, by name."""
    return MESH_PROGRAMS[ranking.scenario.framework].export(ranking.best.job)


def why_no_files(ranking: MeshRanking) -> str:
    """Why no mesh is there to train on; "" if there is one."""
    if ranking.fits(ranking.best) is not False:
        return ""
    title = MESH_PROGRAMS[ranking.scenario.framework].title
    return f"{ranking.scenario.name}: what {title} can run needs more memory than a GPU has"


def mesh_seconds(known: Setup, job: MeshJob, setup: Setup) -> float:
    """Seconds of a step on a setup. Calls on the `known` one itself are simulated once.

    A setup whose links have other figures may be equal to it, as both have one name and digest.
    """
    costs = _costs(known, job.mesh) if setup is known else None
    return simulate_mesh(job, setup, costs).seconds


def write_mesh(job: MeshJob, setup: Setup, most: int = MOST_NODES) -> Execution:
    """What every rank does in a step.

    With more than `most` nodes, those of the first pipeline, as a note of it says.
    """
    return write_ranks(job, MeshPasses(job, _costs(setup, job.mesh)), most)


@lru_cache(maxsize=1 << 14)
def _bound(setup: Setup, job: MeshJob) -> float:
    return at_least(job, _costs(setup, job.mesh))


def _simulate(setup: Setup, job: MeshJob, limit: Limit) -> MeshStep | AtLeast | Postponed:
    """The step of a job. Without a limit, its bound says when it is its turn."""
    bound = 0.0 if limit == inf else _bound(setup, job)
    if limit is None:
        return Postponed(round(bound * 1e6))
    if bound > limit:
        return AtLeast(bound, "its passes")
    return simulate_mesh(job, setup, _costs(setup, job.mesh))
