"""A table of a scenario, whose keys are read one by one; faults are collected, each under the
table's name and its key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from simreduce.errors import did_you_mean, shown

T = TypeVar("T")

_NAMES = {str: "text", bool: "true or false", list: "a list"}

MOST = 1_000_000
"""Of what is counted, unless it is told."""


class Table:
    """The table `given`, which faults call `place`."""

    def __init__(self, place: str, given: Mapping[str, Any]) -> None:
        self.place, self.given = place, given
        self.problems: list[str] = []
        self._known: list[str] = []

    def take(self, key: str) -> Any:
        """The value of a key, None if it is not there."""
        self._known.append(key)
        return self.given.get(key)

    def known(self, *keys: str) -> None:
        """These keys are right, whatever their values are."""
        self._known += keys

    def fault(self, key: str, text: object) -> None:
        """Something is wrong with a key."""
        self.problems.append(f"{self.place}.{key}: {text}")

    def typed(self, key: str, kind: type[T], what: str = "") -> T | None:
        """The value, if it is there and of that type, which is `what`."""
        value = self.take(key)
        if value is None or isinstance(value, kind):
            return value
        self.fault(key, f"expected {what or _NAMES[kind]}, not {shown(value)}")
        return None

    def whole(self, key: str, default: int | None, least: int, most: int = MOST) -> int | None:
        """A whole number."""
        value = self.take(key)
        return default if value is None else self.number(key, value, least, most)

    def number(self, key: str, value: object, least: int, most: int) -> int | None:
        """`value` as a whole number for a key."""
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self.fault(key, f"expected a whole number from {least} to {most}, not {shown(value)}")
            return None
        return value

    def quantity(
        self, key: str, reader: Callable[[object], T], default: T | None = None
    ) -> T | None:
        """What a function of `units` reads."""
        value = self.take(key)
        return default if value is None else self.read(key, value, reader)

    def required(self, key: str, reader: Callable[[object], T]) -> T | None:
        """Likewise, and it must be there."""
        value = self.take(key)
        if value is None:
            self.fault(key, "missing")
            return None
        return self.read(key, value, reader)

    def read(self, key: str, value: object, reader: Callable[[object], T]) -> T | None:
        """`value` as a quantity for a key."""
        try:
            return reader(value)
        except ValueError as error:
            self.fault(key, error)
            return None

    def only(self, keys: Collection[str]) -> None:
        """Tell the keys that are none of these."""
        for key in self.given:
            if key not in keys:
                self.fault(key, f"unknown key{did_you_mean(key, keys)}")

    def close(self) -> None:
        """Tell what nobody has asked for."""
        self.only(self._known)
