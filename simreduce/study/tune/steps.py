"""Every strategy of a scenario, ranked by the training step around it.

What back-propagation hides costs nothing.

The reduction that is fastest alone need not be that of the fastest step: small packs start early,
one large pack moves fast. So packing and algorithm are chosen together, against the timeline of the
backward pass.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from math import inf
from typing import Any

from simreduce import units
from simreduce.computing.workers import Watch, time_is_up, unwatched
from simreduce.dtypes import SIZES, code
from simreduce.engine import AtLeast
from simreduce.engine.calibrate.intervals import NcclCall
from simreduce.engine.setup import Setup
from simreduce.errors import InputError, SimreduceError, StrategyError
from simreduce.export.frameworks import FRAMEWORKS
from simreduce.plan import verify, wrong_elements
from simreduce.planners.packing.arrangement import BF16, FP16
from simreduce.planners.strategy import Strategy, parse_strategy
from simreduce.study import frameworks
from simreduce.study.advice import Advised, Option, hanging, strategy_of
from simreduce.study.ranking import (
    Asked,
    Limit,
    Postponed,
    RankedRows,
    answer_all,
    by_reason,
    in_order,
    merge_equal,
)
from simreduce.study.scenario import StepScenario
from simreduce.study.tune.composed import ComposedStep, is_composed
from simreduce.study.tune.rank import by_promise, candidates_of, sharing_candidates, while_promising
from simreduce.study.tune.simulate import with_best_chunk
from simreduce.study.tune.step_floors import floor_of_step, step_limits
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
from simreduce.training.eager import FP32
from simreduce.training.executions import Execution
from simreduce.training.gpus import gpu_at, utilization
from simreduce.training.interference import Loses
from simreduce.training.memory import (
    FULL,
    NONE,
    SELECTIVE,
    buffers_of_calls,
    replicated_memory,
)
from simreduce.training.mesh import MeshJob
from simreduce.training.passes import loses_of, slowdowns, slowest
from simreduce.training.sharded import DDP, HSDP, METHODS
from simreduce.training.sharded.collectives import ALL_REDUCE, sharded_method
from simreduce.training.sharded.simulation import (
    record_sharded_step,
    running_sharded,
    simulate_sharded_step,
    write_sharded_execution,
)
from simreduce.training.simulation import (
    MemoryFit,
    fit_of,
    least_fit,
    step_seconds,
    write_execution,
)
from simreduce.training.step import ESTIMATED
from simreduce.training.step_errors import EXACT, StepInterval, ask, step_interval


@dataclass(frozen=True)
class StepCandidate(SimulatedStep):
    """A step that is ranked: one method's, or that of a mesh's `job`.

    `unmoved` are samples a second of all devices if nothing moved. `fit` compares what a GPU holds
    with its memory, None for modes whose servers hold variables. `mfu` is None where nobody knows
    the GPUs or the model's FLOPs. `also` are the other methods with the same step and plan. `calls`
    are those of NCCL that were simulated for a mesh, or for meshes before it. `sure` is how sure
    its kernels are, of a mesh its whole time; `waits` are the ends of the interval of what is
    exposed.
    """

    runtime: str = ""
    unmoved: float = inf
    fit: MemoryFit | None = None
    mfu: float | None = None
    also: tuple[str, ...] = ()
    job: MeshJob | None = None
    calls: frozenset[NcclCall] = frozenset()
    sure: StepInterval = EXACT
    waits: tuple[float, float] | None = None

    @property
    def names(self) -> list[str]:
        """Its method and the others with the same step and plan."""
        return [self.step.method, *self.also]

    @property
    def seconds(self) -> float:
        """Its time."""
        return self.step.seconds

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the 80 % interval of its seconds: exact where nothing of it is predicted."""
        exposed = 0.0 if self.job else self.step.exposed
        low, high = self.waits or (exposed, exposed)
        kernels = self.step.seconds - exposed
        return low + kernels * self.sure.low, high + kernels * self.sure.high

    @property
    def efficiency(self) -> float:
        """Throughput of the devices over what it would be if nothing moved; at most 1."""
        return self.step.samples_per_second / self.unmoved if self.step.seconds else 1.0

    @property
    def misfit(self) -> bool:
        """Whether a GPU has too little memory."""
        return self.fit is not None and self.fit.fits is False


OtherSteps = Iterable[tuple[str, float, Callable[[], float]]]
"""Steps with other numerics: what is other, how many times as many samples each has, its seconds.
"""


@dataclass(frozen=True)
class StepRows(RankedRows[Asked, StepCandidate]):
    """Ranked steps, of methods or of meshes, with the advice on them."""

    @property
    @abstractmethod
    def advice(self) -> tuple[Advised, ...]:
        """What to do."""

    @property
    @abstractmethod
    def case(self) -> StepCase:
        """The step to run, to simulate again."""

    @property
    @abstractmethod
    def others(self) -> OtherSteps:
        """That step with other numerics."""

    @property
    @abstractmethod
    def enough(self) -> str:
        """What a scenario changes so that the step to run, which does not fit, does; "" where
        nothing that was tried is enough.
        """

    @cached_property
    def fits_with(self) -> str:
        """As `enough`, where the step does not fit and nobody stopped the ranking."""
        return self.enough if self.recommended.misfit and not self.stopped else ""

    @property
    def recommended(self) -> StepCandidate:
        """The row to run, by the first advice."""
        found: StepCandidate = self.advice[0].option.row
        return found

    @cached_property
    def outside(self) -> Mapping[str, float]:
        """What is gained with other numerics or another machine, as `StepCase.outside`; nothing is
        simulated for it after a stop.
        """
        return {} if self.stopped else self.case.outside(self.recommended.step, self.others)


@dataclass(frozen=True)
class MethodRanking(StepRows[StepScenario]):
    """Candidates, one for each plan and step, fastest first.

    Candidates that do not fit the memory of a GPU come last. `bounded` cannot be among the first
    and were not simulated: their names, and what they take at least.
    """

    bounded: tuple[tuple[str, AtLeast], ...] = ()

    @property
    def runtimes(self) -> list[str]:
        """The runtime of each row."""
        return [row.runtime for row in self.candidates]

    @property
    def _pair(self) -> Pair:
        """The method to run and its strategy."""
        name = self.recommended.step.method
        return (DDP, None) if self.scenario.step.mode else (_method_of(name), strategy_of(name))

    @cached_property
    def case(self) -> StepCase:
        """The step of the method to run, to simulate again."""
        return case_of(self.scenario, self._pair)

    @property
    def others(self) -> OtherSteps:
        """That step with other numerics."""
        return other_numerics(self.scenario, self._pair, self.advice[0].framework)

    @property
    def enough(self) -> str:
        """The first change with which the step to run fits."""
        name = self.advice[0].framework or self.scenario.framework
        return first_fit(self.scenario, self._pair, name)

    @cached_property
    def recording(self) -> StepRecording | None:
        """That step, simulated again with its plans; None where these are too large."""
        return self.case.record(self.recommended.step) if self.case.record else None

    @property
    def closely(self) -> StepResult:
        """The step of the method to run, with what reductions wait for where it is recorded."""
        return self.recording.step if self.recording else self.recommended.step

    @property
    def loses(self) -> Loses:
        """What passes of that step lose beside collectives."""
        return loses_of(self.case.job, self.case.setup)

    @property
    def nominal(self) -> str:
        """Which times of the rows rest on no measurement."""
        setup, rows = self.scenario.setup, [(n, row) for row in self.candidates for n in row.names]
        calls = [call for each in rows for call in _calls(setup, *each) or ()]
        return setup.nominal((name for name, _ in rows), calls)

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


def first_fit(scenario: StepScenario, pair: Pair, framework: str = "") -> str:
    """The first change with which a step by a method and a strategy fits, in a scenario's words; ""
    where nothing that was tried is enough.

    It is recomputation, shards, or both, in what a framework has; else the same with a half of the
    batch in twice as many passes, a third in three times as many, and so on. Methods of the
    scenario come first; of steps as fast, the one that holds least. They are simulated, as a step
    may hold more than is sure beforehand.
    """
    own, given = pair[0], (pair[0], *scenario.step.methods)
    known = FRAMEWORKS[framework] if framework else None
    able = (*known.methods, *known.named) if known else METHODS
    others = [each for each in METHODS if each in able and each not in (DDP, HSDP, own)]
    others.sort(key=lambda each: each not in given)
    named = (pair[1], *(scenario.strategies or [parse_strategy("nccl")]))
    for changes, step in _smaller(scenario.step):
        fitting = list[tuple[bool, float, int, str]]()
        for method in (*[own] * bool(changes), *others):
            foreign = method not in given
            if fitting and foreign > fitting[0][0]:
                break
            strategy = pair[1] if method == own else parse_strategy("nccl")
            if found := _fitting(scenario, step, (method, strategy)):
                words = [*changes, *[f'method = "{method}"'] * (method != own)]
                words += ['strategies = ["nccl"]'] * (strategy not in named)
                fitting.append((foreign, *found, " and ".join(words)))
        if fitting:
            limit = min(seconds for _, seconds, *_ in fitting) * (1 + scenario.worth)
            needed, text = min(each[2:] for each in fitting if each[1] <= limit)
            return f"{text} ({units.format_size(needed)} a GPU)"
    return ""


def _fitting(scenario: StepScenario, step: StepQuestion, pair: Pair) -> tuple[float, int] | None:
    """Seconds of a step that fits, and the bytes that a GPU needs; None if it does not fit."""
    setup, changed = scenario.setup, replace(step, methods=pair[:1], sharding=step.numerics)
    with suppress(SimreduceError):
        least = least_fit(changed, setup.topology, setup.layout.ranks, pair[0])
        if least.fits and not time_is_up():
            found = predict_step(replace(scenario, step=changed), pair)
            if found.fit and found.fit.fits:
                return found.seconds, found.fit.needed
    return None


def _smaller(step: StepQuestion) -> Iterator[tuple[list[str], StepQuestion]]:
    """A step as it is, then with more recomputation where activations are estimated, then all of
    these with a part of the batch in as many more passes; each with its changes in words.
    """
    own = step.job
    estimated = step.activations.source == ESTIMATED and step.run.recompute == NONE
    for parts in (k for k in range(1, max(own.batch, 1) + 1) if own.batch % k == 0):
        batch, passes = own.batch // parts, own.accumulate * parts
        job, activations, words = own, step.activations, list[str]()
        if parts > 1:
            profile = own.profile.rescale(own.batch, batch)
            job = replace(own, batch=batch, accumulate=passes, profile=profile)
            activations = activations.rescale(own.batch, batch)
            words = [f"batch = {batch}", f"accumulate = {passes}"]
        yield words, replace(step, job=job, activations=activations)
        for policy in (SELECTIVE, FULL) if estimated else ():
            run = step.run._replace(recompute=policy)
            held = run.activations(job.model, batch, passes)
            said = [f'recompute = "{policy}"', *words]
            yield said, replace(step, job=job, activations=held)


def _method_of(name: str) -> str:
    """The method of a step's name, before its strategy."""
    return name.rpartition(", ")[0] or DDP


def _option(scenario: StepScenario, row: StepCandidate, name: str) -> Option:
    strategy = strategy_of(name)
    return Option(
        name,
        row.seconds,
        misfit=row.misfit,
        needed=row.fit.needed if row.fit else 0,
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

    given = scenario.step.sharding
    shards = given and FRAMEWORKS[name].default_shards(given, scenario.workload) == given
    sharded = bool(shards) and DDP not in scenario.step.methods

    def is_default(option: Option) -> bool:
        text, own = option.name.rpartition(", ")[2], method(option) == DDP
        return text == standing if own else text == "nccl" and sharded

    known = [each for each in options if is_default(each) and files(each) is not None]
    methods = [DDP, *scenario.step.methods]
    today = min(
        known, key=lambda each: (sharded and each.misfit, methods.index(method(each))), default=None
    )
    return frameworks.advise(
        name, options, today, files, scenario, method=method,
        calls=lambda each: _calls(scenario.setup, each.name, each.row),
        count=lambda each: len(each.row.step.buckets),
    )  # fmt: skip


def rank_steps(
    scenario: StepScenario,
    workers: int = 1,
    watch: Watch = unwatched,
    *,
    with_today: bool = True,
    simulate_all: bool = False,
) -> MethodRanking:
    """The step of every strategy by every method, or of the mode that `[step]` names; and of what
    runs today (`with_today`).

    Strategies that the scenario does not name are simulated as far as they may be among the first
    rows, or recommended; the others are `bounded`. With `simulate_all`, every one is simulated.
    StrategyError if the machine accepts none.
    """
    question, pairs = scenario.step, _pairs(scenario)

    def limits(outcomes: Mapping[int, object]) -> Callable[[int], float]:
        known = [c for c in outcomes.values() if isinstance(c, StepCandidate) and not c.misfit]
        rows = _one_for_each_step(known)
        right = [(row.seconds, name) for row in rows if not row.wrong for name in row.names]
        options = ((s, _method_of(name), strategy_of(name)) for s, name in right)
        limit_of = step_limits(scenario, [c.seconds for c in rows], options)
        return lambda place: limit_of(*pairs[place])

    names = [_name(question, *pair) for pair in pairs]
    promise = by_promise([strategy for _, strategy in pairs], scenario)
    # A budget ends where the rest promises less, and has no time for floors of all.
    every = simulate_all or scenario.strategies or question.mode or promise.least
    found, refused, untried, hurried = answer_all(
        pairs,
        names,
        partial(_predict_within, scenario),
        by_name=bool((scenario.strategies and len(question.methods) == 1) or question.mode),
        workers=workers,
        watch=watch,
        limits=None if every else limits,
        order=promise.order,
        waited=promise.waited,
        until=partial(while_promising, promise=promise),
    )
    rows = _one_for_each_step([c for c in found.values() if isinstance(c, StepCandidate)])
    if not rows:
        raise StrategyError(by_reason(refused))
    slow = "takes longer to simulate than the budget allows"
    advice = "give a longer --budget, or type simreduce tune"
    refused += tuple((names[i], f"{names[i]}: {slow}; {advice}") for i in promise.late)
    late = [(names[i], least) for i, least in found.items() if isinstance(least, AtLeast)]
    bounded = tuple(sorted(late, key=lambda each: (each[1].seconds, each[0])))
    ranking = MethodRanking(scenario, tuple(rows), refused, untried, bounded, hurried=hurried)
    if scenario.strategies and with_today and not untried and (today := _of_today(ranking)):
        return replace(ranking, candidates=tuple(_one_for_each_step([*rows, today])))
    return ranking


def _of_today(ranking: MethodRanking) -> StepCandidate | None:
    """What the first framework with a setting for some row does unless it is told, so that advice
    says what a change is worth; None if the default of a framework is among the rows.
    """
    scenario, name = ranking.scenario, frameworks.without_default(ranking.advice)
    if not name or time_is_up():
        return None
    method = DDP if DDP in scenario.step.methods else scenario.step.methods[0]
    default = frameworks.default_text(name, scenario) if method == DDP else "nccl"
    named = _name(scenario.step, method, parse_strategy(default))
    if any(named in row.names for row in ranking.candidates):  # with other settings of shards
        return None
    with suppress(SimreduceError, KeyboardInterrupt):  # what is there needs it not
        return predict_step(scenario, (method, parse_strategy(default)))
    return None


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

    Settings of NCCL make other plans: `anew` has the seconds with a change of its setup. `write`
    gives what every rank does; InputError where no execution says it. `record` has the
    plans of a step that was simulated; it is None if these are not simulated together, for the
    reason in `missing`.
    """

    job: Any
    setup: Setup
    simulate: Callable[[], SimulatedStep]
    seconds: Callable[[Any, Setup], float]
    write: Callable[[], Execution]
    anew: Callable[[Callable[[Setup], Setup]], float]
    record: Callable[[StepResult], StepRecording] | None = None
    missing: str = ""

    def outside(self, step: StepResult, others: OtherSteps) -> dict[str, float]:
        """Samples a second over those of this step, with what changes its numerics or its machine:
        half the bytes of gradients, twice the samples between reductions, one more NIC.

        Empty where little is exposed; without what the step does not allow.
        """
        if step.exposed <= _EXPOSED * step.seconds:
            return {}
        ports: OtherSteps = (
            (f"one more {each.resource} port beside each", 1.0,
             partial(self.seconds, self.job, each.apply(self.setup)))
            for each in network_changes(self.setup.topology)
        )  # fmt: skip
        found: dict[str, float] = {}
        for name, samples, seconds in chain(others, ports):
            with suppress(InputError):
                if not time_is_up():
                    found[name] = samples * step.seconds / seconds()
        return found


_EXPOSED = 0.05
"""The part of a step from which it is worth saying what would hide or move less."""

MOST_RANKS = 256
"""Sharded steps of more ranks are not examined link by link: plans would be too large."""

_TICKED = 12
"""Horovod's steps that are followed; each may have buffers of its own to simulate."""

COMPOSED = "The step was composed of single calls, so the load of single links is not worked out."


def case_of(scenario: StepScenario, pair: Pair) -> StepCase:
    """A step of a scenario, which its setup may refuse: StrategyError."""
    question, (method, strategy) = scenario.step, pair

    def anew(change: Callable[[Setup], Setup]) -> float:
        other = case_of(replace(scenario, setup=change(scenario.setup)), pair)
        return other.seconds(other.job, other.setup)

    if method != DDP and strategy is not None:
        job, setup = question.job, running_sharded(scenario.setup, _name(question, *pair))
        sharding = question.numerics
        sharded = sharded_method(method, strategy, job, setup.layout, sharding)
        large = len(setup.layout) > MOST_RANKS
        missing = (
            f"The {len(setup.layout)} GPUs were simulated as equal machines, one of which stands"
            f" for all; with more than {MOST_RANKS} the load of single links is not worked out."
        )
        return StepCase(
            job, setup, partial(simulate_sharded_step, job, sharded, setup),
            lambda job, at: simulate_sharded_step(job, sharded, at).step.seconds,
            partial(write_sharded_execution, job, sharded, setup), anew,
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
            partial(write_execution, job, made.method, setup), anew, missing=COMPOSED,
        )  # fmt: skip
    if strategy is not None:
        strategy = with_best_chunk(strategy, job.model.workload, setup)
    how = question.method(strategy, setup.layout, faithful=scenario.faithful)
    return StepCase(
        job, setup, partial(_simulated, job, how, setup),
        partial(step_seconds, how, most=_TICKED), partial(write_execution, job, how, setup), anew,
        lambda _: record_step(job, how, setup),
    )  # fmt: skip


def other_numerics(scenario: StepScenario, pair: Pair, framework: str) -> OtherSteps:
    """A step with gradients in half precision, as a framework casts them unless they are so, and
    with twice the passes between reductions.
    """
    step, gpu = scenario.step, scenario.step.job.gpu or gpu_at(scenario.setup)
    bf16 = gpu is None or gpu.bf16

    def seconds(**changes: Any) -> float:
        case = case_of(replace(scenario, step=replace(step, **changes)), pair)
        return case.seconds(case.job, case.setup)

    def halved() -> float:
        packer: Any = pair[1] and pair[1].packer
        half = BF16 if bf16 and hasattr(packer, BF16) else FP16
        if pair[0] == DDP and pair[1] and hasattr(packer, half):
            cast = {half: True} | ({"view": False} if hasattr(packer, "view") else {})
            how = replace(pair[1], text=f"{pair[1].text},{half}", packer=replace(packer, **cast))
            return case_of(scenario, (DDP, how)).simulate().step.seconds
        dtype = code("bfloat16" if bf16 else "float16")
        return seconds(sharding=replace(step.numerics, reduce_dtype=dtype))

    passes = 2 * step.job.accumulate
    wire = max((SIZES[g.dtype] for g in step.replicated.job.model.workload.gradients), default=0)
    if wire > SIZES[code("bfloat16")] and frameworks.in_full(pair[1]):
        yield frameworks.half_words(framework, pair[0], bf16=bf16), 1.0, halved
    if step.job.reduces_once:
        more = replace(step.job, accumulate=passes, no_sync=True)
        yield (
            FRAMEWORKS[framework or "any"].accumulation.format(passes),
            2.0,
            lambda: seconds(job=more),
        )


def _simulated(job: StepJob, how: Method, setup: Setup) -> SimulatedStep:
    """The step where every GPU has all parameters, with its reductions alone."""
    step, alone = simulate_step(job, how, setup), setup.summarise(how.whole)
    wrong, link = wrong_elements(verify(how.whole)), busiest_use(alone.links, alone.seconds)
    return SimulatedStep(step, alone.seconds, wrong, how.whole.digest, link[0])


def _predict_within(
    scenario: StepScenario, pair: Pair, limit: Limit
) -> StepCandidate | AtLeast | Postponed:
    """A step if it may take at most `limit` seconds; without a limit it is postponed."""
    if pair[1] is not None and limit != inf:
        floor = floor_of_step(scenario, pair[0], pair[1], limit or 0.0)
        if limit is None:
            return Postponed(round(floor.seconds * 1e9))
        if floor.seconds > limit:
            return floor
    return predict_step(scenario, pair)


def predict_step(scenario: StepScenario, pair: Pair) -> StepCandidate:
    """A step by a method and a strategy, with what a GPU needs for it."""
    question, case = scenario.step, case_of(scenario, pair)
    job, setup, found = question.job, case.setup, case.simulate()
    sharding, activations = question.numerics, question.activations
    memory = found.step.memory or replicated_memory(job.model.workload, sharding)
    view = getattr(pair[1] and pair[1].packer, "view", None)
    if view is False:
        memory = memory.with_buckets()
    # Gradients that are views are always there, as the reducer keeps its buckets.
    memory = memory.plus(activations.with_gradients() if view else activations)
    calls = [(each.collective or ALL_REDUCE, each.nbytes) for each in found.step.buckets]
    group = (sharding.group or min(map(len, setup.layout.tasks))) if pair[0] == HSDP else 0
    buffers = buffers_of_calls(setup, pair[1], calls, sharding, group)
    largest = max((nbytes for _, nbytes in calls), default=0)
    bits = 32 if question.run.precision == FP32 else 16
    by_nccl = pair[1] is not None and pair[1].reduced_by_nccl
    memory = replace(memory, nccl_buffers=buffers)
    if question.sharding is not None:
        found = replace(found, step=replace(found.step, method=_name(question, *pair)))
    if question.sharding is not None or memory.most.at:
        found = replace(found, step=replace(found.step, held=(memory,)))
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
        sure=step_interval(ask(job.gpu, question.run.kernels, bits)) if job.gpu else EXACT,
        waits=setup.interval(largest, found.step.exposed) if by_nccl else None,
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
