"""How a question comes out: with figures, a lower bound, or a reason why there are none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

from simreduce.engine import AtLeast
from simreduce.errors import Deadlock, InputError, StrategyError, first_words

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Refused:
    """The machine does not accept a question."""

    error: InputError

    def reason(self, name: str) -> str:
        """Why, in one line that begins with the `name` of what was asked."""
        problems = self.error.problems
        if not isinstance(self.error, StrategyError):  # GPUs that the plan joins and nothing else
            problems = tuple(f"{name}: {problem}" for problem in problems)
        return "; ".join(problems)


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
