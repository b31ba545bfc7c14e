"""Times that hang on ties in queues: found where starts are moved, and compared by the longer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from simreduce import units
from simreduce.planners.strategy import Strategy
from simreduce.study.question import ask

if TYPE_CHECKING:
    from simreduce.study.scenario import Scenario

F = TypeVar("F")
R = TypeVar("R")

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
    ranking: F,
    most: int,
    *,
    deciding: Callable[[F], Iterable[R]],
    plan: Callable[[R], object],
    find: Callable[[R], float | None],
    note: Callable[[F, Moved], F],
) -> F:
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
    case, times = ask(scenario, strategy).make_case(), scenario.repeat
    moved = case.setup.find_moved(case.plan, seconds * times)
    return None if moved is None else moved / times


def moved_lines(moved: float | None) -> list[str]:
    """Says what a time becomes, in seconds, where starts are moved, if that tells."""
    ties = "if starts move by 0.1% (queues tie)"
    return [] if moved is None else [f"or {units.format_duration(moved)} {ties}"]


def took(seconds: float, moved: float | None = None) -> str:
    """A time in words, and what it becomes where starts are moved, if that tells."""
    return ", ".join([units.format_duration(seconds), *moved_lines(moved)])
