"""The one collector of faults: a reader notes each with its place and goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ParamSpec, TypeVar

from simreduce.errors import InputError, cut, did_you_mean, escape, nearest

P = ParamSpec("P")
T = TypeVar("T")

MOST_FAULTS = 1000
_LONGEST_SOURCE = 4096
"""Characters of the longest path that Linux opens; a longer one names no file and is cut."""


def inside(path: str, key: str) -> str:
    """The path of a key in what is at `path`: a table, or a line of a CSV file."""
    if not path:
        return key
    return f"{path}: {key}" if path.startswith("line ") else f"{path}.{key}"


class Faults:
    """The faults found so far, as `source: path: text`.

    `origin` maps a dotted path to the file that wrote it, where that is another than `source`.
    `options` maps a key to the option that gave it, which then replaces the whole place.
    """

    def __init__(
        self,
        source: str = "",
        origin: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.problems: list[str] = []
        self._source = source if len(source) <= _LONGEST_SOURCE else cut(source)
        self._origin = origin or {}
        self._options = options or {}

    def add(self, path: str, text: object) -> None:
        """Note a fault at a dotted path, "" for the whole source."""
        if len(self.problems) < MOST_FAULTS:
            places = (*self._place(path), str(text))
            self.problems.append(": ".join(escape(place) for place in places if place))
        elif len(self.problems) == MOST_FAULTS:
            source = f"{self._source}: " if self._source else ""
            self.problems.append(f"{source}there are more faults than these {MOST_FAULTS}")

    def _place(self, path: str) -> tuple[str, str]:
        stem = path
        while stem:
            if stem in self._options:
                return self._options[stem], ""
            if stem in self._origin:
                return self._origin[stem], path
            cut_at = max(stem.rfind("."), stem.rfind("["))
            stem = stem[:cut_at] if cut_at > 0 else ""
        return self._source, path

    def unknown(self, path: str, keys: Iterable[str], known: Iterable[str]) -> None:
        """Note each of `keys` that is not `known`, with the nearest that is."""
        known = tuple(known)
        for key in keys:
            if key not in known:
                near = did_you_mean(key, known) or f"; known keys: {', '.join(known)}"
                self.add(inside(path, key), f"unknown key{near}")

    def respell(
        self, path: str, table: Mapping[str, T], needed: Sequence[str], others: Sequence[str] = ()
    ) -> dict[str, T]:
        """The table of a foreign format with keys that are misspelt put right, each noted.

        Only `needed` keys that the table lacks can be meant, and not by `others` that the format
        has. Keys that are like none stay: the format may have more than we know.
        """
        found = dict(table)
        for key in table:
            lacking = [each for each in needed if each not in found]
            near = "" if key in needed or key in others else nearest(key, lacking)
            if near:
                self.add(inside(path, key), f"unknown key (did you mean {near!r}?)")
                found[near] = found.pop(key)
        return found

    def attempt(
        self, path: str, load: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """Return what `load` returns, or note its faults at `path` and return None."""
        try:
            return load(*args, **kwargs)
        except InputError as error:
            for problem in error.problems:
                self.add(path, problem)
        except ValueError as error:
            self.add(path, error)
        return None

    def raise_any(self, refuse: type[InputError] = InputError) -> None:
        """Raise `refuse` with every fault, if there is one."""
        if self.problems:
            raise refuse(self.problems)

    def require(self, value: T | None) -> T:
        """The value of an `attempt`; InputError with every fault if there is one."""
        self.raise_any()
        assert value is not None  # noqa: S101 - an attempt without a fault has a value
        return value
