"""The errors simreduce raises; each subclasses the built-in a caller would guess."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Sequence
from importlib import import_module
from numbers import Integral
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")


class SimreduceError(Exception):
    """Base of every error that simreduce raises on purpose."""


class InputError(SimreduceError, ValueError):
    """Input that cannot be used. `problems` lists every fault found, each with its place."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: tuple[str, ...] = (
            (problems,) if isinstance(problems, str) else tuple(problems)
        )
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type[InputError], tuple[tuple[str, ...]]]:
        # Between processes the problems stay apart.
        return type(self), (self.problems,)


def refuse(problems: Iterable[str], kind: type[InputError] = InputError) -> None:
    """Raise the error with every problem, if there is any."""
    if found := [*problems]:
        raise kind(found)


def load_extra(module: str, need: str) -> ModuleType:
    """The module of a library that an extra installs; InputError with the `need` without it."""
    try:
        return import_module(module)
    except ImportError:
        raise InputError(need) from None


class TopologyError(InputError):
    """A topology that cannot be simulated."""


class WorkloadError(InputError):
    """A gradient list that cannot be reduced."""


class StrategyError(InputError):
    """A strategy that cannot be read, or that the devices at hand cannot serve."""


class OptionNotTaken(StrategyError):  # noqa: N818 - what it is about
    """A strategy with an option that its algorithm takes on no machine."""


class PlanTooLarge(StrategyError):  # noqa: N818 - likewise
    """A plan with more ops than can be held."""


class NotFoldable(StrategyError):  # noqa: N818 - likewise
    """A strategy with which equal machines do not all do the same."""


class UnevenParts(NotFoldable):
    """A strategy with which they would, of a size that gives them equal parts."""


class ScenarioError(InputError):
    """A scenario file that cannot be run."""


class CalibrationError(InputError):
    """A calibration that cannot be loaded."""


class PlanError(SimreduceError, ValueError):
    """A plan that breaks the rules of its own representation."""


class Deadlock(SimreduceError, RuntimeError):  # noqa: N818 - the word of the trade
    """A plan that can never finish. The message names ops and what they wait for."""


class DeviceError(SimreduceError, RuntimeError):
    """Real devices, or the processes that hold them, that did not do what they were asked."""


class InternalError(SimreduceError, RuntimeError):
    """A fault of simreduce itself. Please report it with the command that shows it."""


def why_no_path(text: str, error: ValueError) -> str:
    """Why `text` cannot name a file, in the same words on every Python."""
    return "embedded null byte" if "\0" in text else str(error)


_WIDTH = 80
_TYPES = {dict: "table", list: "list", int: "whole number", float: "number"}


def cut(text: str, most: int = _WIDTH) -> str:
    """The text if it fits a line of `most` characters, else its beginning."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def quote(value: object) -> str:
    """`repr`, cut to a line's length; a value too large to print is named by its type."""
    try:
        return cut(repr(value))
    except (ValueError, RecursionError):  # whole numbers with thousands of digits
        return f"this {_TYPES.get(type(value), type(value).__name__)}"


def whole(value: object, name: str, least: int) -> int:
    """The argument of that name; TypeError if it is no whole number, InputError below `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        kind = type(value).__name__
        raise TypeError(f"{name}: expected a whole number, got {kind} {quote(value)}")
    if value < least:
        raise InputError(f"{name}: must be at least {least}, got {quote(value)}")
    return int(value)


def escape(text: str, keep: str = "\n") -> str:
    """The text with characters that nobody sees escaped: those that control a terminal, those that
    turn the direction of text, and the like. Blanks and the characters to `keep` stay.

    Whatever shows a text that others wrote takes it from here.
    """
    return text if text.isprintable() else "".join(
        c if c.isprintable() or c in keep or unicodedata.category(c) == "Zs" else ascii(c)[1:-1]
        for c in text
    )  # fmt: skip


_LIKE = 0.6
"""Words less alike than this, by the ratio of `difflib`, are no misspellings of each other."""
_BEGINNING = 3
"""The fewest letters that count as the beginning of a known word."""


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word nearest to `word`, whatever their case, or "" when none is near."""
    words = {each.casefold(): each for each in reversed(list(known))}
    folded = word.casefold()
    near = difflib.get_close_matches(folded, reversed(words), n=1, cutoff=_LIKE)
    near = near or [
        each for each in reversed(words) if len(folded) >= _BEGINNING and each.startswith(folded)
    ]
    return words[near[0]] if near else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The text " (did you mean 'x'?)" for the known word nearest to `word`, or ""."""
    near = nearest(word, known)
    return f" (did you mean {near!r}?)" if near else ""


def near_or_all(word: str, known: Iterable[str], lead: str = "; known are ") -> str:
    """As `did_you_mean`, or all that is known behind the `lead`."""
    names = tuple(known)
    return did_you_mean(word, names) or f"{lead}{', '.join(names)}"


def first_words(error: Deadlock) -> str:
    """How many ops can never finish, and the first of them, in one line."""
    head, _, rest = str(error).partition("\n  ")
    return f"{head} {rest.splitlines()[0]}" if rest else head


def expect(value: Any, kinds: type[T] | tuple[type, ...], meant: str) -> T:
    """`value`; TypeError that says what was meant unless it is of these kinds."""
    if isinstance(value, kinds):
        return value  # type: ignore[return-value]
    raise TypeError(f"expected {meant}, got {type(value).__name__} {quote(value)}")
