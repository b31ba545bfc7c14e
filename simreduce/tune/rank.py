"""Every strategy of a scenario: compiled, proved, simulated, and put in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import NamedTuple

from simreduce import units
from simreduce.engine import AtLeast, Use
from simreduce.errors import Deadlock, StrategyError
from simreduce.export import Settings, as_typed, settings
from simreduce.plan import Plan
from simreduce.scenario import Scenario
from simreduce.setup import Setup
from simreduce.strategy import Strategy, has_quirks, parse_strategy
from simreduce.strategy.automatic import tensorflow_choice
from simreduce.tune.bounds import TIED, Later, Run, simulate_quick, simulate_up_to
from simreduce.tune.candidates import candidates
from simreduce.tune.evaluating import attempt, evaluate_all
from simreduce.tune.known import Known

FIRST = 10
"""Rows of a ranking that are always simulated."""


@dataclass(frozen=True, slots=True)
class Row:
    """A strategy, and the seconds of one all-reduce of the whole workload."""

    strategy: Strategy
    seconds: float


@dataclass(frozen=True, slots=True)
class Candidate(Row):
    """One strategy's prediction. Times are seconds of one all-reduce of the whole workload.

    `chosen_by` names the rules of TensorFlow that would choose its plan here. `upstream` says what
    upstream does instead under the same name (`faithful` reproduces that), "" for the same. `also`
    are the other strategies that make the plan named by `digest`. `shortest` is the lower end of
    the 80 % interval of NCCL's time. `undispatched` says that the time lacks the dispatch of
    TensorFlow's copies, which the calibration does not know, so that it is a lower bound.
    """

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
class Bounded(Row):
    """A strategy that was not simulated to its end: it takes at least `seconds`, for `reason`."""

    reason: str
    runtime: str = "tensorflow"


@dataclass(frozen=True, slots=True)
class Ranking:
    """Candidates, one for each plan, fastest first; and the strategies that the machine refuses,
    with the reason. `untried` counts those that Ctrl-C left out. `bounded` are those that cannot be
    among the first and were not simulated to their end, by what they take at least.
    """

    scenario: Scenario
    candidates: tuple[Candidate, ...]
    refused: tuple[tuple[str, str], ...]
    untried: int = 0
    bounded: tuple[Bounded, ...] = ()

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


def plain_specs(ranking: Ranking, first: Candidate, most: int) -> list[Strategy]:
    """At most so many algorithms without their packing: of `first`, then the fastest proven ones.
    Those that differ by size are left out.
    """
    proven = [first, *(c for c in ranking.candidates if not c.wrong)]
    specs = dict.fromkeys(c.strategy.spec for c in proven if ":" not in c.strategy.spec)
    return [parse_strategy(spec) for spec in list(specs)[:most]]


def _first_sure(rows: Sequence[Candidate]) -> Candidate | None:
    """The first row. If its time is only a lower bound, the first of NCCL that may be as fast."""
    if not rows or not rows[0].undispatched:
        return next(iter(rows), None)
    return next((c for c in rows if c.shortest <= rows[0].seconds), rows[0])


class Task(NamedTuple):
    """What `evaluate` is asked: a strategy, the seconds up to which it is simulated, and whether
    strategies that take long are left for later.
    """

    strategy: Strategy
    limit: float = inf
    quick: bool = False


def rank(
    scenario: Scenario,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
    *,
    simulate_all: bool = False,
    seen: Callable[[Row], None] = lambda _: None,
    known: Known | None = None,
) -> Ranking:
    """Evaluate every strategy, on `workers` processes, as `evaluate_all` does. Those that pack
    gradients come first: they have fewer tensors and take less time.

    Strategies that take long are last, and simulated only as far as they may be among the first
    `FIRST`, or the fastest that a target can run; the others are `bounded`. With `simulate_all`,
    and where the scenario names its strategies, every strategy is simulated. On one process,
    `known` keeps what the next ranking of a like scenario can use, and those that were fastest in
    the last one come first.
    """
    strategies = scenario.strategies or candidates(scenario.setup.layout)
    texts = [s.text for s in strategies]
    known = known or Known()
    quick_first: Sequence[Strategy] = strategies
    if not scenario.strategies:
        quick_first = sorted(strategies, key=lambda s: s.packing == "none")
    quick = not (simulate_all or scenario.strategies)

    def again(done: Sequence[Row]) -> Callable[[int], Task]:
        limits = Limits(scenario, [c for c in done if isinstance(c, Candidate)])
        return lambda place: Task(quick_first[place], limits.of(quick_first[place]))

    found: list[Row]
    found, refused, untried = evaluate_all(
        partial(_evaluate, scenario, known), [Task(s, quick=quick) for s in quick_first],
        [s.text for s in quick_first], workers, progress,
        by_name=bool(scenario.strategies), again=again, seen=seen,
        order=known.quickest_first(quick_first),
    )  # fmt: skip
    for row in found:
        known.note(row.strategy, row.seconds)
    refused = tuple(sorted(refused, key=lambda each: texts.index(each[0])))
    rows = one_for_each_plan([c for c in found if isinstance(c, Candidate)])
    bounded = [c for c in found if isinstance(c, Bounded)]
    bounded.sort(key=lambda c: (c.seconds, c.strategy.text))
    return Ranking(scenario, tuple(rows), refused, untried, tuple(bounded))


class Limits:
    """Up to how many seconds a strategy may matter, by candidates that are known."""

    def __init__(self, scenario: Scenario, found: Sequence[Candidate]) -> None:
        self.scenario = scenario
        rows = [c for c in one_for_each_plan(found) if not c.wrong]
        self.last = rows[FIRST - 1].seconds if len(rows) >= FIRST else inf
        names = [name for c in rows for name in (c, *c.also)]
        self.by_target = {
            target: min((c.seconds for c in names if getattr(c.settings, target)), default=inf)
            for target in ("tf_cnn_benchmarks", "tensorflow")
        }

    def of(self, strategy: Strategy) -> float:
        """Seconds beyond which `strategy` is neither among the first rows nor recommended."""
        setup, limit = self.scenario.setup, self.last
        typed = settings(strategy, setup.layout, faithful=self.scenario.faithful)
        for target, seconds in self.by_target.items():
            if getattr(typed, target):  # where upstream runs the same plan
                limit = max(limit, seconds)
        if strategy.reduced_by_nccl:  # the lower end of its interval counts
            interval = setup.running(strategy).interval(
                _largest(self.scenario), 1.0, strategy.collective
            )
            limit /= min(interval[0], 1.0) if interval else 1.0
        return limit * TIED


def _largest(scenario: Scenario) -> int:
    """Bytes of the largest gradient."""
    return max((gradient.nbytes for gradient in scenario.workload.gradients), default=0)


def one_for_each_plan(found: Sequence[Candidate]) -> list[Candidate]:
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


def _evaluate(scenario: Scenario, known: Known, task: Task) -> Row | Deadlock | str | Later:
    return evaluate(scenario, *task, known)


def evaluate(
    scenario: Scenario,
    strategy: Strategy,
    limit: float = inf,
    quick: bool = False,
    known: Known | None = None,
) -> Row | Deadlock | str | Later:
    """One strategy's prediction, or why the machine refuses it or never finishes it; what it takes
    at least, if that is more than `limit` seconds; `Later` if it takes long and `quick` is asked
    for.

    Pipelined strategies without a chunk size get the best one for an undisturbed run.
    """
    known = known or Known()
    return attempt(strategy.text, partial(_predict, scenario, strategy, limit, known, quick=quick))


def _predict(
    scenario: Scenario, strategy: Strategy, limit: float, known: Known, *, quick: bool
) -> Row | Later:
    setup, times = scenario.setup.running(strategy), scenario.repeat
    asked = setup, strategy, scenario.workload
    if quick:
        done = simulate_quick(*asked, faithful=scenario.faithful, times=times, known=known)
        return done if isinstance(done, Later) else _candidate(scenario, setup, done, known)
    run = simulate_up_to(limit, *asked, faithful=scenario.faithful, times=times, known=known)
    if isinstance(run, AtLeast):
        return Bounded(strategy, run.seconds, run.reason, setup.runtime.name)
    return _candidate(scenario, setup, run, known)


def _candidate(scenario: Scenario, setup: Setup, run: Run, known: Known) -> Candidate:
    (strategy, plan, result), times = run, scenario.repeat
    same = scenario.faithful or not has_quirks(strategy)
    theirs = plan if same else _upstream(scenario, strategy, known)
    link, lane = _first(result.links), _first(result.lanes)
    interval = None
    if strategy.reduced_by_nccl:
        interval = setup.interval(_largest(scenario), result.seconds / times, strategy.collective)
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
        wrong=known.wrong(plan),
        link=link.name,
        link_share=link.share,
        lane=lane.name,
        lane_share=lane.share,
        settings=_settings(scenario, strategy, plan, theirs, known),
        chosen_by=tuple(
            n for n, text in tensorflow_choice(setup.layout).items() if text == strategy.text
        ),
        upstream=_difference(plan, theirs, known),
        digest=known.digest(plan),
    )


def _settings(
    scenario: Scenario, strategy: Strategy, plan: Plan, theirs: Plan | str, known: Known
) -> Settings:
    """What to type; nothing where upstream would run another plan than the one that was ranked."""
    shape = scenario.setup.layout
    if scenario.faithful:
        return settings(strategy, shape, faithful=True)
    typed = as_typed(strategy)
    if typed is not strategy:
        theirs = _upstream(scenario, typed, known)
    same = not isinstance(theirs, str) and known.digest(theirs) == known.digest(plan)
    return settings(strategy, shape) if same else Settings(None, None)


def _difference(plan: Plan, theirs: Plan | str, known: Known) -> str:
    """What upstream does instead of `plan`."""
    if isinstance(theirs, str):
        return f"upstream refuses it: {theirs}"
    if theirs is plan or known.digest(theirs) == known.digest(plan):
        return ""
    wrong = known.wrong(theirs)
    sums = f" and gives {units.plural(wrong, 'wrong element')}" if wrong else ""
    return f"upstream makes {units.plural(theirs.transfers, 'transfer')} of it{sums}"


def _upstream(scenario: Scenario, strategy: Strategy, known: Known) -> Plan | str:
    """The plan that upstream makes of `strategy`, or why it refuses it."""
    try:
        return known.compile(scenario.setup, strategy, scenario.workload, faithful=True)
    except StrategyError as error:
        return "; ".join(error.problems)


def _first(uses: tuple[Use, ...]) -> Use:
    return uses[0] if uses else Use("", 0.0)
