"""Every strategy of a scenario, ranked by the training step around it.

What back-propagation hides costs nothing.

The reduction that is fastest alone need not be that of the fastest step: small packs start early,
one large pack moves fast. So packing and algorithm are chosen together, against the timeline of the
backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf

from simreduce.computing.watching import Watch, unwatched
from simreduce.engine.calibrate.intervals import NcclCall
from simreduce.engine.setup import Setup
from simreduce.errors import StrategyError
from simreduce.plan import verify, wrong_elements
from simreduce.planners.strategy import Strategy
from simreduce.study import frameworks
from simreduce.study.advice import Advised, Option, hanging, strategy_of
from simreduce.study.ranking import RankedRows, in_order, merge_equal
from simreduce.study.scenario import StepScenario
from simreduce.study.study import Limit, answer_all, by_reason
from simreduce.study.tune.candidates import (
    by_promise,
    candidates_of,
    sharing_candidates,
    while_promising,
)
from simreduce.study.tune.composed import ComposedStep, is_composed
from simreduce.study.tune.simulate import with_best_chunk
from simreduce.training import SimulatedStep, StepJob, StepPrediction, StepQuestion, simulate_step
from simreduce.training.calls import busiest_use
from simreduce.training.gpus import gpu_at, utilization
from simreduce.training.groups import slowdowns, slowest
from simreduce.training.memory import MemoryFit, fit_of, least_memory
from simreduce.training.sharded import (
    DDP,
    Sharding,
    running_sharded,
    sharded_method,
    simulate_sharded_step,
)


@dataclass(frozen=True)
class StepCandidate(SimulatedStep):
    """One method's step.

    `unmoved` are samples a second of all devices if nothing moved. `fit` compares what a GPU holds
    with its memory, None for modes whose servers hold variables. `mfu` is None where nobody knows
    the GPUs or the model's FLOPs. `also` are the other methods with the same step and plan.
    """

    runtime: str
    unmoved: float
    fit: MemoryFit | None
    mfu: float | None
    also: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Its method and the others with the same step and plan."""
        return [self.step.method, *self.also]

    @property
    def seconds(self) -> float:
        """Its time."""
        return self.step.seconds

    @property
    def efficiency(self) -> float:
        """Throughput of the devices over what it would be if nothing moved; at most 1."""
        return self.step.images_per_second / self.unmoved if self.step.seconds else 1.0

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
    def question(self) -> StepQuestion:
        """The step of the scenario."""
        return self.scenario.step

    @property
    def runtimes(self) -> list[str]:
        """The runtime of each row."""
        return [row.runtime for row in self.candidates]

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
        setup.call(each.nbytes, each.collective or frameworks.ALL_REDUCE, *how)._replace(
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
        text = option.name.rpartition(", ")[2]
        return text == (standing if method(option) == DDP else "nccl")

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
    refused += tuple((names[i], f"{names[i]}: {_LATE}") for i in promise.late)
    return MethodRanking(scenario, tuple(rows), refused, untried, hurried=hurried)


_LATE = (
    "takes longer to simulate than there is time; give a longer --budget, or type simreduce tune"
)


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


def _predict(scenario: StepScenario, pair: Pair, _: Limit) -> StepCandidate:
    question, (method, strategy) = scenario.step, pair
    name, sharding = _name(question, method, strategy), question.sharding or Sharding()
    job, setup = question.job, scenario.setup
    if method != DDP and strategy is not None:
        setup = running_sharded(setup, name)
        how = sharded_method(method, strategy, job, setup.layout, sharding)
        found = simulate_sharded_step(job, how, setup)
        assert found.step.memory is not None  # noqa: S101 - sharded steps say it
        memory = found.step.memory.plus(question.activations)
    else:
        setup = setup.running(strategy)
        found = _replicated(scenario, strategy, setup)
        memory = least_memory(DDP, job.model, sharding, setup.layout.n, question.activations)
    if question.sharding is not None:
        found = replace(found, step=replace(found.step, method=name, memory=memory))
    return StepCandidate(
        **vars(found),
        runtime=setup.runtime.name,
        unmoved=_unmoved(found.step, job, setup),
        fit=None if question.mode else fit_of(memory, setup.topology, setup.layout.ranks),
        mfu=_mfu(found.step, job, setup),
    )


def _replicated(scenario: StepScenario, strategy: Strategy | None, setup: Setup) -> SimulatedStep:
    """The step where every GPU has all parameters."""
    question = scenario.step.replicated
    if strategy is not None and is_composed(scenario, strategy):
        made = ComposedStep(strategy, question.job, setup, question.cycle)
        wrong = made.wrong  # refused first
        return SimulatedStep(made.step, made.alone, wrong, made.digest, made.bottleneck)
    if strategy is not None:
        strategy = with_best_chunk(strategy, question.job.model.workload, setup)
    how = question.method(strategy, setup.layout, faithful=scenario.faithful)
    step, alone = simulate_step(question.job, how, setup), setup.summarise(how.whole)
    wrong, link = wrong_elements(verify(how.whole)), busiest_use(alone.links, alone.seconds)
    return SimulatedStep(step, alone.seconds, wrong, how.whole.digest, link[0])


def _mfu(step: StepPrediction, job: StepJob, setup: Setup) -> float | None:
    """MFU of the step, of products in 16 bits; None where that is not known."""
    samples, gpu = job.batch * job.accumulate * step.devices, job.gpu or gpu_at(setup)
    flops = job.model.flops * samples
    if gpu is None or not flops or not step.seconds:
        return None
    return utilization(gpu, flops, step.seconds, step.devices)


def _unmoved(step: StepPrediction, job: StepJob, setup: Setup) -> float:
    """Samples a second of all devices if nothing moved and none waited for another.

    Each takes its own passes and its own share of the update, at its own speed; no step is faster.
    """
    factors = slowdowns(replace(job, spread=0.0), setup.disturbance, setup.layout.ranks)
    busy, samples = step.compute + step.update, step.batch * step.accumulate
    most = slowest(job, setup)
    seconds = [step.launch + busy * factor / most for factor in factors]
    return sum(samples / each if each else inf for each in seconds)
