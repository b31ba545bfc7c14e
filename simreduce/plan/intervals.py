"""Intervals of ops that are appended again and again by array arithmetic: on other values, at other
addresses, on other devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simreduce.computing.arrays import BLOCK, AnyInts, Ints, ranges, row_starts
from simreduce.plan.ops import COLUMNS, Numbers, OpList, too_large
from simreduce.plan.plan import Kind

_ROWS = "operand", "control"
_OF_OPS = tuple(name for name in COLUMNS if name.removesuffix("s") not in _ROWS)
"""The columns with one number for each op."""


class PlanMark(NamedTuple):
    """How many ops, operands and controls there are at some time."""

    ops: int
    operands: int
    controls: int


class OpInterval(NamedTuple):
    """The ops between two marks, and the ops before them that they may use."""

    begin: PlanMark
    end: PlanMark
    used: Ints

    def __len__(self) -> int:
        return self.end.ops - self.begin.ops

    def relative(self, ops: AnyInts) -> Ints | None:
        """Return the place of each op in the interval, or -1 - its place in `used` if it is before.

        None if an op is neither.
        """
        place = ops.astype(np.int64) - self.begin.ops
        before = np.flatnonzero(place < 0)
        if len(before):
            known, first = np.unique(self.used, return_index=True)
            at = np.searchsorted(known, ops[before]).clip(0, max(len(known) - 1, 0))
            if not len(known) or (known[at] != ops[before]).any():
                return None
            place[before] = -1 - first[at]
        return place


class _Parts(NamedTuple):
    """The columns of some intervals, one after another."""

    start: Ints
    numbers: Mapping[str, Numbers]
    row_start: Mapping[str, Ints]
    rows: Mapping[str, Ints]


class IntervalList(OpList):
    """A list of ops that can append intervals of itself again."""

    def mark(self) -> PlanMark:
        """The place of the next op."""
        return PlanMark(
            len(self),
            self._columns["operands"].size + len(self._operands),
            self._columns["controls"].size + len(self._controls),
        )

    def is_closed(self, interval: OpInterval) -> bool:
        """Whether the interval uses no other ops than it may, so that it can be repeated."""
        self._flush()
        return all(
            interval.relative(self._columns[f"{name}s"].part(begin, end)) is not None
            for name, begin, end in zip(_ROWS, interval.begin[1:], interval.end[1:], strict=True)
        )

    def repeat(
        self,
        intervals: Sequence[OpInterval],
        which: Ints,
        instead: Ints,
        *,
        shift: Ints | None = None,
        devices: Ints | None = None,
    ) -> None:
        """Append intervals, which must be closed, again: copy c repeats intervals[which[c]].

        What ops read or wait for within the interval, they do within its copy. For an op before the
        interval, used[i], they take instead[c, i]. Addresses are shift[c] further on, except the
        addresses of barriers, which have none. With `devices`, all ops of copy c, and their
        contributions, are on devices[c].
        """
        self._flush()
        size = np.array([len(interval) for interval in intervals], dtype=np.int64)[which]
        if len(self) + int(size.sum()) > self._most:
            raise too_large(len(self) + int(size.sum()))
        present, which = np.unique(which, return_inverse=True)
        parts = self._parts([intervals[i] for i in present.tolist()])
        if shift is None:
            shift = np.zeros(len(which), dtype=np.int64)
        for some in _blocks(size):
            on = None if devices is None else devices[some]
            alike = bool((which[some] == which[some.start]).all())
            write = self._write_one if alike else self._write_many
            write(parts, which[some], instead[some], shift[some], on)

    def _parts(self, intervals: Sequence[OpInterval]) -> _Parts:
        """The columns of the intervals, operands and controls as `OpInterval.relative`."""
        numbers: dict[str, Numbers] = {}
        for name in _OF_OPS:
            column = self._columns[name]
            some = [column.part(s.begin.ops, s.end.ops) for s in intervals]
            numbers[name] = np.concatenate(some) if column.only is None else column.only
        row_start, rows = {}, {}
        for i, name in enumerate(_ROWS, 1):
            used = self._columns[f"{name}s"]
            found = [s.relative(used.part(s.begin[i], s.end[i])) for s in intervals]
            rows[name] = np.concatenate([each for each in found if each is not None])
            row_start[name] = row_starts(np.array([s.end[i] - s.begin[i] for s in intervals]))
        start = row_starts(np.array([len(interval) for interval in intervals]))
        return _Parts(start, numbers, row_start, rows)

    def _write_one(
        self, parts: _Parts, which: Ints, instead: Ints, shift: Ints, devices: Ints | None
    ) -> None:
        """Append copies of one interval."""
        copies, part = len(which), slice(*parts.start[which[0] : which[0] + 2].tolist())
        size = part.stop - part.start
        numbers = {
            name: column if isinstance(column, int) else column[part][None]
            for name, column in parts.numbers.items()
        }
        _move(numbers, shift[:, None])
        if devices is not None:
            _place(numbers, devices[:, None])
        flat: dict[str, Ints] = {}
        base = (len(self) + size * np.arange(copies))[:, None]
        for name, rows in parts.rows.items():
            start = parts.row_start[name][which[0] : which[0] + 2]
            used = rows[slice(*start.tolist())]
            flat[name] = used + base
            before = np.flatnonzero(used < 0)
            flat[name][:, before] = instead[:, -1 - used[before]]
        columns = [
            column if isinstance(column, int) else np.broadcast_to(column, (copies, size))
            for column in numbers.values()
        ]
        operands, controls = (flat[name].reshape(-1) for name in _ROWS)
        self._write(copies * size, *columns, operands=operands, controls=controls)

    def _write_many(
        self, parts: _Parts, which: Ints, instead: Ints, shift: Ints, devices: Ints | None
    ) -> None:
        """Append copies of several intervals."""
        size = np.diff(parts.start)[which]
        place, total = ranges(parts.start[which], size), int(size.sum())
        numbers = {
            name: column if isinstance(column, int) else column[place]
            for name, column in parts.numbers.items()
        }
        _move(numbers, np.repeat(shift, size))
        if devices is not None:
            _place(numbers, np.repeat(devices, size))
        base = len(self) + np.cumsum(size) - size
        flat: dict[str, Ints] = {}
        for name, rows in parts.rows.items():
            count = np.diff(parts.row_start[name])[which]
            used = rows[ranges(parts.row_start[name][which], count)]
            copy = np.repeat(np.arange(len(which)), count)
            before = np.flatnonzero(used < 0)
            outside = instead[copy[before], -1 - used[before]]
            used += base[copy]
            used[before] = outside
            flat[name] = used
        operands, controls = (flat[name] for name in _ROWS)
        self._write(total, *numbers.values(), operands=operands, controls=controls)


def _blocks(size: Ints) -> Iterator[slice]:
    """Intervals of copies of about `BLOCK` ops in all, at least one each."""
    ends, first = row_starts(size), 0
    while first < len(size):
        last = max(int(np.searchsorted(ends, ends[first] + BLOCK, side="right")) - 1, first + 1)
        yield slice(first, last)
        first = last


def _move(numbers: dict[str, Numbers], shift: Ints) -> None:
    """Move intervals by `shift`, except the intervals of barriers."""
    if not shift.any():
        return
    has_place = (np.asarray(numbers["kind"]) != Kind.INPUT) | (np.asarray(numbers["hi"]) > 0)
    for name in ("lo", "hi"):
        numbers[name] = np.asarray(numbers[name], dtype=np.int64) + shift * has_place


def _place(numbers: dict[str, Numbers], devices: Ints) -> None:
    """Put ops, and what they contribute, on other devices."""
    arg = np.asarray(numbers["arg"])
    inputs = (np.asarray(numbers["kind"]) == Kind.INPUT) & (arg >= 0)
    numbers["arg"] = np.where(inputs, devices, arg)
    numbers["device"] = devices
