"""Every strategy of a scenario: compiled, proved, simulated, and put in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import TypeVar

from simreduce import units
from simreduce.engine import Use
from simreduce.errors import Deadlock, InputError, StrategyError, first_words
from simreduce.export import Settings, as_typed, settings
from simreduce.plan import Plan, repeat, verify, wrong_elements
from simreduce.scenario import Scenario
from simreduce.strategy import Strategy, has_quirks
from simreduce.strategy.automatic import tensorflow_choice
from simreduce.tune.candidates import candidates
from simreduce.tune.chunks import with_best_chunk
from simreduce.workers import in_processes

C = TypeVar("C")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One strategy's prediction. Times are seconds of one all-reduce of the whole workload.

    `chosen_by` names the rules of TensorFlow that would choose its plan here. `upstream` says what
    upstream does instead under the same name (`faithful` reproduces that), "" for the same. `also`
    are the other strategies that make the plan named by `digest`. `shortest` is the lower end of
    the 80 % interval of NCCL's time. `undispatched` says that the time lacks the dispatch of
    TensorFlow's copies, which the calibration does not know, so that it is a lower bound.
    """

    strategy: Strategy
    seconds: float
    floor_seconds: float
    transfers: int
    wrong: int
    link: str
    link_share: float
    lane: str
    lane_share: float
    settings: Settings
    runtime: str = "tensorflow"
    shortest: float = inf
    undispatched: bool = False
    chosen_by: tuple[str, ...] = ()
    upstream: str = ""
    digest: str = ""
    also: tuple[Candidate, ...] = ()

    @property
    def runnable(self) -> bool:
        """Whether tf_cnn_benchmarks or TensorFlow has a setting for it."""
        return bool(self.settings.tf_cnn_benchmarks or self.settings.tensorflow)


@dataclass(frozen=True, slots=True)
class Ranking:
    """Candidates, one for each plan, fastest first; and the strategies that the machine refuses,
    with the reason. `untried` counts those that Ctrl-C left out.
    """

    scenario: Scenario
    candidates: tuple[Candidate, ...]
    refused: tuple[tuple[str, str], ...]
    untried: int = 0

    @property
    def recommended(self) -> Candidate | None:
        """The fastest proven candidate that tf_cnn_benchmarks or TensorFlow can run; if there is
        none, the fastest proven one; None if no plan is proven. A lower bound is not recommended
        before a time of NCCL that may be as short.
        """
        proven = [c for c in self.candidates if not c.wrong]
        runnable = [c for c in proven if c.runnable]
        return _first_sure(runnable or proven)

    def fastest_by(self, target: str) -> Candidate | None:
        """The fastest proven strategy that `target`, a field of `Settings`, can run, in the same
        sense.
        """
        names = (name for c in self.candidates if not c.wrong for name in (c, *c.also))
        return _first_sure([name for name in names if getattr(name.settings, target)])


def _first_sure(rows: Sequence[Candidate]) -> Candidate | None:
    """The first row. If its time is only a lower bound, the first of NCCL that may be as fast."""
    if not rows or not rows[0].undispatched:
        return next(iter(rows), None)
    return next((c for c in rows if c.shortest <= rows[0].seconds), rows[0])


def rank(
    scenario: Scenario,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Ranking:
    """Evaluate every strategy, on `workers` processes, as `evaluate_all` does. Those that pack
    gradients come first: they have fewer tensors and take less time.
    """
    strategies = scenario.strategies or candidates(scenario.setup.layout)
    texts = [s.text for s in strategies]
    quick_first: Sequence[Strategy] = strategies
    if not scenario.strategies:
        quick_first = sorted(strategies, key=lambda s: s.packing == "none")
    found, refused, untried = evaluate_all(
        partial(evaluate, scenario), quick_first, [s.text for s in quick_first], workers, progress,
        by_name=bool(scenario.strategies),
    )  # fmt: skip
    refused = tuple(sorted(refused, key=lambda each: texts.index(each[0])))
    return Ranking(scenario, tuple(_one_for_each_plan(found)), refused, untried)


def evaluate_all(
    evaluate: Callable[[T], C | Deadlock | str],
    items: Sequence[T],
    names: Sequence[str],
    workers: int,
    progress: Callable[[int, int], None],
    *,
    by_name: bool,
) -> tuple[list[C], tuple[tuple[str, str], ...], int]:
    """Candidates, the names of refused items with the reasons, and how many items are untried.

    Items given by name that the machine refuses raise one StrategyError; those that "all" stands
    for are refused. So are those that a fault cuts off for ever, unless it cuts off all of them,
    which raises Deadlock. Ctrl-C leaves out what is not simulated yet, if there is a candidate.
    """
    outcomes: list[C | Deadlock | str] = []
    progress(0, len(items))
    try:
        with closing(in_processes(evaluate, items, workers)) as coming:
            for outcome in coming:
                outcomes.append(outcome)
                progress(len(outcomes), len(items))
    except KeyboardInterrupt:
        if all(isinstance(o, Deadlock | str) for o in outcomes):
            raise
    pairs = list(zip(names, outcomes, strict=False))
    refused = [(name, o) for name, o in pairs if isinstance(o, str)]
    if refused and by_name:
        raise StrategyError([reason for _, reason in refused])
    stuck = [(name, o) for name, o in pairs if isinstance(o, Deadlock)]
    if stuck and len(stuck) + len(refused) == len(pairs):
        raise Deadlock(f"{stuck[0][0]}: {stuck[0][1]}")
    refused += [(name, f"{name}: {first_words(o)}") for name, o in stuck]
    found = [o for o in outcomes if not isinstance(o, Deadlock | str)]
    return found, tuple(refused), len(items) - len(outcomes)


def attempt(name: str, simulate: Callable[[], C]) -> C | Deadlock | str:
    """What `simulate` returns, or why the machine refuses it or never finishes it."""
    try:
        return simulate()
    except Deadlock as error:
        return error
    except StrategyError as error:
        return "; ".join(error.problems)
    except InputError as error:  # GPUs that the plan joins and nothing else does
        return "; ".join(f"{name}: {problem}" for problem in error.problems)


def _one_for_each_plan(found: Sequence[Candidate]) -> list[Candidate]:
    """Candidates in order. Of those with the same plan and runtime, the first that can be run has
    the others in `also`.
    """
    by_plan: dict[tuple[str, str], list[Candidate]] = {}
    for candidate in sorted(found, key=lambda c: (not c.runnable, c.strategy.text)):
        by_plan.setdefault((candidate.digest, candidate.runtime), []).append(candidate)
    rows = [
        replace(
            first,
            also=tuple(others),
            chosen_by=tuple(rule for each in (first, *others) for rule in each.chosen_by),
        )
        for first, *others in by_plan.values()
    ]
    return sorted(rows, key=lambda c: (c.seconds, c.strategy.text))


def evaluate(scenario: Scenario, strategy: Strategy) -> Candidate | Deadlock | str:
    """One strategy's prediction, or why the machine refuses it or never finishes it. Pipelined
    strategies without a chunk size get the best one for an undisturbed run.
    """
    return attempt(strategy.text, partial(_predict, scenario, strategy))


def _predict(scenario: Scenario, strategy: Strategy) -> Candidate:
    setup, times = scenario.setup.running(strategy), scenario.repeat
    strategy = with_best_chunk(strategy, scenario.workload, setup)
    plan = setup.compile(strategy, scenario.workload, faithful=scenario.faithful)
    result = setup.simulate(repeat(plan, times) if times > 1 else plan)
    same = scenario.faithful or not has_quirks(strategy)
    theirs = plan if same else _upstream(scenario, strategy)
    link, lane = _first(result.links), _first(result.lanes)
    largest = max((gradient.nbytes for gradient in scenario.workload.gradients), default=0)
    interval = setup.interval(largest, result.seconds / times) if strategy.reduced_by_nccl else None
    return Candidate(
        strategy=strategy,
        runtime=setup.runtime.name,
        shortest=interval[0] if interval else inf,
        undispatched=setup.runtime.dispatch
        and not setup.calibration.dispatch
        and not strategy.reduced_by_nccl,
        seconds=result.seconds / times,
        floor_seconds=result.floors.seconds / times,
        transfers=plan.transfers,
        wrong=wrong_elements(verify(plan)),
        link=link.name,
        link_share=link.share,
        lane=lane.name,
        lane_share=lane.share,
        settings=_settings(scenario, strategy, plan, theirs),
        chosen_by=tuple(
            n for n, text in tensorflow_choice(setup.layout).items() if text == strategy.text
        ),
        upstream=_difference(plan, theirs),
        digest=plan.digest,
    )


def _settings(scenario: Scenario, strategy: Strategy, plan: Plan, theirs: Plan | str) -> Settings:
    """What to type; nothing where upstream would run another plan than the one that was ranked."""
    shape = scenario.setup.layout
    if scenario.faithful:
        return settings(strategy, shape, faithful=True)
    typed = as_typed(strategy)
    if typed is not strategy:
        theirs = _upstream(scenario, typed)
    same = not isinstance(theirs, str) and theirs.digest == plan.digest
    return settings(strategy, shape) if same else Settings(None, None)


def _difference(plan: Plan, theirs: Plan | str) -> str:
    """What upstream does instead of `plan`."""
    if isinstance(theirs, str):
        return f"upstream refuses it: {theirs}"
    if theirs is plan or theirs.digest == plan.digest:
        return ""
    wrong = wrong_elements(verify(theirs))
    sums = f" and gives {units.plural(wrong, 'wrong element')}" if wrong else ""
    return f"upstream makes {units.plural(theirs.transfers, 'transfer')} of it{sums}"


def _upstream(scenario: Scenario, strategy: Strategy) -> Plan | str:
    """The plan that upstream makes of `strategy`, or why it refuses it."""
    try:
        return scenario.setup.compile(strategy, scenario.workload, faithful=True)
    except StrategyError as error:
        return "; ".join(error.problems)


def _first(uses: tuple[Use, ...]) -> Use:
    return uses[0] if uses else Use("", 0.0)
