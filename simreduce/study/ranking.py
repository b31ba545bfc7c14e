"""Questions, and studies of alternatives: rows in order, and what became of the others.

A `Question` is one strategy for one workload. `answer_all` answers many questions on several
processes, in any order, quick ones first, until Ctrl-C. Where times hang on ties in queues, which
is found by moving starts, the longer one counts. A question comes out with figures, a lower bound,
or a reason why there are none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

from simreduce import units
from simreduce.computing import group_by, grouped
from simreduce.computing.workers import (
    Watch,
    beside,
    is_overdue,
    time_is_up,
    until_stopped,
    unwatched,
    working,
)
from simreduce.engine import AtLeast
from simreduce.engine.kernel.store import kernel, make_kernel
from simreduce.engine.setup import Setup
from simreduce.errors import Deadlock, InputError, StrategyError, first_words
from simreduce.export.framework import Choice
from simreduce.files.formats import Name
from simreduce.plan import Plan, repeat
from simreduce.planners.layouts import node_names
from simreduce.planners.packing.arrangement import NoPacking
from simreduce.planners.strategy import Strategy
from simreduce.topology import Topology
from simreduce.topology.switch_groups import label, switch_groups
from simreduce.units import first_few
from simreduce.workload import Workload

if TYPE_CHECKING:
    from simreduce.study.scenario import Scenario
    from simreduce.training import StepQuestion

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Question:
    """How long a strategy takes for a workload on one machine, `times` times in a row."""

    strategy: Strategy
    workload: Workload
    setup: Setup
    times: int = 1
    root: int = 0
    faithful: bool = False
    name: str = ""

    def compile(self) -> Plan:
        """The plan of one of its reductions; StrategyError if the machine does not accept it."""
        return self.setup.compile(
            self.strategy, self.workload, root=self.root, faithful=self.faithful
        )

    def compile_all(self) -> Plan:
        """The plan that chains all its reductions. Raises as `compile` does."""
        plan = self.compile()
        return repeat(plan, self.times) if self.times > 1 else plan

    @property
    def about(self) -> dict[str, Any]:
        """The keys with which documents name the question."""
        setup, strategy = self.setup, self.strategy
        return {
            "question": self.name,
            "strategy": strategy.text,
            "collective": strategy.collective,
            "workload": self.workload.name,
            "size_bytes": self.workload.nbytes,
            "ranks": len(setup.layout),
            "repeat": self.times,
            "equal_paths": setup.equal_paths,
            "nccl_settings": setup.nccl.text,
            "nominal": setup.nominal([strategy.text], setup.calls_of(strategy, self.workload)),
            "disturbance": setup.disturbed,
        }


def ask(scenario: Scenario, strategy: Strategy) -> Question:
    """A strategy of a scenario."""
    setup, times = scenario.setup.running(strategy), scenario.repeat
    return Question(
        strategy, scenario.workload, setup, times, faithful=scenario.faithful, name=scenario.name
    )


def choice_of(question: Question, step: StepQuestion | None, method: str = "") -> Choice:
    """The question as exporters take it.

    It has the settings of a training step by a method, DDP unless given. StrategyError for packs of
    a sharded step.
    """
    hosts, groups = _hosts(question.setup)
    choice = Choice(
        question.setup, question.workload, question.strategy, hosts=hosts, groups=groups
    )
    if step is None:
        return choice
    from simreduce.training.sharded import DDP, largest_unit  # noqa: PLC0415 - a bench does without

    sharding, job = step.sharding, step.job
    choice = replace(choice, cycle=step.cycle, batch=job.batch, accumulate=job.accumulate)
    if method in ("", DDP) or sharding is None:
        return choice
    if not isinstance(question.strategy.packer, NoPacking):
        raise StrategyError(
            f"{method} reduces a unit at a time; leave out +{question.strategy.packing}"
        )
    return replace(
        choice, method=method, shards=sharding, unit=largest_unit(job.model, sharding.units)
    )


def _hosts(setup: Setup) -> tuple[tuple[Name, ...], tuple[int, ...]]:
    """The nodes of ranks in their order, and the number of the switches that each is below."""
    machine = setup.machine
    if not isinstance(machine, Topology):
        return (), ()
    names = node_names(setup.layout, machine)
    if not all(names):
        return (), ()
    leaves = enumerate(switch_groups(machine).leaves) if len(names) > 1 else ()
    group = {name: i for i, leaf in leaves for name in leaf.machines}
    return tuple(Name(label(name)) for name in names), tuple(
        group[name] for name in names if name in group
    )


Row = TypeVar("Row")
Asked = TypeVar("Asked")


@dataclass(frozen=True, kw_only=True)
class Ending(ABC):
    """How a ranking or a search ended: Ctrl-C `stopped` it, or a budget (`hurried`)."""

    hurried: bool = False

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether nothing is left to find."""

    @property
    def stopped(self) -> bool:
        """Whether it ended early."""
        return not self.complete

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C stopped it."""
        return self.stopped and not self.hurried


@dataclass(frozen=True)
class RankedRows(Ending, Generic[Asked, Row]):
    """The candidates of a scenario, fastest first.

    The machine refuses others, which are kept with the reason. `untried` counts the ones that
    Ctrl-C left out, or a budget (`hurried`).
    """

    scenario: Asked
    candidates: tuple[Row, ...]
    refused: tuple[tuple[str, str], ...]
    untried: int = 0

    @property
    def complete(self) -> bool:
        """Whether none is untried."""
        return not self.untried


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRow:
    """Something that takes `seconds` by a `runtime`.

    `moved` are its seconds where starts are moved (`Simulator.find_moved`), if that was tried and
    tells.
    """

    seconds: float = inf
    moved: float | None = None
    runtime: str = "tensorflow"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow(TimedRow):
    """The prediction of a plan, whose bytes need a `link` for the part `link_share` of the time.

    `undispatched` says that the time lacks the dispatch of TensorFlow's ops, which the calibration
    does not know: it is only a lower bound.
    """

    floor_seconds: float = 0.0
    transfers: int = 0
    wrong: int = 0
    link: str = ""
    link_share: float = 0.0
    undispatched: bool = False


def in_order(rows: Iterable[Row]) -> list[Row]:
    """The rows, fastest first; those that do not fit the memory of a GPU come last."""
    return sorted(rows, key=attrgetter("misfit", "seconds"))


def merge_equal(
    rows: Iterable[Row],
    same: Callable[[Row], Hashable],
    merge: Callable[[Row, tuple[Row, ...]], Row],
) -> list[Row]:
    """One row for all that are the `same`: the first, to which `merge` adds the others."""
    return [merge(first, tuple(others)) for first, *others in group_by(rows, same).values()]


Moved = Mapping[object, float | None]
"""Seconds of plans where starts are moved; None where that does not tell."""


def lasting(row: Any) -> float:
    """The time by which rows are compared: no tie in queues must decide.

    Where a time hangs on ties it is the longer of both, in seconds.
    """
    return float(max(row.seconds, row.moved or 0.0))


def lasting_us(row: Mapping[str, Any]) -> float:
    """As `lasting`, of a row of a document, in microseconds."""
    return float(max(row["time_us"], row.get("moved_us") or 0.0))


def settle_ties(
    ranking: T,
    most: int,
    *,
    deciding: Callable[[T], Iterable[Row]],
    plan: Callable[[Row], object],
    find: Callable[[Row], float | None],
    note: Callable[[T, Moved], T],
) -> T:
    """The ranking with `moved` of the rows that decide.

    Where that changes which rows decide, the next one is tried: `most` plans in all. `find` gives
    the seconds of a row where starts are moved, and `note` writes those of plans into a ranking.
    """
    tried = dict[object, float | None]()
    while len(tried) < most:
        new = next((row for row in deciding(ranking) if plan(row) not in tried), None)
        if new is None:
            break
        tried[plan(new)] = find(new)
        ranking = note(ranking, tried)
    return ranking


def find_moved(scenario: Scenario, strategy: Strategy | None, seconds: float) -> float | None:
    """The seconds of one of a scenario's reductions where starts are moved, if that tells."""
    if strategy is None or strategy.reduced_by_nccl:
        return None
    asked, times = ask(scenario, strategy), scenario.repeat
    moved = asked.setup.find_moved(asked.compile_all(), seconds * times)
    return None if moved is None else moved / times


def moved_lines(moved: float | None) -> list[str]:
    """Says what a time becomes, in seconds, where starts are moved, if that tells."""
    ties = "if starts move by 0.1% (queues tie)"
    return [] if moved is None else [f"or {units.format_duration(moved)} {ties}"]


def took(seconds: float, moved: float | None = None) -> str:
    """A time in words, and what it becomes where starts are moved, if that tells."""
    return ", ".join([units.format_duration(seconds), *moved_lines(moved)])


@dataclass(frozen=True, slots=True)
class Refused:
    """The machine does not accept a question."""

    error: InputError

    def reason(self, name: str) -> str:
        """Why, in one line that begins with the `name` of what was asked."""
        # Otherwise GPUs that the plan joins and nothing else, without a name.
        named = isinstance(self.error, StrategyError)
        return "; ".join(each if named else f"{name}: {each}" for each in self.error.problems)


@dataclass(frozen=True, slots=True)
class Stuck:
    """A fault cuts a plan off, so that it never finishes."""

    error: Deadlock

    def reason(self, name: str) -> str:
        """Why, in one line that begins with the `name` of what was asked."""
        return f"{name}: {first_words(self.error)}"


class Postponed(NamedTuple):
    """The answer takes long: `transfers` of its plan, or more. A study asks again, with a limit, in
    order of these; what is not transfers but puts questions in order does as well.
    """

    transfers: int


Outcome: TypeAlias = T | AtLeast | Refused | Stuck
"""The figures of what was simulated to its end, or what there is instead."""


def outcome_of(evaluate: Callable[..., T], *asked: Any) -> T | Refused | Stuck:
    """What `evaluate` returns; InputError and Deadlock, which it may raise, are outcomes."""
    try:
        return evaluate(*asked)
    except Deadlock as error:
        return Stuck(error)
    except InputError as error:
        return Refused(error)


TIED = 1.001
"""Plans within this factor of a limit are simulated: they may be as fast."""

BATCH = 12
"""Plans that take long are simulated so many at a time, plans of few transfers first. The limits of
a batch come from all outcomes before, and so do not depend on how many processes there are.
"""

_FEW = 8
"""Questions that may be answered before the kernel is compiled."""

Limit: TypeAlias = float | None
"""Seconds up to which a plan is simulated. None: to its end, unless that takes long."""


def study(
    questions: Sequence[Asked],
    evaluate: Callable[[Asked, Limit], T | AtLeast | Postponed],
    *,
    workers: int = 1,
    limits: Callable[[Mapping[int, Any]], Callable[[int], float]] | None = None,
    order: Sequence[int] | None = None,
    at_once: Collection[int] = (),
) -> Generator[tuple[int, Outcome[T]], None, None]:
    """Yield the place of each question and its outcome, in any order.

    `order` has the places in the order in which to begin, and no place of `at_once` is postponed.
    To close the generator ends the processes.

    `evaluate` may raise InputError and Deadlock, which are outcomes. With `limits`, it may
    postpone what takes long: when all others are done, those come in batches. `limits` gives, from
    the outcomes by place until then, the seconds beyond which the question of a place is of no
    interest.
    """
    first = inf if limits is None else None
    places = range(len(questions)) if order is None else order
    asked = [(place, inf if place in at_once else first) for place in places]
    outcomes, left = dict[int, Outcome[T]](), dict[int, Postponed]()
    workers = min(workers, len(questions))
    # On a machine without machine code, the first question that needs the kernel would wait for it.
    early = workers > 1 and len(questions) > _FEW and not kernel().is_kept
    with (
        beside(make_kernel) if early else nullcontext(),
        working(partial(_answer, evaluate), workers) as work_on,
    ):
        while asked:
            for number, outcome in work_on([(questions[place], limit) for place, limit in asked]):
                place = asked[number][0]
                if isinstance(outcome, Postponed):
                    left[place] = outcome
                else:
                    outcomes[place] = outcome
                    yield place, outcome
            batch = sorted(left, key=lambda place: (left[place].transfers, place))[:BATCH]
            limit_of = limits(outcomes) if limits else lambda _: inf
            asked = [(place, limit_of(place)) for place in batch if left.pop(place)]


def _answer(
    evaluate: Callable[[Asked, Limit], T | AtLeast | Postponed], asked: tuple[Asked, Limit]
) -> Outcome[T] | Postponed:
    return outcome_of(evaluate, *asked)


def answer_all(
    questions: Sequence[Asked],
    names: Sequence[str],
    evaluate: Callable[[Asked, Limit], T | AtLeast | Postponed],
    *,
    by_name: bool,
    workers: int = 1,
    watch: Watch = unwatched,
    limits: Callable[[Mapping[int, Any]], Callable[[int], float]] | None = None,
    order: Sequence[int] | None = None,
    waited: Collection[int] = (),
    until: Callable[[Iterable[tuple[int, Any]]], Iterable[tuple[int, Any]]] = iter,
) -> tuple[Mapping[int, T | AtLeast], tuple[tuple[str, str], ...], int, bool]:
    """The outcomes of a `study` of questions by their names; it may end early (`until`).

    They are figures and lower bounds by place, the names of what was refused with the reasons, how
    many questions Ctrl-C left untried, or a budget, and whether it was that.

    The machine may refuse questions, but to refuse all that were given `by_name` raises one
    StrategyError. Questions that a fault cuts off for ever are refused too, unless it cuts off all
    of them, which raises Deadlock. Ctrl-C is raised unless something is found. No place of `waited`
    is postponed, and a budget waits for it, but not for much longer than its time.
    """
    coming = until(
        study(questions, evaluate, workers=workers, limits=limits, order=order, at_once=waited)
    )

    def enough(pairs: Sequence[tuple[int, Outcome[T]]]) -> bool:
        return not all(isinstance(outcome, Refused | Stuck) for _, outcome in pairs)

    def due(pairs: Sequence[tuple[int, Outcome[T]]]) -> bool:
        return enough(pairs) and ({*waited} <= {place for place, _ in pairs} or is_overdue())

    ended: list[bool] = []

    def all_of_them() -> Iterator[tuple[int, Outcome[T]]]:
        yield from watch(coming, len(names))
        ended.append(True)  # with places left only where a budget left them out

    outcomes = dict(until_stopped(all_of_them(), enough, due))
    hurried = len(outcomes) < len(names) and (bool(ended) or time_is_up())
    found = {
        place: outcome
        for place, outcome in sorted(outcomes.items())
        if not isinstance(outcome, Refused | Stuck)
    }
    left = [(names[place], outcomes[place]) for place in sorted({*outcomes} - {*found})]
    refused: list[tuple[str, Refused | Stuck]] = [
        (name, each) for name, each in left if isinstance(each, Refused)
    ]
    stuck = [(name, each) for name, each in left if isinstance(each, Stuck)]
    reasons = tuple((name, each.reason(name)) for name, each in (*refused, *stuck))
    if refused and by_name and not (found or stuck):
        raise StrategyError(by_reason(reasons))
    if stuck and not found:
        name, first = stuck[0]
        raise Deadlock(f"{name}: {first.error}")
    return found, reasons, len(names) - len(outcomes), hurried


def by_reason(refused: Iterable[tuple[str, str]], *, brief: bool = False) -> list[str]:
    """A line for each reason, behind the names that it holds for; see `same_reasons`."""
    return [f"{names}: {why}" if names else why for names, why in same_reasons(refused, brief)]


def same_reasons(refused: Iterable[tuple[str, str]], brief: bool) -> Iterator[tuple[str, str]]:
    """Each reason behind the names that it holds for. When `brief`, the first ones, without
    packings of an algorithm that it holds for, and how many more there are.
    """
    groups = grouped(
        (reason.removeprefix(f"{name}: "), name if reason.startswith(f"{name}: ") else "")
        for name, reason in refused
    )
    for reason, group in groups.items():
        names = list(dict.fromkeys(filter(None, group)))
        plain = [n for n in names if "+" not in n or n.partition("+")[0] not in group]
        yield first_few(plain) if brief else ", ".join(names), reason
