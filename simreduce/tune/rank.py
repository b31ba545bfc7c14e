"""Every strategy of a scenario: compiled, proved, simulated, and put in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from simreduce import units
from simreduce.engine import Use
from simreduce.errors import Deadlock, InputError, StrategyError
from simreduce.export import Settings, as_typed, settings
from simreduce.plan import Plan, repeat, verify, wrong_elements
from simreduce.scenario import Scenario
from simreduce.strategy import Strategy
from simreduce.strategy.automatic import tensorflow_choice
from simreduce.tune.candidates import candidates
from simreduce.tune.chunks import with_best_chunk
from simreduce.workers import in_processes


@dataclass(frozen=True, slots=True)
class Candidate:
    """One strategy's prediction. Times are seconds of one all-reduce of the whole workload.

    `chosen_by` names the rules of TensorFlow that would have chosen it here. `upstream` says where
    upstream does something else under the same name (`faithful` reproduces that), "" if it does
    not.
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
    chosen_by: tuple[str, ...] = ()
    upstream: str = ""

    @property
    def runnable(self) -> bool:
        """Whether tf_cnn_benchmarks or TensorFlow can be told to run it."""
        return bool(self.settings.tf_cnn_benchmarks or self.settings.tensorflow)


@dataclass(frozen=True, slots=True)
class Ranking:
    """Candidates, fastest first, and the strategies that the machine does not accept, with the
    reason.
    """

    scenario: Scenario
    candidates: tuple[Candidate, ...]
    refused: tuple[tuple[Strategy, str], ...]

    @property
    def recommended(self) -> Candidate | None:
        """The fastest proven candidate that tf_cnn_benchmarks or TensorFlow can be told to run; if
        there is none, the fastest proven one; None if no plan is proven.
        """
        proven = [c for c in self.candidates if not c.wrong]
        runnable = [c for c in proven if c.runnable]
        return next(iter(runnable or proven), None)

    def fastest_by(self, target: str) -> Candidate | None:
        """The fastest proven candidate that `target`, a field of `Settings`, can be told to run."""
        return next(
            (c for c in self.candidates if not c.wrong and getattr(c.settings, target)), None
        )


def rank(
    scenario: Scenario,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Ranking:
    """Evaluate every strategy, on `workers` processes. Strategies given by name that the machine
    does not accept raise StrategyError, all at once; with "all" they are listed in `refused`. So
    are those that a fault cuts off for ever, unless it does all of them, which is a Deadlock.
    """
    strategies = scenario.strategies or candidates(scenario.setup.layout)
    outcomes: list[Candidate | Deadlock | str] = []
    for outcome in in_processes(partial(evaluate, scenario), strategies, workers):
        outcomes.append(outcome)
        progress(len(outcomes), len(strategies))
    pairs = list(zip(strategies, outcomes, strict=True))
    refused = tuple((s, o) for s, o in pairs if isinstance(o, str))
    if refused and scenario.strategies:
        raise StrategyError([reason for _, reason in refused])
    stuck = [(s, o) for s, o in pairs if isinstance(o, Deadlock)]
    if stuck and len(stuck) + len(refused) == len(pairs):
        raise Deadlock(f"{stuck[0][0].text}: {stuck[0][1]}")
    refused += tuple((s, f"{s.text}: {first_words(o)}") for s, o in stuck)
    found = sorted(
        (o for o in outcomes if isinstance(o, Candidate)),
        key=lambda c: (c.seconds, c.strategy.text),
    )
    return Ranking(scenario, tuple(found), refused)


def first_words(error: Deadlock) -> str:
    """How many ops can never finish, and the first of them, in one line."""
    head, _, rest = str(error).partition("\n  ")
    return f"{head} {rest.splitlines()[0]}" if rest else head


def evaluate(scenario: Scenario, strategy: Strategy) -> Candidate | Deadlock | str:
    """One strategy's prediction, or why the machine does not accept it or never finishes it. A
    pipeline that is told no size of its chunks gets the one that is best if nothing disturbs.
    """
    setup, times = scenario.setup, scenario.repeat
    try:
        strategy = with_best_chunk(strategy, scenario.workload, setup)
        plan = setup.compile(strategy, scenario.workload, faithful=scenario.faithful)
        result = setup.simulate(repeat(plan, times) if times > 1 else plan)
    except Deadlock as error:
        return error
    except StrategyError as error:
        return "; ".join(error.problems)
    except InputError as error:  # GPUs that the plan joins and nothing else does
        return "; ".join(f"{strategy.text}: {p}" for p in error.problems)
    theirs = plan if scenario.faithful else _upstream(scenario, strategy)
    link, lane = _first(result.links), _first(result.lanes)
    return Candidate(
        strategy=strategy,
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
    if theirs.digest == plan.digest:
        return ""
    wrong = wrong_elements(verify(theirs))
    sums = f" and gives {units.counted(wrong, 'wrong element')}" if wrong else ""
    return f"upstream makes {units.counted(theirs.transfers, 'transfer')} of it{sums}"


def _upstream(scenario: Scenario, strategy: Strategy) -> Plan | str:
    """The plan that upstream makes of `strategy`, or why it refuses it."""
    try:
        return scenario.setup.compile(strategy, scenario.workload, faithful=True)
    except StrategyError as error:
        return "; ".join(error.problems)


def _first(uses: tuple[Use, ...]) -> Use:
    return uses[0] if uses else Use("", 0.0)
