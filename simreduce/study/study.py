"""Many questions, answered on several processes: in any order, quick ones first, until Ctrl-C.

A question comes out with figures, a lower bound, or a reason why there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from simreduce.computing.watching import Watch, time_is_up, until_stopped, unwatched
from simreduce.computing.workers import beside, working
from simreduce.engine import AtLeast
from simreduce.engine.kernel.machine_code import kernel
from simreduce.engine.kernel.store import make_kernel
from simreduce.errors import Deadlock, InputError, StrategyError, first_words
from simreduce.units import first_few

T = TypeVar("T")


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
    """The answer takes long: `transfers` of its plan, or more. A study asks again, with a limit."""

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


Q = TypeVar("Q")

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
    questions: Sequence[Q],
    evaluate: Callable[[Q, Limit], T | AtLeast | Postponed],
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
    evaluate: Callable[[Q, Limit], T | AtLeast | Postponed], asked: tuple[Q, Limit]
) -> Outcome[T] | Postponed:
    return outcome_of(evaluate, *asked)


class Answers(NamedTuple, Generic[T]):
    """The outcomes of a study.

    It has figures and lower bounds by place, the names of what was refused with the reasons, and
    how many questions Ctrl-C left untried, or a budget of time (`hurried`).
    """

    found: Mapping[int, T | AtLeast]
    refused: tuple[tuple[str, str], ...]
    untried: int
    hurried: bool = False


def answer_all(
    questions: Sequence[Q],
    names: Sequence[str],
    evaluate: Callable[[Q, Limit], T | AtLeast | Postponed],
    *,
    by_name: bool,
    workers: int = 1,
    watch: Watch = unwatched,
    limits: Callable[[Mapping[int, Any]], Callable[[int], float]] | None = None,
    order: Sequence[int] | None = None,
    waited: Collection[int] = (),
    until: Callable[[Iterable[tuple[int, Any]]], Iterable[tuple[int, Any]]] = iter,
) -> Answers[T]:
    """The outcomes of a `study` of questions by their names; it may end early (`until`).

    The machine may refuse questions, but to refuse all that were given `by_name` raises one
    StrategyError. Questions that a fault cuts off for ever are refused too, unless it cuts off all
    of them, which raises Deadlock. Ctrl-C is raised unless something is found. No place of `waited`
    is postponed, and a budget of time waits for it.
    """
    coming = until(
        study(questions, evaluate, workers=workers, limits=limits, order=order, at_once=waited)
    )

    def enough(pairs: Sequence[tuple[int, Outcome[T]]]) -> bool:
        return not all(isinstance(outcome, Refused | Stuck) for _, outcome in pairs)

    def due(pairs: Sequence[tuple[int, Outcome[T]]]) -> bool:
        return enough(pairs) and {*waited} <= {place for place, _ in pairs}

    ended: list[bool] = []

    def all_of_them() -> Iterator[tuple[int, Outcome[T]]]:
        yield from watch(coming, len(names))
        ended.append(True)  # with places left only where a budget of time left them out

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
    return Answers(found, reasons, len(names) - len(outcomes), hurried)


def by_reason(refused: Iterable[tuple[str, str]], *, brief: bool = False) -> list[str]:
    """A line for each reason, behind the names that it holds for; see `same_reasons`."""
    return [f"{names}: {why}" if names else why for names, why in same_reasons(refused, brief)]


def same_reasons(refused: Iterable[tuple[str, str]], brief: bool) -> list[tuple[str, str]]:
    """Each reason behind the names that it holds for. When `brief`, the first ones, without
    packings of an algorithm that it holds for, and how many more there are.
    """
    groups: dict[str, list[str]] = {}
    for name, reason in refused:
        own = reason.startswith(f"{name}: ")
        groups.setdefault(reason.removeprefix(f"{name}: "), []).extend([name] if own else [])
    found = []
    for reason, group in groups.items():
        names = list(dict.fromkeys(group))
        plain = [n for n in names if "+" not in n or n.partition("+")[0] not in group]
        found.append((first_few(plain) if brief else ", ".join(names), reason))
    return found
