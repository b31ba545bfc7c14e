"""The one collector of faults, and the reader of CSV files, whose first line names columns.

A reader notes each fault with its place and goes on.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ParamSpec, TypeVar

from simreduce.errors import InputError, cut, did_you_mean, escape, near_or_all, nearest

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

    def check(self, fine: object, path: str, text: object) -> None:
        """Note a fault at a dotted path unless something is `fine`."""
        if not fine:
            self.add(path, text)

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
        for key in (key for key in keys if key not in known):
            near = near_or_all(key, known, "; known keys: ")
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


def read_csv(
    content: str, keys: Sequence[str], example: str, faults: Faults, refuse: type[InputError]
) -> list[tuple[str, dict[str, str]]]:
    """Return (`line 3`, its cells by column) of each row.

    The first line names columns, of `keys`; `example` is such a line. Empty lines and those that
    begin with # do not count. A line that is no row is a fault. Raises `refuse` with every fault if
    the first line is wrong.
    """
    before = len(faults.problems)
    lines = [
        (f"line {i}", line)
        for i, line in enumerate(content.split("\n"), 1)
        if line.strip() and line[0] != "#"
    ]
    if not lines:
        faults.add("", f"empty; the first line names the columns: {example}")
        faults.raise_any(refuse)
    (place, header), *rows = [(place, _cells(faults, place, line)) for place, line in lines]
    damaged = len(faults.problems)
    if header and not any(key in keys or did_you_mean(key, keys) for key in header):
        del faults.problems[before:]
        faults.add(place, f"no columns; expected a CSV file that begins with {example}")
        faults.raise_any(refuse)
    faults.unknown(place, header, keys)
    for key in keys:
        if header.count(key) > 1:
            faults.add(place, f"two columns {key!r}")
    wrong_header = not header or len(faults.problems) > damaged
    for where, row in rows:
        if row and len(row) != len(header):
            fields = f"{len(row)} {'field' if len(row) == 1 else 'fields'}"
            faults.add(where, f"{fields} where the header has {len(header)}")
    if wrong_header:
        faults.raise_any(refuse)
    return [
        (where, dict(zip(header, row, strict=True)))
        for where, row in rows
        if len(row) == len(header)
    ]


def _cells(faults: Faults, place: str, line: str) -> list[str]:
    """The cells of one line, in which a quoted cell must end; none after a fault."""
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        faults.add(place, error)
        return []
