"""Gathering every fault of a document, each with its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from simreduce import units
from simreduce.errors import TopologyError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


class _Limits(NamedTuple):
    low: float
    high: float
    words: str


# Wider than any machine, narrow enough that a slipped prefix (25 B/s, 25 s) is told.
BANDWIDTH_LIMITS = _Limits(1e3, 1e15, "between 1 kB/s and 1 PB/s")
LATENCY_LIMITS = _Limits(0.0, 10.0, "between 0 s and 10 s")
LANES_LIMIT = 1024
MOST_FAULTS = 1000

_TYPES = {
    dict: "table",
    list: "list",
    str: "text",
    bool: "true or false",
    int: "whole number",
    float: "number",
}


def type_name(value: object) -> str:
    """The word a TOML author has for a value's type."""
    return _TYPES.get(type(value), type(value).__name__)


_LONGEST_PATH = 4096
"""Of Linux: what is longer names no file, and need not be shown whole."""


def cut(text: str) -> str:
    """The text if it fits a line, else its beginning."""
    return text if len(text) <= 80 else f"{text[:77]}..."


def quoted(value: object) -> str:
    """`repr` cut to a line's length; whole numbers too long to print are named by their type."""
    try:
        return cut(repr(value))
    except (ValueError, RecursionError):
        return f"this {type_name(value)}"


class Faults:
    """The faults found so far. `origin` maps a dotted path to the file, or the override, that wrote
    it.
    """

    def __init__(self, shown: str, origin: Mapping[str, str] | None = None) -> None:
        self.problems: list[str] = []
        self._shown = shown if len(shown) <= _LONGEST_PATH else cut(shown)
        self._origin = origin or {}

    def add(self, path: str, text: str) -> None:
        """Note a fault at a dotted path, "" for the whole document."""
        if len(self.problems) < MOST_FAULTS:
            self.problems.append(
                f"{self._owner(path)}: {path}: {text}" if path else f"{self._shown}: {text}"
            )
        elif len(self.problems) == MOST_FAULTS:
            self.problems.append(f"{self._shown}: there are more faults than these {MOST_FAULTS}")

    def raise_any(self) -> None:
        """Raise `TopologyError` with all faults, if there are any."""
        if self.problems:
            raise TopologyError(self.problems)

    def _owner(self, path: str) -> str:
        stem = path.partition("[")[0]
        while stem:
            if stem in self._origin:
                return self._origin[stem]
            stem = stem.rpartition(".")[0]
        return self._shown

    def table(self, path: str, value: object) -> dict[str, Any]:
        """`value` if it is a table; else a fault, and an empty table to go on with."""
        if isinstance(value, dict):
            return value
        self.add(path, f"must be a table, not {type_name(value)}")
        return {}

    def listing(self, path: str, value: object) -> list[Any]:
        """`value` if it is a list; else a fault, and an empty list to go on with."""
        if isinstance(value, list):
            return value
        self.add(path, f"must be a list, not {type_name(value)}")
        return []

    def text(self, path: str, value: object) -> str:
        """`value` if it is text; else a fault and ""."""
        if isinstance(value, str):
            return value
        self.add(path, f"must be text, not {type_name(value)}")
        return ""

    def choice(self, path: str, value: object, known: Sequence[str], what: str) -> str:
        """`value` if it is one of `known`; else a fault, and the first of them to go on with."""
        if isinstance(value, str) and value in known:
            return value
        if isinstance(value, str):
            near = did_you_mean(value, known) or f"; known are {', '.join(known)}"
            self.add(path, f"unknown {what} {quoted(value)}{near}")
        else:
            self.add(path, f"must be one of {', '.join(known)}, not {quoted(value)}")
        return known[0]

    def flag(self, path: str, value: object, *, default: bool) -> bool:
        """`value` if it is a boolean; else a fault and `default`."""
        if isinstance(value, bool):
            return value
        self.add(path, f"must be true or false, not {type_name(value)}")
        return default

    def lanes(self, path: str, value: object) -> int:
        """A count of lanes, 1 after a fault."""
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LANES_LIMIT:
            return value
        self.add(path, f"lanes must be a whole number from 1 to {LANES_LIMIT}, not {quoted(value)}")
        return 1

    def bandwidth(self, path: str, value: object) -> float | None:
        """Bytes/s of `25 GB/s`; None after a fault."""
        return self._quantity(path, value, units.bandwidth, BANDWIDTH_LIMITS)

    def latency(self, path: str, value: object) -> float | None:
        """Seconds of `1.5 us`; 0 is allowed. None after a fault."""
        return self._quantity(path, value, units.duration, LATENCY_LIMITS)

    def _quantity(
        self, path: str, value: object, read: Callable[[object], float], limits: _Limits
    ) -> float | None:
        try:
            quantity = read(value)
        except ValueError as error:
            self.add(path, str(error))
            return None
        if not limits.low <= quantity <= limits.high:
            self.add(path, f"{quoted(value)} must be {limits.words}")
            return None
        return quantity

    def unknown(self, path: str, keys: Iterable[str], known: Iterable[str]) -> None:
        """A fault for each of `keys` that is not `known`, with the nearest one that is."""
        known = tuple(known)
        for key in keys:
            if key not in known:
                near = did_you_mean(key, known) or f"; known are {', '.join(known)}"
                self.add(f"{path}.{key}" if path else key, f"unknown key{near}")
