"""What a study of alternatives comes to: its rows in order, and what became of the others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar

Row = TypeVar("Row")
Asked = TypeVar("Asked")


@dataclass(frozen=True, kw_only=True)
class Ending(ABC):
    """How a ranking or a search ended: Ctrl-C `stopped` it, or a budget of time (`hurried`)."""

    hurried: bool = False

    @property
    @abstractmethod
    def stopped(self) -> bool:
        """Whether it ended early."""

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C stopped it."""
        return self.stopped and not self.hurried


@dataclass(frozen=True)
class RankedRows(Ending, Generic[Asked, Row]):
    """The candidates of a scenario, fastest first.

    The machine refuses others, which are kept with the reason. `untried` counts the ones that
    Ctrl-C left out, or a budget of time (`hurried`).
    """

    scenario: Asked
    candidates: tuple[Row, ...]
    refused: tuple[tuple[str, str], ...]
    untried: int = 0

    @property
    def stopped(self) -> bool:
        """Whether some are untried."""
        return self.untried > 0

    @property
    def complete(self) -> bool:
        """Whether none is untried."""
        return not self.untried


def in_order(rows: Iterable[Row]) -> list[Row]:
    """The rows, fastest first; those that do not fit the memory of a GPU come last."""
    keys: Callable[[Any], tuple[bool, float]] = attrgetter("misfit", "seconds")
    return sorted(rows, key=keys)


def merge_equal(
    rows: Iterable[Row],
    same: Callable[[Row], Hashable],
    merge: Callable[[Row, tuple[Row, ...]], Row],
) -> list[Row]:
    """One row for all that are the `same`: the first, to which `merge` adds the others."""
    found: dict[Hashable, list[Row]] = {}
    for row in rows:
        found.setdefault(same(row), []).append(row)
    return [merge(first, tuple(others)) for first, *others in found.values()]
