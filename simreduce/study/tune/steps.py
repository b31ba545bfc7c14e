"""Every strategy of a scenario, ranked by the training step around it.

What back-propagation hides costs nothing.

The reduction that is fastest alone need not be that of the fastest step: small packs start early,
one large pack moves fast. So packing and algorithm are chosen together, against the timeline of the
backward pass.

Meshes of a training step, fastest first: each legal one with every choice that goes with it.

A bound says which may win: a rank's passes with what they wait for, and the bubble of an ideal
pipeline. What needs more memory than a GPU has is not simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from math import inf
from typing import Any

from simreduce.computing import grouped
from simreduce.computing.workers import Watch, pass_on, unwatched
from simreduce.dtypes import code
from simreduce.engine import AtLeast
from simreduce.engine.calibrate.intervals import NcclCall
from simreduce.engine.setup import Setup
from simreduce.errors import InputError, StrategyError
from simreduce.export.frameworks import MESH_PROGRAMS
from simreduce.plan import verify, wrong_elements
from simreduce.planners.strategy import Strategy
from simreduce.study import frameworks
from simreduce.study.advice import Advised, Option, decide, hanging, strategy_of, too_little
from simreduce.study.frameworks import MISFIT
from simreduce.study.ranking import (
    Limit,
    Postponed,
    RankedRows,
    answer_all,
    by_reason,
    in_order,
    merge_equal,
)
from simreduce.study.scenario import WORTH, Meshes, StepScenario
from simreduce.study.tune.composed import ComposedStep, is_composed
from simreduce.study.tune.rank import by_promise, candidates_of, sharing_candidates, while_promising
from simreduce.study.tune.simulate import with_best_chunk
from simreduce.study.tune.whatif import network_changes
from simreduce.training import (
    Method,
    SimulatedStep,
    StepJob,
    StepQuestion,
    StepRecording,
    StepResult,
    record_step,
    simulate_step,
)
from simreduce.training.calls import busiest_use
from simreduce.training.executions import Execution
from simreduce.training.gpus import gpu_at, utilization
from simreduce.training.memory import FULL
from simreduce.training.mesh import ORDER, Mesh, MeshJob
from simreduce.training.mesh.held import held_by
from simreduce.training.mesh.passes import Costs, MeshPasses
from simreduce.training.mesh.pipeline import NAMES, grid, load_schedule
from simreduce.training.mesh.write import at_least, simulate_mesh, write_ranks
from simreduce.training.passes import slowdowns, slowest
from simreduce.training.sharded import DDP, Sharding
from simreduce.training.sharded.collectives import ALL_REDUCE, sharded_method
from simreduce.training.sharded.simulation import (
    record_sharded_step,
    running_sharded,
    simulate_sharded_step,
    write_sharded_execution,
)
from simreduce.training.simulation import (
    MemoryFit,
    device_memory,
    fit_of,
    least_memory,
    step_seconds,
    write_execution,
)
from simreduce.workload.decoder import Decoder


@dataclass(frozen=True)
class StepCandidate(SimulatedStep):
    """A step that is ranked: one method's, or that of a mesh's `job`.

    `unmoved` are samples a second of all devices if nothing moved. `fit` compares what a GPU holds
    with its memory, None for modes whose servers hold variables. `mfu` is None where nobody knows
    the GPUs or the model's FLOPs. `also` are the other methods with the same step and plan. `calls`
    are those of NCCL that were simulated for a mesh, or for meshes before it.
    """

    runtime: str = ""
    unmoved: float = inf
    fit: MemoryFit | None = None
    mfu: float | None = None
    also: tuple[str, ...] = ()
    job: MeshJob | None = None
    calls: frozenset[NcclCall] = frozenset()

    @property
    def names(self) -> list[str]:
        """Its method and the others with the same step and plan."""
        return [self.step.method, *self.also]

    @property
    def seconds(self) -> float:
        """Its time."""
        return self.step.seconds

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 80 % interval of a mesh's step, by that of its GPU's kernels; None of other steps."""
        if self.job is None:
            return None
        kernels = self.step.seconds - self.step.exposed
        low, high = self.job.gpu.interval(self.job.bits)
        return self.step.exposed + kernels * low, self.step.exposed + kernels * high

    @property
    def efficiency(self) -> float:
        """Throughput of the devices over what it would be if nothing moved; at most 1."""
        return self.step.samples_per_second / self.unmoved if self.step.seconds else 1.0

    @property
    def misfit(self) -> bool:
        """Whether a GPU has too little memory."""
        return self.fit is not None and self.fit.fits is False


@dataclass(frozen=True)
class MethodRanking(RankedRows[StepScenario, StepCandidate]):
    """Candidates, one for each plan and step, fastest first.

    Candidates that do not fit the memory of a GPU come last.
    """

    @property
    def runtimes(self) -> list[str]:
        """The runtime of each row."""
        return [row.runtime for row in self.candidates]

    @cached_property
    def case(self) -> StepCase:
        """The step of the method to run, to simulate again."""
        name = self.recommended.step.method
        own = (_method_of(name), strategy_of(name))
        return case_of(self.scenario, (DDP, None) if self.scenario.step.mode else own)

    @cached_property
    def outside(self) -> Mapping[str, float]:
        """What is gained with other numerics or another machine, as `StepCase.outside`."""
        return self.case.outside(self.recommended.step)

    @cached_property
    def recording(self) -> StepRecording | None:
        """That step, simulated again with its plans; None where these are too large."""
        return self.case.record(self.recommended.step) if self.case.record else None

    @property
    def closely(self) -> StepResult:
        """The step of the method to run, with what reductions wait for where it is recorded."""
        return self.recording.step if self.recording else self.recommended.step

    @property
    def nominal(self) -> str:
        """Which times of the rows rest on no measurement."""
        setup, rows = self.scenario.setup, [(n, row) for row in self.candidates for n in row.names]
        calls = [call for each in rows for call in _calls(setup, *each) or ()]
        return setup.nominal((name for name, _ in rows), calls)

    @property
    def recommended(self) -> StepCandidate:
        """The method to run, by the first advice."""
        found: StepCandidate = self.advice[0].option.row
        return found

    @cached_property
    def advice(self) -> tuple[Advised, ...]:
        """What to do for each framework that has a setting for a method that is proven right.

        Without any, the fastest method that fits, and if none is right, the fastest.
        """
        right = [row for row in self.candidates if not row.wrong] or self.candidates
        options = [_option(self.scenario, row, name) for row in right for name in row.names]
        return frameworks.advise_each(
            self.scenario, options, partial(_advise, self.scenario, options)
        )


def _method_of(name: str) -> str:
    """The method of a step's name, before its strategy."""
    return name.rpartition(", ")[0] or DDP


def _option(scenario: StepScenario, row: StepCandidate, name: str) -> Option:
    strategy = strategy_of(name)
    return Option(
        name,
        row.seconds,
        misfit=row.misfit,
        undispatched=bool(strategy and scenario.setup.undispatched(strategy)),
        unsimulated=frameworks.copies_of(scenario, _method_of(name)),
        row=row,
    )


def _calls(setup: Setup, name: str, row: StepCandidate) -> list[NcclCall] | None:
    """The calls of NCCL that the end of a step hangs on; all of them where it waits for shards."""
    strategy, buckets = strategy_of(name), row.step.buckets
    if strategy is None or not strategy.reduced_by_nccl:
        return None
    shards = any(each.collective for each in buckets)
    places = hanging([each.ready for each in buckets], [each.finish for each in buckets])
    how = strategy.algorithm, strategy.nccl.protocol
    return [
        setup.call(each.nbytes, each.collective or ALL_REDUCE, *how)._replace(
            seconds=each.finish - each.start
        )
        for each in (buckets if shards else map(buckets.__getitem__, places))
    ]


def _advise(scenario: StepScenario, options: Sequence[Option], name: str) -> Advised | None:
    """What to do for a framework, of the methods that it has a setting for; no modes."""
    if scenario.step.mode:
        return None
    standing = frameworks.default_text(name, scenario)

    def method(option: Option) -> str:
        return _method_of(option.name)

    def files(option: Option) -> Mapping[str, str] | None:
        strategy = strategy_of(option.name)
        assert strategy is not None  # noqa: S101 - modes have no frameworks
        return frameworks.files_of(name, scenario, strategy, method(option))

    def is_default(option: Option) -> bool:
        return option.name.rpartition(", ")[2] == (standing if method(option) == DDP else "nccl")

    known = [each for each in options if is_default(each) and files(each) is not None]
    methods = [DDP, *scenario.step.methods]
    today = min(known, key=lambda each: methods.index(method(each)), default=None)
    return frameworks.advise(
        name, options, today, files, scenario, method=method,
        calls=lambda each: _calls(scenario.setup, each.name, each.row),
        count=lambda each: len(each.row.step.buckets),
    )  # fmt: skip


def rank_steps(scenario: StepScenario, workers: int = 1, watch: Watch = unwatched) -> MethodRanking:
    """The step of every strategy by every method, or of the mode that `[step]` names.

    StrategyError if the machine accepts none.
    """
    question, pairs = scenario.step, _pairs(scenario)
    names = [_name(question, *pair) for pair in pairs]
    promise = by_promise([strategy for _, strategy in pairs], scenario)
    found, refused, untried, hurried = answer_all(
        pairs,
        names,
        partial(_predict, scenario),
        by_name=bool((scenario.strategies and len(question.methods) == 1) or question.mode),
        workers=workers,
        watch=watch,
        order=promise.order,
        waited=promise.waited,
        until=partial(while_promising, promise=promise),
    )
    rows = _one_for_each_step([c for c in found.values() if isinstance(c, StepCandidate)])
    if not rows:
        raise StrategyError(by_reason(refused))
    late = "takes longer to simulate than there is time"
    advice = "give a longer --budget, or type simreduce tune"
    refused += tuple((names[i], f"{names[i]}: {late}; {advice}") for i in promise.late)
    return MethodRanking(scenario, tuple(rows), refused, untried, hurried=hurried)


Pair = tuple[str, Strategy | None]
"""A method and its strategy; the scenario's mode if there is none."""


def _pairs(scenario: StepScenario) -> list[Pair]:
    """Every method with the scenario's strategies, or with all that suit it.

    Where `ddp` is among several methods, strategies that pack are for it alone.
    """
    question, shape, pairs = scenario.step, scenario.setup.layout, list[Pair]()
    if question.mode:
        return [(DDP, None)]
    for method in question.methods:
        suited = scenario.strategies
        if suited is None:
            suited = tuple(candidates_of(scenario) if method == DDP else sharing_candidates(shape))
        elif method != DDP and DDP in question.methods:
            suited = tuple(s for s in suited if s.packing == "none")
        pairs += [(method, strategy) for strategy in suited]
    return pairs


def _name(question: StepQuestion, method: str, strategy: Strategy | None) -> str:
    if strategy is None:
        return question.mode
    return strategy.text if question.sharding is None else f"{method}, {strategy.text}"


def _one_for_each_step(found: Sequence[StepCandidate]) -> list[StepCandidate]:
    """Candidates in order.

    Of those with the same plan and the same step, the one with the shortest name has the others in
    `also`.
    """
    merged = merge_equal(
        sorted(found, key=lambda c: (len(c.step.method), c.step.method)),
        lambda c: (c.digest, c.runtime, replace(c.step, method="")),
        lambda first, others: replace(first, also=tuple(c.step.method for c in others)),
    )
    return in_order(sorted(merged, key=lambda c: (c.alone, c.step.method)))


@dataclass(frozen=True, slots=True)
class StepCase:
    """One step, to simulate with all figures, or its seconds for any such job and in any setup.

    `write` gives what every rank does; InputError where no execution says it. `record` has the
    plans of a step that was simulated; it is None if these are not simulated together, for the
    reason in `missing`. `halved` gives its seconds with gradients in half precision, and `more` the
    words for a job of twice the samples, and that.
    """

    job: Any
    setup: Setup
    simulate: Callable[[], SimulatedStep]
    seconds: Callable[[Any, Setup], float]
    write: Callable[[], Execution]
    halved: Callable[[], float]
    more: tuple[str, Callable[[], Any]]
    record: Callable[[StepResult], StepRecording] | None = None
    missing: str = ""

    def outside(self, step: StepResult) -> dict[str, float]:
        """Samples a second over those of this step, with what changes its numerics or its machine:
        half the bytes of gradients, twice the samples between reductions, one more NIC.

        Empty where little is exposed; without what the step does not allow.
        """
        if step.exposed <= _EXPOSED * step.seconds:
            return {}
        words, more = self.more
        tried = {
            "gradients in half precision": (1.0, self.halved),
            words: (2.0, lambda: self.seconds(more(), self.setup)),
        }
        for each in network_changes(self.setup.topology):
            name = f"one more {each.resource} port beside each"
            tried[name] = 1.0, partial(self.seconds, self.job, each.apply(self.setup))
        found: dict[str, float] = {}
        for name, (samples, seconds) in tried.items():
            with suppress(InputError):
                found[name] = samples * step.seconds / seconds()
        return found


_EXPOSED = 0.05
"""The part of a step from which it is worth saying what would hide or move less."""

MOST_RANKS = 256
"""Sharded steps of more ranks are not examined link by link: plans would be too large."""

_TICKED = 12
"""Horovod's steps that are followed; each may have buffers of its own to simulate."""

_COMPOSED = "The step was composed of single calls, so the load of single links is not worked out."


def case_of(scenario: StepScenario, pair: Pair) -> StepCase:
    """A step of a scenario, which its setup may refuse: StrategyError."""
    question, (method, strategy) = scenario.step, pair
    beyond = partial(_halved_seconds, scenario, pair), _with_more_passes(question.job)
    if method != DDP and strategy is not None:
        job, setup = question.job, running_sharded(scenario.setup, _name(question, *pair))
        sharding = question.sharding or Sharding()
        sharded = sharded_method(method, strategy, job, setup.layout, sharding)
        large = len(setup.layout) > MOST_RANKS
        missing = (
            f"The {len(setup.layout)} GPUs were simulated as equal machines, one of which stands"
            f" for all; with more than {MOST_RANKS} the load of single links is not worked out."
        )
        return StepCase(
            job, setup, partial(simulate_sharded_step, job, sharded, setup),
            lambda job, at: simulate_sharded_step(job, sharded, at).step.seconds,
            partial(write_sharded_execution, job, sharded, setup), *beyond,
            None if large else lambda step: record_sharded_step(step, sharded, setup),
            missing if large else "",
        )  # fmt: skip
    question, setup = question.replicated, scenario.setup.running(strategy)
    job = question.job
    if strategy is not None and is_composed(scenario, strategy):
        made = ComposedStep(strategy, job, setup, question.cycle)
        return StepCase(
            job, setup, lambda: made.simulated,
            lambda job, at: replace(made, job=job, setup=at).step.seconds,
            partial(write_execution, job, made.method, setup), *beyond, missing=_COMPOSED,
        )  # fmt: skip
    if strategy is not None:
        strategy = with_best_chunk(strategy, job.model.workload, setup)
    how = question.method(strategy, setup.layout, faithful=scenario.faithful)
    return StepCase(
        job, setup, partial(_simulated, job, how, setup),
        partial(step_seconds, how, most=_TICKED), partial(write_execution, job, how, setup),
        *beyond, lambda _: record_step(job, how, setup),
    )  # fmt: skip


def _halved_seconds(scenario: StepScenario, pair: Pair) -> float:
    """The seconds of a step whose gradients are reduced in the GPUs' own half precision."""
    gpu = scenario.step.job.gpu or gpu_at(scenario.setup)
    dtype = code("bfloat16" if gpu is None or gpu.bf16 else "float16")
    sharding = replace(scenario.step.sharding or Sharding(), reduce_dtype=dtype)
    case = case_of(replace(scenario, step=replace(scenario.step, sharding=sharding)), pair)
    return case.seconds(case.job, case.setup)


def _with_more_passes(job: StepJob) -> tuple[str, Callable[[], StepJob]]:
    """Twice the passes between reductions, in words, and the job."""
    passes = 2 * job.accumulate
    return f"no_sync({passes})", lambda: replace(job, accumulate=passes, no_sync=True)


def _simulated(job: StepJob, how: Method, setup: Setup) -> SimulatedStep:
    """The step where every GPU has all parameters, with its reductions alone."""
    step, alone = simulate_step(job, how, setup), setup.summarise(how.whole)
    wrong, link = wrong_elements(verify(how.whole)), busiest_use(alone.links, alone.seconds)
    return SimulatedStep(step, alone.seconds, wrong, how.whole.digest, link[0])


def _predict(scenario: StepScenario, pair: Pair, _: Limit) -> StepCandidate:
    question, case = scenario.step, case_of(scenario, pair)
    job, setup, found = question.job, case.setup, case.simulate()
    sharding, activations = question.sharding or Sharding(), question.activations
    memory = (
        found.step.memory.plus(activations)
        if found.step.memory
        else least_memory(DDP, job.model, sharding, setup.layout.n, activations)
    )
    if question.sharding is not None:
        named = replace(found.step, method=_name(question, *pair), held=(memory,))
        found = replace(found, step=named)
    return StepCandidate(
        **vars(found),
        runtime=setup.runtime.name,
        unmoved=_unmoved(found.step, job, setup),
        fit=None if question.mode else fit_of(memory, setup.topology, setup.layout.ranks),
        mfu=utilization(
            job.gpu or gpu_at(setup),
            job.model.flops * found.step.samples,
            found.step.seconds,
            found.step.devices,
        ),
    )


def _unmoved(step: StepResult, job: StepJob, setup: Setup) -> float:
    """Samples a second of all devices if nothing moved and none waited for another.

    Each takes its own passes and its own share of the update, at its own speed; no step is faster.
    """
    factors = slowdowns(replace(job, spread=0.0), setup.disturbance, setup.layout.ranks)
    busy, samples = step.compute + step.update, step.samples // step.devices
    most = slowest(job, setup)
    seconds = [step.launch + busy * factor / most for factor in factors]
    return sum(samples / each if each else inf for each in seconds)


_NEAREST = 12
"""Meshes that are simulated where none fits."""
_NEAR = 1.05
"""Times the best step up to which others are simulated too, where all meshes are tried: of a mesh
and a schedule, what may be the best.
"""


@dataclass(frozen=True)
class MeshRanking(RankedRows[Meshes, StepCandidate]):
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

    @property
    def recommended(self) -> StepCandidate:
        """The simplest that is as good as the fastest that fits."""
        found: StepCandidate = self.advice[0].option.row
        return found

    @cached_property
    def advice(self) -> tuple[Advised, ...]:
        """What to train with. Nobody says what runs today."""
        first = self.candidates[0]
        rows = [first, *(row for row in self.candidates[1:] if row.job in self.folded)]
        option, fastest = _simplest(rows)
        reason = "" if option is fastest else too_little(WORTH)
        do = f"{MISFIT if option.misfit else 'Train with'} {option.name}"
        known = self.scenario.framework, "", option, None, fastest, reason, do
        return (Advised(*known, fastest_words=fastest.name),)

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
        found = known, self.job.gpu.nominal(self.job.bits)
        return "; ".join(filter(None, found))

    @cached_property
    def closely(self) -> StepResult:
        """The best step, with when every node of it ran."""
        costs = _costs(self.scenario.setup, self.job.mesh)
        return simulate_mesh(self.job, costs, closely=True)

    @property
    def case(self) -> StepCase:
        """The best step, to simulate again."""
        job, setup = self.job, self.scenario.setup

        def seconds(job: MeshJob, at: Setup) -> float:
            return simulate_mesh(job, _costs(at, job.mesh)).seconds

        return StepCase(
            job, setup, lambda: SimulatedStep(self.closely),
            seconds, lambda: write_ranks(job, MeshPasses(job, _costs(setup, job.mesh))),
            lambda: seconds(replace(job, reduced=2), setup),
            (f"a global batch of {2 * job.global_batch}",
             lambda: replace(job, micros=2 * job.micros)),
            missing=_COMPOSED,
        )  # fmt: skip

    @cached_property
    def outside(self) -> Mapping[str, float]:
        """What is gained with other numerics or another machine, as `StepCase.outside`."""
        return self.case.outside(self.recommended.step)

    @property
    def recording(self) -> None:
        """Its calls are not simulated together, so no plans are recorded."""
        return


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
    question: StepScenario | Meshes, workers: int = 1, watch: Watch = unwatched
) -> Ranking:
    """The steps of a question by method or by mesh."""
    if isinstance(question, Meshes):
        return rank_meshes(question, workers, watch)
    return rank_steps(question, workers, watch)


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
    looked_at = [(job, MESH_PROGRAMS[name].why_not(job)) for job in jobs]
    able = [job for job, why in looked_at if not why]
    if not able:
        found = dict.fromkeys(each for _, why in looked_at for each in why)
        raise InputError([f"{scenario.name}: {each}" for each in found])
    return able, [(job.text, each) for job, why in looked_at for each in why]


_ROUNDS = 4
"""Rounds of micro batches after which no more are in flight, but for GPipe."""


def _alike(job: MeshJob | None) -> object:
    return job and (job.mesh, job.schedule)


def _peaks(job: MeshJob) -> Iterator[int]:
    """What each rank holds at most. The order of ranks does not count."""
    micros = job.micros
    if job.schedule in NAMES and job.schedule != "gpipe" and micros % job.mesh.pp == 0:
        micros = min(micros, _ROUNDS * job.mesh.pp)
    schedule = _schedule(job.schedule, job.mesh.pp, job.virtual, micros)
    return (held_by(job, schedule, rank).peak for rank in range(job.mesh.pp))


_schedule = lru_cache(maxsize=64)(load_schedule)


@lru_cache(maxsize=1 << 14)
def _usual_fits(job: MeshJob, memory: int) -> bool:
    return not memory or all(peak <= memory for peak in _peaks(job))


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
    return sorted(places, key=lambda place: max(_peaks(jobs[place])))[:_NEAREST]


def first_mesh(scenario: Meshes) -> Meshes:
    """The scenario with one job alone, which is quickly found: its best step takes at most as long
    as this one's.
    """
    setup, question = scenario.setup, scenario.question
    place = _first(question.jobs, device_memory(setup.topology, setup.layout.ranks))[0]
    return replace(scenario, question=replace(question, jobs=(question.jobs[place],)))


_any_costs = lru_cache(maxsize=1)(Costs)
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
    ends = max(map(len, rows))
    return 1.0 - sum(sum(map(bool, row)) for row in rows) / (ends * len(rows))


def programs_for(job: MeshJob) -> list[str]:
    """Programs that can run a job, by the names of targets."""
    return [name for name, program in MESH_PROGRAMS.items() if not program.why_not(job)]


def files_of_mesh(ranking: MeshRanking) -> Mapping[str, str]:
    """The files of the best step for the scenario's framework, by name."""
    return MESH_PROGRAMS[ranking.scenario.framework].export(ranking.job)


def why_no_files(ranking: MeshRanking) -> str:
    """Why no mesh is there to train on; "" if there is one."""
    if not ranking.recommended.misfit:
        return ""
    title = MESH_PROGRAMS[ranking.scenario.framework].title
    return f"{ranking.scenario.name}: what {title} can run needs more memory than a GPU has"


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
    fit = MemoryFit(step.memory.peak, memory, step.memory.activations)
    flops = _flops(job.shape, job.sequence) * step.samples
    used = utilization(job.gpu, flops, step.seconds, step.devices, job.bits)
    return StepCandidate(step, fit=fit, mfu=used, job=job, calls=costs.calls)
