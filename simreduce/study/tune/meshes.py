"""Meshes of a training step, fastest first: each legal one with every choice that goes with it.

A bound says which may win: a rank's passes with what they wait for, and the bubble of an ideal
pipeline. What needs more memory than a GPU has is not simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from math import inf
from typing import Any

from simreduce import units
from simreduce.computing import grouped
from simreduce.computing.workers import Watch, as_piece, pass_on, unwatched
from simreduce.engine import AtLeast
from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.export.frameworks import MESH_PROGRAMS, MESH_VERSIONS
from simreduce.study.advice import Advised, Option, decide, too_little
from simreduce.study.frameworks import MISFIT, half_words
from simreduce.study.ranking import (
    Limit,
    Postponed,
    answer_all,
    in_order,
)
from simreduce.study.scenario import WORTH, Meshes, StepScenario
from simreduce.study.tune.steps import (
    COMPOSED,
    MethodRanking,
    OtherSteps,
    StepCandidate,
    StepCase,
    StepRows,
    rank_steps,
)
from simreduce.training import (
    SimulatedStep,
    StepResult,
)
from simreduce.training.gpus import utilization
from simreduce.training.interference import Loses
from simreduce.training.memory import FULL, OP, POLICIES
from simreduce.training.mesh import (
    DISTRIBUTED,
    FSDP,
    OPTIMIZERS,
    ORDER,
    Mesh,
    MeshJob,
    split_evenly,
)
from simreduce.training.mesh.held import held_by_stages
from simreduce.training.mesh.mesh_table import policy_of_stack
from simreduce.training.mesh.passes import Costs, MeshPasses
from simreduce.training.mesh.pipeline import NAMES, grid, load_schedule
from simreduce.training.mesh.write import at_least, simulate_mesh, write_ranks
from simreduce.training.simulation import (
    MemoryFit,
    device_memory,
)
from simreduce.training.step_errors import apart, ask, step_interval
from simreduce.workload.decoder import Decoder

_NEAREST = 12
"""Meshes that are simulated where none fits."""
_NEAR = 1.05
"""Times the best step up to which others are simulated too, where all meshes are tried: of a mesh
and a schedule, what may be the best.
"""


@dataclass(frozen=True)
class MeshRanking(StepRows[Meshes]):
    """Steps, fastest first; what does not fit a GPU's `memory` comes last.

    `refused` says why a job cannot be, in a pair for each reason. `bounded` have a lower bound
    above the best, do not fit, or take as long in the usual order of ranks.
    """

    memory: int = 0
    bounded: int = 0

    @cached_property
    def folded(self) -> Mapping[MeshJob, Sequence[StepCandidate]]:
        """The rows of each mesh, fastest first, by the job that stands for them: the simplest of
        those that are as good. Every row of meshes that the scenario names stands for itself.
        """
        jobs = [(row.job, row) for row in self.candidates if row.job]
        if self.scenario.question.named:
            return {job: [row] for job, row in jobs}
        groups = grouped(((job.mesh.text, row.misfit), row) for job, row in jobs)
        return {_simplest(rows)[0].row.job: rows for rows in groups.values()}

    @cached_property
    def advice(self) -> tuple[Advised, ...]:
        """What to train with: the simplest that is as good as the fastest that fits. Nobody says
        what runs today.
        """
        rows = [self.candidates[0], *(row for row in self.candidates[1:] if row.job in self.folded)]
        option, fastest = _simplest(rows)
        reason = "" if option is fastest else too_little(WORTH)
        do = f"{MISFIT if option.misfit else 'Train with'} {option.name}"
        known = self.scenario.framework, "", option, None, fastest, reason, do
        return (Advised(*known, fastest_words=fastest.name),)

    def is_apart(self, row: StepCandidate) -> bool:
        """Whether a row is slower than the fastest by more than errors of published meshes."""
        return row.seconds > self.candidates[0].seconds * apart()

    @property
    def job(self) -> MeshJob:
        """The job of that."""
        assert self.recommended.job is not None  # noqa: S101 - it is of a mesh
        return self.recommended.job

    @property
    def nominal(self) -> str:
        """Which times of the rows rest on no measurement."""
        calls = {call for row in self.candidates for call in row.calls}
        names = (row.step.method for row in self.candidates)
        known = self.scenario.setup.nominal(names, sorted(calls))
        return "; ".join(filter(None, (known, self.job.gpu.nominal(self.job.bits))))

    @cached_property
    def closely(self) -> StepResult:
        """The best step, with when every node of it ran."""
        return simulate_mesh(self.job, _costs(self.scenario.setup, self.job.mesh), closely=True)

    @property
    def loses(self) -> Loses:
        """What its passes lose beside collectives."""
        return MeshPasses(self.job, _costs(self.scenario.setup, self.job.mesh)).law()

    @property
    def case(self) -> StepCase:
        """The best step, to simulate again."""
        job, setup = self.job, self.scenario.setup
        return StepCase(
            job, setup, lambda: SimulatedStep(self.closely), seconds_of,
            lambda: write_ranks(job, MeshPasses(job, _costs(setup, job.mesh))),
            lambda change: seconds_of(job, change(setup)), missing=COMPOSED,
        )  # fmt: skip

    @property
    def others(self) -> OtherSteps:
        """That step with other numerics."""
        job, setup = self.job, self.scenario.setup
        more = f"a global batch of {2 * job.global_batch}"
        bf16 = job.half == "bf16"  # Megatron-LM has an argument for that alone
        name = half_words(self.scenario.framework * bf16, "", bf16=bf16)
        yield name, 1.0, lambda: seconds_of(replace(job, reduced=2), setup)
        yield more, 2.0, lambda: seconds_of(replace(job, micros=2 * job.micros), setup)

    @property
    def enough(self) -> str:
        """The first change of the mesh to run with which it fits, and what a GPU holds then."""
        node = len(self.scenario.setup.layout.tasks[0])
        name = self.scenario.framework
        for words, job in _smaller(self.job, node):
            able = not (name and MESH_VERSIONS[name].why_not(job))
            if able and _fits(job, self.memory):
                return f"{words} ({units.format_size(max(_needs(job)))} a GPU)"
        return ""

    @property
    def recording(self) -> None:
        """Its calls are not simulated together, so no plans are recorded."""
        return


_MORE = (2, 4, 8, 16, 32)
"""Times as many GPUs that are looked at."""


def _smaller(job: MeshJob, node: int) -> Iterator[tuple[str, MeshJob]]:
    """Changes of a job that need less memory, what costs least first: what a scenario says, and the
    job then. Tensor parallel ranks stay on a `node` of so many GPUs.
    """
    recomputes = [FULL] if job.recompute == OP else POLICIES[POLICIES.index(job.recompute) + 1 :]
    known = OPTIMIZERS if job.mesh.pp == 1 else OPTIMIZERS[:2]
    optimizers = known[OPTIMIZERS.index(job.optimizer) + 1 :]
    by = job.kernels, job.shape, job.attention
    one = [{"recompute": policy_of_stack(each, *by)} for each in recomputes]
    one += [{"optimizer": each} for each in optimizers]
    found: list[dict[str, Any]] = [
        *one, *({"recompute": FULL, "optimizer": each} for each in optimizers if recomputes),
    ]  # fmt: skip
    for change in found:
        yield _keys(change), replace(job, **change)
    last = found[-1] if found else {}
    mesh, said = job.mesh, f" with {_keys(last)}" if last else ""
    job, shape = replace(job, **last), job.shape
    while mesh.dp % (2 * mesh.copies) == 0 and not shape.experts:  # ways of half as many replicas
        tp, pp = 2 * mesh.tp, 2 * mesh.pp
        split = split_evenly(shape.blocks, pp)
        if not (node % tp or shape.heads % tp or max(shape.groups, tp) % tp):
            mesh = replace(mesh, tp=tp, dp=mesh.dp // 2)
        elif split and job.virtual == 1 and job.schedule == "1f1b" and job.optimizer != FSDP:
            mesh, job = replace(mesh, pp=pp, dp=mesh.dp // 2), replace(job, split=split)
        else:
            break
        job = replace(job, mesh=mesh, micros=2 * job.micros)
        yield f'mesh = "{mesh.text}"{said}', job
    for times in _MORE if job.optimizer in (DISTRIBUTED, FSDP) else ():
        more = replace(job, mesh=replace(mesh, dp=times * mesh.dp))
        yield f'{times} times as many GPUs, as mesh = "{more.mesh.text}"{said}', more


def _keys(change: Mapping[str, Any]) -> str:
    return " and ".join(f'{key} = "{value}"' for key, value in change.items())


def seconds_of(job: MeshJob, setup: Setup) -> float:
    """The step of a job."""
    return simulate_mesh(job, _costs(setup, job.mesh)).seconds


def spent_of(job: MeshJob, setup: Setup) -> Mapping[str, float]:
    """What the step of a job spends its seconds on."""
    return dict(simulate_mesh(job, _costs(setup, job.mesh)).spent)


def _simplest(rows: Sequence[StepCandidate]) -> tuple[Option, Option]:
    """The simplest of the rows that are as good as the fastest, and that."""
    options = [
        Option(
            row.job.words, row.seconds, misfit=row.misfit,
            simplicity=(row.job.complexity, row.seconds), row=row,
        ) for row in rows if row.job
    ]  # fmt: skip
    return decide(options, None, WORTH, lambda _one, _other: "")[:2]


Ranking = MethodRanking | MeshRanking


def rank_question(
    question: StepScenario | Meshes,
    workers: int = 1,
    watch: Watch = unwatched,
    *,
    simulate_all: bool = False,
) -> Ranking:
    """The steps of a question by method or by mesh; of methods, all that it does not name either
    (`simulate_all`).
    """
    if isinstance(question, Meshes):
        return rank_meshes(question, workers, watch)
    return rank_steps(question, workers, watch, simulate_all=simulate_all)


def rank_meshes(scenario: Meshes, workers: int = 1, watch: Watch = unwatched) -> MeshRanking:
    """The step of every mesh that the scenario's framework can run; InputError if none can be
    simulated.
    """
    question, setup = scenario.question, scenario.setup
    memory = device_memory(setup.topology, setup.layout.ranks)
    jobs, unable = _split_by_framework(scenario)
    first = [] if question.named else _first(jobs, memory)

    def limits(outcomes: Mapping[int, object]) -> Callable[[int], float]:
        known = (each for each in outcomes.values() if isinstance(each, StepCandidate))
        took = grouped((_alike(each.job), each.seconds) for each in known)
        best = {alike: min(seconds) for alike, seconds in took.items()}
        near = min(best.values(), default=inf) * _NEAR
        return lambda place: min(near, best.get(_alike(jobs[place]), inf))

    found, refused, untried, hurried = answer_all(
        jobs,
        [each.text for each in jobs],
        partial(_simulate, setup, memory),
        by_name=question.named,
        workers=workers,
        watch=watch,
        limits=None if question.named else limits,
        order=[*first, *(place for place in range(len(jobs)) if place not in first)],
        waited=first,
    )
    simulated = [row for row in found.values() if isinstance(row, StepCandidate)]
    rows = simulated if question.named else _without_twins(simulated)
    if not rows:
        pass_on(untried and not hurried)
        raise InputError([reason for _, reason in refused])
    noted = [(each.name, why) for each in question.refused for why in each.reasons]
    late = sum(isinstance(each, AtLeast) for each in found.values())
    return MeshRanking(
        scenario, tuple(in_order(rows)), (*noted, *unable, *refused), untried, memory,
        late + len(simulated) - len(rows), hurried=hurried,
    )  # fmt: skip


def _without_twins(rows: Sequence[StepCandidate]) -> list[StepCandidate]:
    """The rows, but for those that take as long to the bit in the usual order of ranks."""
    usual = {row.job: row.seconds for row in rows}
    twins = (replace(row.job, mesh=replace(row.job.mesh, order=ORDER)) for row in rows if row.job)
    return [
        row for row, twin in zip(rows, twins, strict=True)
        if row.job == twin or usual.get(twin) != row.seconds
    ]  # fmt: skip


def _split_by_framework(scenario: Meshes) -> tuple[list[MeshJob], list[tuple[str, str]]]:
    """The jobs that the scenario's framework can run, and why it cannot run the others.

    InputError with all these reasons if it can run none.
    """
    jobs, name = scenario.question.jobs, scenario.framework
    if not name:
        return [*jobs], []
    looked_at = [(job, MESH_VERSIONS[name].why_not(job)) for job in jobs]
    able = [job for job, why in looked_at if not why]
    if not able:
        found = dict.fromkeys(each for _, why in looked_at for each in why)
        raise InputError([f"{scenario.name}: {each}" for each in found])
    return able, [(job.text, each) for job, why in looked_at for each in why]


_ROUNDS = 4
"""Rounds of micro batches after which no more are in flight, but for GPipe."""


def _alike(job: MeshJob | None) -> object:
    return job and (job.mesh, job.schedule)


def _needs(job: MeshJob) -> Iterator[int]:
    """What each rank needs. The order of ranks does not count."""
    micros = job.micros
    if job.schedule in NAMES and job.schedule != "gpipe" and micros % job.mesh.pp == 0:
        micros = min(micros, _ROUNDS * job.mesh.pp)
    schedule = _schedule(job.schedule, job.mesh.pp, job.virtual, micros)
    return (each.needed for each in held_by_stages(job, schedule))


_schedule = lru_cache(maxsize=64)(load_schedule)


@lru_cache(maxsize=1 << 14)
def _usual_fits(job: MeshJob, memory: int) -> bool:
    return not memory or all(needed <= memory for needed in _needs(job))


def _fits(job: MeshJob, memory: int) -> bool:
    """Whether a job fits a GPU's memory, if that is known."""
    return _usual_fits(replace(job, mesh=replace(job.mesh, order=ORDER)), memory)


def _first(jobs: Sequence[MeshJob], memory: int) -> list[int]:
    """The place of the job to simulate before bounds of others: of those that fit, one that
    computes once, with the smallest ideal bubble and the fewest ranks that wait for each other.
    Where none fits, the places of those that need the least memory.
    """

    def loses(place: int) -> tuple[bool, float, int, int]:
        job, mesh = jobs[place], jobs[place].mesh
        again, bubble = job.recompute == FULL, (mesh.pp - 1) / (job.micros * job.virtual)
        return again, bubble, mesh.tp * mesh.cp, mesh.ep

    places = sorted(range(len(jobs)), key=loses)
    for place in places:
        if _fits(jobs[place], memory):
            return [place]
    return sorted(places, key=lambda place: max(_needs(jobs[place])))[:_NEAREST]


def first_mesh(scenario: Meshes) -> Meshes:
    """The scenario with one job alone, which is quickly found: its best step takes at most as long
    as this one's.
    """
    setup, question = scenario.setup, scenario.question
    place = _first(question.jobs, device_memory(setup.topology, setup.layout.ranks))[0]
    return replace(scenario, question=replace(question, jobs=(question.jobs[place],)))


_any_costs = lru_cache(maxsize=2)(Costs)
"""The costs on a setup, with what all meshes have in common."""


@lru_cache(maxsize=64)
def _costs(setup: Setup, mesh: Mesh) -> Costs:
    """What a mesh moves; what it has in common with others is simulated once."""
    return _any_costs(setup, Mesh()).of_mesh(mesh)


@lru_cache(maxsize=8)
def _flops(shape: Decoder, tokens: int) -> float:
    """Model FLOPs of a sequence, 3 times the forward pass; all rows of a ranking share it."""
    return 3.0 * sum(layer.forward for layer in shape.layers(tokens))


def bubble(job: MeshJob) -> float:
    """The part of the time that ranks idle if passes take as long everywhere and sends no time."""
    rows = grid(load_schedule(job.schedule, job.mesh.pp, job.virtual, job.micros))
    return 1.0 - sum(sum(map(bool, row)) for row in rows) / (max(map(len, rows)) * len(rows))


def programs_for(job: MeshJob) -> list[str]:
    """Programs that can run a job, by the names of targets."""
    return [name for name, program in MESH_PROGRAMS.items() if not program.why_not(job)]


def files_of_mesh(ranking: MeshRanking) -> Mapping[str, str]:
    """The files of the best step for the scenario's framework, by name."""
    return MESH_VERSIONS[ranking.scenario.framework].export(ranking.job)


def why_no_files(ranking: MeshRanking) -> str:
    """Why no mesh is there to train on; "" if there is one."""
    if not ranking.recommended.misfit:
        return ""
    title = MESH_VERSIONS[ranking.scenario.framework].title
    return f"{ranking.scenario.name}: what {title} can run needs more memory than a GPU has"


@as_piece
@lru_cache(maxsize=1 << 14)
def _bound(setup: Setup, job: MeshJob) -> float:
    return at_least(job, _costs(setup, job.mesh))


def _simulate(
    setup: Setup, memory: int, job: MeshJob, limit: Limit
) -> StepCandidate | AtLeast | Postponed:
    """The step of a job. Without a limit, its bound says when it is its turn."""
    if limit is None:
        fits = _fits(job, memory)
        return Postponed(round(_bound(setup, job) * 1e6)) if fits else AtLeast(inf, "memory")
    if limit < inf and (bound := _bound(setup, job)) > limit:
        return AtLeast(bound, "its passes")
    costs = _costs(setup, job.mesh)
    step = simulate_mesh(job, costs)
    assert step.memory is not None  # noqa: S101 - steps of meshes say it
    fit = MemoryFit(step.memory.needed, memory, step.memory.activations)
    flops = _flops(job.shape, job.sequence) * step.samples
    used = utilization(job.gpu, flops, step.seconds, step.devices, job.bits)
    sure = step_interval(ask(job.gpu, job.kernels, job.bits, job.shape))
    return StepCandidate(step, fit=fit, mfu=used, job=job, calls=costs.calls, sure=sure)
