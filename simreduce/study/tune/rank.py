"""Every strategy of a scenario: compiled, proved, simulated, and put in order.

`candidates` are those that are worth trying on a machine, the likeliest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple

from simreduce import units
from simreduce.computing.workers import (
    Watch,
    time_is_up,
    time_left,
    until_stopped,
    unwatched,
    within,
)
from simreduce.engine import AtLeast, Use
from simreduce.engine.calibrate.intervals import NcclCall
from simreduce.engine.setup import Setup
from simreduce.errors import InputError, SimreduceError, StrategyError
from simreduce.export import StrategySettings, settings
from simreduce.export.framework import bucket_sizes
from simreduce.export.frameworks import FRAMEWORKS
from simreduce.export.frameworks.tensorflow import as_typed
from simreduce.plan import Plan
from simreduce.planners.algorithms import ALGORITHMS, COLLECTIVES, TWO_LEVEL, warn_of_unloaded
from simreduce.planners.layouts import Layout
from simreduce.planners.packing.arrangement import FP16
from simreduce.planners.strategy import Strategy, parse_strategy, tensorflow_choice
from simreduce.planners.strategy.compiler import has_quirks
from simreduce.study import frameworks
from simreduce.study.advice import Advised, Option, scaled
from simreduce.study.frameworks import default_text, files_of, names_for, packings_of
from simreduce.study.ranking import (
    TIED,
    Limit,
    Moved,
    PlanRow,
    Postponed,
    Question,
    RankedRows,
    TimedRow,
    answer_all,
    ask,
    find_moved,
    lasting,
    merge_equal,
    settle_ties,
)
from simreduce.study.scenario import Scenario, with_step
from simreduce.study.tune.composed import is_composed
from simreduce.study.tune.plan_cache import PlanCache
from simreduce.study.tune.simulate import PredictedPlan, interval_of, simulate_within
from simreduce.workload import Gradient, Workload

COMMON = (
    "pscpu:32k:xring",  # the example of tf_cnn_benchmarks' documentation
    "xring+small=4096,10",
    "hierarchical_copy+small=65536,10",
    "hierarchical_copy+repack=8,fp16",
    "collective+merge=32",  # TensorFlow 1.14
    "collective+bucket=25M",
    "nccl+bucket=25M",
    "nccl+ddp",
    "nccl+fusion",
)
"""Settings in use with the packers that are not a number of packs."""

_FEWER = 8
"""Of the sizes of buckets, one in so many is ranked."""


def candidates(layout: Layout) -> list[Strategy]:
    """The strategies to try for a layout.

    They are every algorithm with the shard counts and numbers of packs that it proposes for this
    layout; common settings of the other packers; and the strategies that TensorFlow would choose.
    """
    warn_of_unloaded()
    texts = [
        (algorithm.name if shards == 1 else f"{algorithm.name}#{shards}")
        + (f"+packs={packs}" if packs else "")
        for algorithm in (*ALGORITHMS.values(), *(ALGORITHMS[pair] for pair in TWO_LEVEL))
        for shards in algorithm.choices(layout)
        for packs in algorithm.packs
    ]
    chosen = tensorflow_choice(layout).values()
    return [parse_strategy(text) for text in dict.fromkeys([*texts, *COMMON, *chosen])]


def candidates_of(scenario: Scenario) -> list[Strategy]:
    """The strategies to try for a scenario that names none.

    They are all of its layout; of a framework that it names, those that the framework has settings
    for, with some more sizes of its buckets.
    """
    layout, name = scenario.setup.layout, scenario.framework
    found = candidates(layout)
    if not name:
        return found
    if FRAMEWORKS[name].has_typed:
        return [each for each in found if getattr(settings(each, layout), name)]
    # The default, and others with sizes two octaves from each other.
    sizes = {0, *bucket_sizes(scenario.workload)[::-_FEWER]}
    packings = [text for text, nbytes in packings_of(name, scenario) if nbytes in sizes]
    views = any(text.endswith(",view") for text in packings)  # of buckets, of which none copies
    more = (
        parse_strategy(f"nccl{text}")
        for text in packings
        if not (views and "=" in text) or text.endswith(",view")
    )
    every = {each.text: each for each in (*more, *found)}
    return [each for each in every.values() if files_of(name, scenario, each) is not None]


def sharing_candidates(layout: Layout) -> list[Strategy]:
    """Every algorithm that all-gathers, reduce-scatters and all-reduces."""
    warn_of_unloaded()
    return [
        parse_strategy(name)
        for name, algorithm in COLLECTIVES["all_gather"].items()
        if name in COLLECTIVES["reduce_scatter"]
        and name in ALGORITHMS
        and algorithm.choices(layout)
    ]


_BUCKET = 32 << 20
"""Bytes of the tensor whose plan says how promising an algorithm is: about a bucket of DDP."""

_LOOKING = 0.15
"""The part of a budget in which to find out what algorithms promise."""

_PACE = 500_000
"""Ops a second that are planned, proven and simulated in a step, about: 2.4 million ops of GPT-2 XL
on 32 GPUs take 5 s.
"""


_PATIENCE = 3.0
"""Seconds for which what runs today is waited for, however short the budget."""


class StrategyOrder(NamedTuple):
    """The places of strategies, those that promise most first, and of those to wait for.

    `least` has the seconds that a strategy needs at least to move the bytes of the workload, by
    place; infinite where that was not looked at. `late` are what frameworks run today and takes
    longer to simulate than there is time. Without a budget, there is the order alone.
    """

    order: Sequence[int]
    waited: Sequence[int] = ()
    least: Mapping[int, float] = MappingProxyType({})
    late: Sequence[int] = ()


def by_promise(strategies: Sequence[Strategy | None], scenario: Scenario) -> StrategyOrder:
    """The order in which to simulate strategies where a budget may not allow all.

    Those come first that frameworks run today, which are waited for, but not if they alone take
    the time that is left; that of the first framework, which all else is compared with, may take
    longer (`_PATIENCE`). Then come those that need least for their bytes; without a budget,
    all others in the given order.
    """
    setup, workload = scenario.setup, scenario.workload
    places = range(len(strategies))
    today = [*(default_text(name, scenario) for name in names_for(scenario)), "nccl"]
    first = [i for i in places if (s := strategies[i]) and s.text in today]
    first.sort(key=lambda i: today.index(getattr(strategies[i], "text", "")))
    if (seconds := time_left()) == inf:
        return StrategyOrder([*first, *(i for i in places if i not in first)])

    rate = cache(partial(_find_rate, setup))

    def least(strategy: Strategy | None) -> float:
        if strategy is None:
            return 0.0
        return rate(strategy.spec) * workload.nbytes / (2 if FP16 in strategy.packing else 1)

    def is_quick(strategy: Strategy | None, least: float = 0.0) -> bool:
        most = _PACE * max(time_left(), least)
        if strategy is None or (scenario.step and is_composed(with_step(scenario), strategy)):
            return True
        with suppress(InputError):
            return setup.many_ops(strategy, workload) <= most
        return False

    with within(_LOOKING * seconds):
        looked = until_stopped(((i, least(strategies[i])) for i in places), lambda _: time_is_up())
    known = dict.fromkeys(places, inf) | dict(looked)
    waited = [i for i in first if is_quick(strategies[i], _PATIENCE * (i == first[0]))]
    late = [i for i in first if i not in waited]
    rest = sorted(
        (i for i in places if i not in first),
        # If some are late, those that differ from them by their packing are as large. Whether they
        # are takes time, too.
        key=lambda i: (bool(late) and (time_is_up() or not is_quick(strategies[i])), known[i]),
    )
    return StrategyOrder([*waited, *rest], waited, known, late)


def while_promising(
    coming: Iterable[tuple[int, Any]], promise: StrategyOrder
) -> Iterator[tuple[int, Any]]:
    """What comes, until the `seconds` of one are less than all others need for their bytes, as far
    as that is known. All, without a budget.
    """
    left, best = dict(promise.least), inf
    for place, outcome in coming:
        yield place, outcome
        left.pop(place, None)
        best = min(best, getattr(outcome, "seconds", inf))
        waited = any(each in left for each in promise.waited)
        if promise.least and not waited and all(best < least < inf for least in left.values()):
            return


def _find_rate(setup: Setup, spec: str) -> float:
    """Seconds that an algorithm needs for each byte at least; infinite if that takes long."""
    strategy = parse_strategy(spec)
    bucket = Workload("bucket", (Gradient("bucket", _BUCKET // 4, 0),))
    with suppress(InputError):
        if not setup.many_ops(strategy, bucket):
            own = setup.running(strategy)
            return own.find_rates(own.compile(strategy, bucket)).busy / bucket.nbytes
    return inf


FIRST = 10
"""Rows of a ranking that are always simulated."""

_TYPED = [each.name for each in FRAMEWORKS.values() if each.has_typed]
"""Systems with a setting of their own, as fields of `Settings`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(PlanRow):
    """One strategy's prediction. Times are seconds of one all-reduce of the whole workload.

    `chosen_by` names the rules of TensorFlow that would choose its plan here. `upstream` says what
    upstream does instead under the same name (`faithful` reproduces that), "" for the same. `also`
    are the other strategies that make the plan named by `digest`. `shortest` is the lower end of
    the 80 % interval of NCCL's time.
    """

    strategy: Strategy
    lane: str
    lane_share: float
    settings: StrategySettings
    shortest: float = inf
    chosen_by: tuple[str, ...] = ()
    upstream: str = ""
    digest: str = ""
    also: tuple[Candidate, ...] = ()

    @property
    def names(self) -> list[str]:
        """Its strategy and the others that make the plan."""
        return [each.strategy.text for each in (self, *self.also)]

    @property
    def plan(self) -> tuple[str, str]:
        """Names its plan, and what carries it out."""
        return self.digest, self.runtime

    @property
    def runnable(self) -> bool:
        """Whether tf_cnn_benchmarks or TensorFlow has a setting for it."""
        return bool(self.settings.tf_cnn_benchmarks or self.settings.tensorflow)


@dataclass(frozen=True, slots=True)
class Bounded(TimedRow):
    """A strategy that was not simulated to its end: it takes at least `seconds`, for `reason`."""

    strategy: Strategy
    reason: str


@dataclass(frozen=True)
class StrategyRanking(RankedRows[Scenario, Candidate]):
    """Candidates, one for each plan, fastest first.

    `bounded` cannot be among the first and were not simulated to their end; they have what they
    take at least. Of those that decide what to run, it is known whether their time hangs on ties
    (`moved`).
    """

    bounded: tuple[Bounded, ...] = ()

    @property
    def runtimes(self) -> list[str]:
        """The runtime of each row."""
        return [c.runtime for c in self.candidates] + [c.runtime for c in self.bounded]

    @property
    def nominal(self) -> str:
        """Which times of named strategies rest on no measurement."""
        scenario, refused = self.scenario, dict(self.refused)
        named = [each for each in scenario.strategies or () if each.text not in refused]
        return scenario.setup.nominal(
            (each.text for each in named),
            [c for each in named for c in scenario.setup.calls_of(each, scenario.workload)],
        )

    @property
    def proven(self) -> list[Candidate]:
        """The candidates with a proven plan, by all their names."""
        return [name for c in self.candidates if not c.wrong for name in (c, *c.also)]

    @property
    def recommended(self) -> Candidate | None:
        """The candidate to run by the first advice; None if no plan is proven."""
        found: Candidate | None = self.advice[0].option.row if self.advice else None
        return found

    @cached_property
    def advice(self) -> tuple[Advised, ...]:
        """What to do for each framework that has a setting for a proven plan.

        Without any, the fastest plan; none without one.
        """
        options = [
            Option(
                row.strategy.text, row.seconds, row.moved, undispatched=row.undispatched,
                shortest=row.shortest, row=row,
            ) for row in self.proven
        ]  # fmt: skip
        return frameworks.advise_each(
            self.scenario, options, partial(_advise, self.scenario, options)
        )

    def fastest_by(self, target: str) -> Candidate | None:
        """The fastest proven plan that `target`, a field of `Settings`, has a setting for."""
        return min(
            (name for name in self.proven if getattr(name.settings, target)),
            key=lasting,
            default=None,
        )

    @property
    def fastest(self) -> Candidate | None:
        """The fastest proven plan, whether anything has a setting for it or not."""
        return min((c for c in self.candidates if not c.wrong), key=lasting, default=None)

    @property
    def deciding(self) -> list[Candidate]:
        """What it recommends and says to be faster, and what runs today."""
        found = [each for a in self.advice for each in (a.option, a.fastest, a.today) if each]
        today = [c for c in self.candidates if c.chosen_by]
        return [*(each.row for each in found), *today, *([self.fastest] if self.fastest else [])]


def _advise(scenario: Scenario, options: Sequence[Option], name: str) -> Advised | None:
    """What to do for a framework, of the candidates that it has a setting for."""
    standing = frameworks.default_text(name, scenario)
    today = next((each for each in options if each.name == standing), None)

    def files(option: Option) -> Mapping[str, str] | None:
        row: Candidate = option.row
        if FRAMEWORKS[name].has_typed:  # upstream's plan has been compared with this one
            return frameworks.typed_files(name, row.settings)
        return frameworks.files_of(name, scenario.without_step(), row.strategy)

    def calls(option: Option) -> list[NcclCall] | None:
        found = frameworks.calls_of(scenario, option.row.strategy)
        return found and scaled(found, option.seconds)

    return frameworks.advise(
        name, options, today, files, scenario,
        method=lambda _: "ddp", calls=calls, count=lambda each: len(calls(each) or ()),
    )  # fmt: skip


def plain_specs(ranking: StrategyRanking, first: Candidate, most: int) -> list[Strategy]:
    """At most so many algorithms without their packing: of `first`, then the fastest proven ones.

    Those that differ by size are left out.
    """
    proven = [first, *(c for c in ranking.candidates if not c.wrong)]
    specs = dict.fromkeys(c.strategy.spec for c in proven if ":" not in c.strategy.spec)
    return [parse_strategy(spec) for spec in list(specs)[:most]]


def rank(
    scenario: Scenario,
    workers: int = 1,
    watch: Watch = unwatched,
    *,
    simulate_all: bool = False,
    keep_refused: bool = False,
    with_today: bool = True,
    cache: PlanCache | None = None,
) -> StrategyRanking:
    """Evaluate every strategy, on `workers` processes, and rank the outcomes.

    Those that pack gradients come first: they have fewer tensors and take less time.

    Strategies that take long are last, and simulated only as far as they may be among the first
    `FIRST`, or the fastest that a target can run; the others are `bounded`. With `simulate_all`,
    and where the scenario names its strategies, every strategy is simulated. StrategyError if the
    machine refuses all of these, unless that is to be kept (`keep_refused`). What runs today is
    simulated beside them (`with_today`). On one process,
    `cache` keeps what the next ranking of a like scenario can use, and those that were fastest in
    the last one come first.
    """
    given, kept = scenario.strategies, cache or PlanCache()
    listed = given or candidates_of(scenario)
    strategies = given or sorted(listed, key=lambda s: s.packing == "none")

    def limits(outcomes: Mapping[int, object]) -> Callable[[int], float]:
        limit_of = ranking_limits(
            scenario, [c for c in outcomes.values() if isinstance(c, Candidate)]
        )
        return lambda place: limit_of(strategies[place])

    promise = by_promise(strategies, scenario)
    found, refused, untried, hurried = answer_all(
        strategies,
        [s.text for s in strategies],
        partial(evaluate, scenario, cache=cache),
        by_name=bool(given) and not keep_refused,
        workers=workers,
        watch=watch,
        limits=None if simulate_all or given else limits,
        order=kept.quickest_first(strategies, [*promise.order, *promise.late]),
        waited=promise.waited,
    )
    for place, outcome in found.items():
        kept.note(strategies[place], outcome.seconds)
    bounded = [
        Bounded(
            s, each.reason, seconds=each.seconds, runtime=scenario.setup.running(s).runtime.name
        )
        for s, each in ((strategies[place], outcome) for place, outcome in found.items())
        if isinstance(each, AtLeast)
    ]
    texts = [s.text for s in listed]
    rows = [c for c in found.values() if isinstance(c, Candidate)]
    ranking = StrategyRanking(
        scenario,
        tuple(one_for_each_plan(rows)),
        tuple(sorted(refused, key=lambda each: texts.index(each[0]))),
        untried,
        tuple(sorted(bounded, key=lambda c: (c.seconds, c.strategy.text))),
        hurried=hurried,
    )
    if given and with_today and not untried and (today := _of_today(ranking, cache)):
        ranking = replace(ranking, candidates=tuple(one_for_each_plan([*rows, today])))
    return settle_ties(
        ranking,
        FIRST,
        deciding=lambda found: found.deciding,
        plan=lambda row: row.plan,
        find=lambda row: find_moved(scenario, row.strategy, row.seconds),
        note=_with_moved,
    )


def _of_today(ranking: StrategyRanking, cache: PlanCache | None) -> Candidate | None:
    """What the first framework with a setting for some row does unless it is told, so that advice
    says what a change is worth; None if the default of a framework is among the rows.
    """
    scenario, name = ranking.scenario, frameworks.without_default(ranking.advice)
    if not name or time_is_up():
        return None
    with suppress(SimreduceError, KeyboardInterrupt):  # what is there needs it not
        default = parse_strategy(default_text(name, scenario))
        found = evaluate(scenario, default, cache=cache)
        return found if isinstance(found, Candidate) else None
    return None


def _with_moved(ranking: StrategyRanking, moved: Moved) -> StrategyRanking:
    """The ranking with `moved` of these plans, under all their names."""

    def note(row: Candidate) -> Candidate:
        return replace(row, moved=moved.get(row.plan), also=tuple(map(note, row.also)))

    return replace(ranking, candidates=tuple(map(note, ranking.candidates)))


def ranking_limits(scenario: Scenario, found: Sequence[Candidate]) -> Callable[[Strategy], float]:
    """Seconds beyond which a strategy is neither among the first rows nor recommended, by the
    candidates that are known.

    Those that frameworks run unless they are told are always simulated.
    """
    setup, names = scenario.setup, frameworks.names_for(scenario)
    today = {frameworks.default_text(name, scenario) for name in names}
    rows = [c for c in one_for_each_plan(found) if not c.wrong]
    last = rows[FIRST - 1].seconds if len(rows) >= FIRST else inf
    proven = [name for c in rows for name in (c, *c.also)]
    by_target = {
        target: min((c.seconds for c in proven if getattr(c.settings, target)), default=inf)
        for target in _TYPED
    }

    def limit_of(strategy: Strategy) -> float:
        if strategy.text in today:
            return inf
        typed = settings(strategy, setup.layout, faithful=scenario.faithful)
        # Where a target has a setting, upstream runs the same plan.
        limit = max([last, *(by_target[each] for each in _TYPED if getattr(typed, each))])
        if strategy.reduced_by_nccl:  # the lower end of its interval counts
            interval = setup.running(strategy).interval(
                largest_gradient(scenario), 1.0, strategy.collective
            )
            limit /= min(interval[0], 1.0) if interval else 1.0
        return limit * TIED

    return limit_of


def largest_gradient(scenario: Scenario) -> int:
    """Bytes of the largest gradient."""
    return max((gradient.nbytes for gradient in scenario.workload.gradients), default=0)


def one_for_each_plan(found: Sequence[Candidate]) -> list[Candidate]:
    """Candidates in order.

    Of those with the same plan and runtime, the first that can be run has the others in `also`.
    """

    def merge(first: Candidate, others: tuple[Candidate, ...]) -> Candidate:
        return replace(
            first,
            also=others,
            chosen_by=tuple(rule for each in (first, *others) for rule in each.chosen_by),
        )

    rows = merge_equal(
        sorted(found, key=lambda c: (not c.runnable, c.strategy.text)), lambda c: c.plan, merge
    )
    return sorted(rows, key=lambda c: (c.seconds, c.strategy.text))


def evaluate(
    scenario: Scenario, strategy: Strategy, limit: Limit = inf, cache: PlanCache | None = None
) -> Candidate | AtLeast | Postponed:
    """One strategy's prediction, or what it takes at least, if that is more than `limit`.

    Pipelined strategies without a chunk size get the best one for an undisturbed run.
    """
    question, cache = ask(scenario, strategy), cache or PlanCache()
    run = simulate_within(question, limit, cache)
    return (
        _candidate(scenario, question.setup, run, cache) if isinstance(run, PredictedPlan) else run
    )


def _candidate(scenario: Scenario, setup: Setup, run: PredictedPlan, cache: PlanCache) -> Candidate:
    (strategy, plan, result), times = run, scenario.repeat
    same = scenario.faithful or not has_quirks(strategy)
    theirs = plan if same else _upstream(scenario, strategy, cache)
    link, lane = (next(iter(uses), Use("", 0.0)) for uses in (result.links, result.lanes))
    asked = setup, strategy, largest_gradient(scenario), result.seconds / times
    interval = interval_of(*asked) if strategy.reduced_by_nccl else None
    return Candidate(
        strategy=strategy,
        runtime=setup.runtime.name,
        shortest=interval[0] if interval else inf,
        undispatched=setup.undispatched(strategy),
        seconds=result.seconds / times,
        floor_seconds=result.floors.hardware / times,
        transfers=plan.transfers,
        wrong=cache.wrong(plan),
        link=link.name,
        link_share=link.share,
        lane=lane.name,
        lane_share=lane.share,
        settings=_settings(scenario, strategy, plan, theirs, cache),
        chosen_by=tuple(
            n for n, text in tensorflow_choice(setup.layout).items() if text == strategy.text
        ),
        upstream=_difference(plan, theirs, cache),
        digest=cache.digest(plan),
    )


def _settings(
    scenario: Scenario, strategy: Strategy, plan: Plan, theirs: Plan | str, cache: PlanCache
) -> StrategySettings:
    """The settings to type; none where upstream would run another plan than the ranked one."""
    if scenario.faithful:
        return settings(strategy, scenario.setup.layout, faithful=True)
    typed = as_typed(strategy)
    if typed is not strategy:
        theirs = _upstream(scenario, typed, cache)
    same = not isinstance(theirs, str) and cache.digest(theirs) == cache.digest(plan)
    return settings(strategy, scenario.setup.layout) if same else StrategySettings(None, None)


def _difference(plan: Plan, theirs: Plan | str, cache: PlanCache) -> str:
    """How upstream differs from `plan`."""
    if isinstance(theirs, str):
        return f"upstream refuses it: {theirs}"
    if theirs is plan or cache.digest(theirs) == cache.digest(plan):
        return ""
    wrong = cache.wrong(theirs)
    sums = f" and gives {units.plural(wrong, 'wrong element')}" if wrong else ""
    return f"upstream makes {units.plural(theirs.transfers, 'transfer')} of it{sums}"


def _upstream(scenario: Scenario, strategy: Strategy, cache: PlanCache) -> Plan | str:
    """The plan that upstream makes of `strategy`, or why it refuses it."""
    try:
        return cache.compile(Question(strategy, scenario.workload, scenario.setup, faithful=True))
    except StrategyError as error:
        return "; ".join(error.problems)
