"""Verbs for planners. A planner names values and devices; the builder appends ops.

b = PlanBuilder(("gpu0", "gpu1"))
x = b.input(0, 0, 8), b.input(1, 0, 8)
total = b.add([x[0], b.copy(x[1], 0)])
for value in (total, b.copy(total, 1)):
    b.output(value)
plan = b.finish(Contract.all_reduce([0, 1], [(0, 8, 0)]))

Verbs in the plural (`copies`, `adds`, `joins`, ...) append one op per element of the arrays of a
`Values`, in C order: what a planner of thousands of ranks does in one call, where the singular
verbs would take one call an op.

Intervals of ops are appended again and again by array arithmetic: on other values, at other
addresses, on other devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from simreduce.computing.arrays import BLOCK, AnyInts, Ints, ranges, row_starts
from simreduce.computing.workers import charge
from simreduce.plan.ops import COLUMNS, Numbers, OpList, too_large
from simreduce.plan.plan import IN_PLACE, NO_STREAM, ZEROS, Contract, Kind, Plan
from simreduce.plan.values import Value, Values

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


class PlanBuilder(IntervalList):
    """The verbs of planners; each appends ops.

    With `machines`, as many equal machines do what is appended (see `Plan`).
    """

    def __init__(self, devices: Sequence[str], machines: int = 1) -> None:
        super().__init__(devices)
        self.machines = machines
        self._copied: dict[tuple[int, int, int, int], Value] = {}

    def stream(self, device: int, channel: int = 0) -> int:
        """The stream of `channel` on `device`: ops given it run one after another in
        program order.
        """
        return channel * len(self.devices) + device

    def input(
        self,
        device: int,
        lo: int,
        hi: int,
        dtype: int = 0,
        *,
        contributor: int | None = None,
        after: Sequence[int] = (),
    ) -> Value:
        """Part of a gradient that exists on `device`, not before the ops `after` are done.

        The contributor is the device's rank unless given.
        """
        arg = device if contributor is None else contributor
        return self._append(Kind.INPUT, device, lo, hi, dtype, (), arg=arg, after=after)

    def zeros(self, device: int, lo: int, hi: int, dtype: int = 0) -> Value:
        """Zero padding for the addresses [lo, hi)."""
        return self.input(device, lo, hi, dtype, contributor=ZEROS)

    def barrier(self, device: int, after: Sequence[int], stream: int = NO_STREAM) -> int:
        """An empty INPUT that exists once all the ops `after` are done; its id, for the `after` of
        others.
        """
        return self._append(
            Kind.INPUT, device, 0, 0, 0, (), arg=ZEROS, after=after, stream=stream
        ).op

    def slice(self, value: Value, lo: int, hi: int, *, after: Sequence[int] = ()) -> Value:
        """Narrow `value` to [lo, hi) by an op of its own (a view in an operand needs none), after
        the ops `after`.
        """
        return self._append(Kind.SLICE, value.device, lo, hi, value.dtype, (value.op,), after=after)

    def split(self, value: Value, sizes: Iterable[int], *, lone: bool = False) -> list[Value]:
        """Cut `value` from its start into pieces of the given sizes; one piece that is all of it is
        no op unless `lone`.
        """
        sizes, pieces, lo = list(sizes), [], value.lo
        for size in sizes:
            # Every piece of an empty value is a value of its own, or copies of them would be taken
            # for one.
            whole = size == value.hi - value.lo and (size > 0 or len(sizes) == 1)
            pieces.append(value if whole and not lone else self.slice(value, lo, lo + size))
            lo += size
        return pieces

    def concat(
        self, values: Sequence[Value], *, in_place: bool = False, lone: bool = False
    ) -> Value:
        """Join adjacent intervals on one device; a single value is returned as it is unless `lone`.

        `in_place`: they lie in one buffer already, so that no runtime spends anything on it.
        """
        if len(values) == 1 and not lone:
            return values[0]
        first, last = values[0], values[-1]
        operands = tuple(v.op for v in values)
        arg = IN_PLACE if in_place else 0
        return self._append(
            Kind.CONCAT, first.device, first.lo, last.hi, first.dtype, operands, arg=arg
        )

    def hold(self, value: Value, after: Sequence[int]) -> Value:
        """The same value, but not before the ops `after` are done; costs nothing."""
        return self._append(Kind.CONCAT, *value[1:], (value.op,), arg=IN_PLACE, after=after)

    def copy(
        self,
        value: Value,
        device: int,
        lo: int | None = None,
        hi: int | None = None,
        *,
        stream: int = NO_STREAM,
        after: Sequence[int] = (),
    ) -> Value:
        """Move `value` (or its part [lo, hi)) to `device`.

        A copy to where it is already is the value (or a view of it) itself, and a second copy to
        one device is the first: the runtimes send a value once per destination.
        """
        lo = value.lo if lo is None else lo
        hi = value.hi if hi is None else hi
        if device == value.device:
            return value._replace(lo=lo, hi=hi)
        key = (value.op, lo, hi, device)
        if key not in self._copied:
            self._copied[key] = self._append(
                Kind.COPY, device, lo, hi, value.dtype, (value.op,), stream=stream, after=after
            )
        return self._copied[key]

    def add(self, values: Sequence[Value], *, stream: int = NO_STREAM) -> Value:
        """The n-ary sum, on the device where all `values` are, over the interval they have in
        common.
        """
        _, device, lo, hi, dtype = values[0]
        # quicker than max() and min() of generators, and this is where planners spend their time
        for v in values:
            lo, hi = (v.lo if v.lo > lo else lo), (v.hi if v.hi < hi else hi)  # noqa: FURB136
        return self._append(
            Kind.ADD, device, lo, hi, dtype, tuple([v.op for v in values]), stream=stream
        )

    def add_on(self, device: int, values: Sequence[Value]) -> Value:
        """The n-ary sum of `values` on `device`, all brought there; a lone value stays what and
        where it is.

        (TensorFlow's `add_n` of one tensor is that tensor.)
        """
        return (
            values[0]
            if len(values) == 1
            else self.add([self.copy(value, device) for value in values])
        )

    def scale(self, value: Value, divisor: int) -> Value:
        """Divide by a count."""
        return self._append(Kind.SCALE, *value[1:], (value.op,), arg=divisor)

    def cast(self, value: Value, dtype: int) -> Value:
        """The same elements in another dtype."""
        return self._append(Kind.CAST, value.device, value.lo, value.hi, dtype, (value.op,))

    def output(self, value: Value) -> Value:
        """Declare `value` a result on its device."""
        return self._append(Kind.OUTPUT, *value[1:], (value.op,))

    def again(
        self, plan: Plan, op: int, operands: Sequence[Value], after: Sequence[int] = ()
    ) -> Value:
        """Op `op` of `plan` once more, on these operands, after the ops `after` and on no stream.
        The executor is the builder's.
        """
        kind, device = Kind(plan.kind[op]), int(plan.device[op])
        lo, hi, dtype, arg = (int(c[op]) for c in (plan.lo, plan.hi, plan.dtype, plan.arg))
        return self._append(
            kind, device, lo, hi, dtype, tuple(v.op for v in operands), arg=arg, after=after
        )

    def walk(
        self,
        value: Value,
        path: Iterable[int],
        own: Callable[[int], Value] | None = None,
    ) -> list[Value]:
        """Carry `value` from device to device; with `own`, add each device's own value on arrival.

        Returns what each device of `path` ends up with.
        """
        seen = []
        for device in path:
            arrived = self.copy(value, device)
            value = self.add([arrived, own(device)]) if own else arrived
            seen.append(value)
        return seen

    # The same in the plural.

    def streams(self, devices: Ints, channel: Numbers = 0) -> Ints:
        """The streams of `channel` on `devices`."""
        return channel * len(self.devices) + devices

    def inputs(self, device: Ints, lo: Numbers, hi: Numbers, dtype: int = 0) -> Values:
        """Parts of gradients that exist on the devices; the contributor is the device's rank."""
        begin, end = (
            np.broadcast_to(np.asarray(each, dtype=np.int64), device.shape) for each in (lo, hi)
        )
        return self._extend(Kind.INPUT, Values(device, device, begin, end, dtype), arg=device)

    def paddings(self, device: Ints, lo: Ints, hi: Ints, dtype: int = 0) -> Values:
        """Zeros for the addresses [lo, hi) on the devices."""
        return self._extend(Kind.INPUT, Values(device, device, lo, hi, dtype), arg=ZEROS)

    def copies(
        self,
        values: Values,
        device: Ints,
        *,
        stream: Numbers = NO_STREAM,
        after: Sequence[int] | Ints = (),
        away: Numbers = 0,
    ) -> Values:
        """Move every value to the device of the same place in `device`, after the ops `after`: all
        of them or, of an array, the one at the same place. In a folded plan they are fetched from
        the machine that is `away` (which is broadcast) on.

        Unlike `copy`, each makes an op: a planner must not send a value to where it is, nor to one
        device twice.
        """
        lo, hi = values.lo, values.hi
        if not device.shape == lo.shape == hi.shape:
            device, lo, hi = np.broadcast_arrays(device, lo, hi)
        moved = Values(values.op, device, lo, hi, values.dtype)
        if isinstance(away, np.ndarray):
            away = np.broadcast_to(away, moved.shape)
        return self._extend(Kind.COPY, moved, [values.op], arg=away, stream=stream, after=after)

    def barriers(self, device: Ints, count: Ints, after: Ints) -> Ints:
        """By device: an empty INPUT that exists once the next count[i] of the ops `after` are done.
        The ids, for `after`.
        """
        nothing = np.zeros_like(device)
        made = Values(device, device, nothing, nothing)
        return self._extend(Kind.INPUT, made, arg=ZEROS, after=after, count=count).op

    def adds(self, terms: Sequence[Values], *, stream: Numbers = NO_STREAM) -> Values:
        """Elementwise n-ary sums: entry i adds entry i of every term, over the interval they have
        in common.
        """
        first = terms[0]
        lo = reduce(np.maximum, [t.lo for t in terms])
        hi = reduce(np.minimum, [t.hi for t in terms])
        result = Values(first.op, first.device, lo, hi, first.dtype)
        return self._extend(Kind.ADD, result, [t.op for t in terms], stream=stream)

    def slices(self, values: Values) -> Values:
        """Every value by an op of its own: what `joins` needs of views."""
        return self._extend(Kind.SLICE, values, [values.op])

    def joins(self, values: Values, *, in_place: bool = True) -> Values:
        """Join the adjacent intervals along the last axis, which with `in_place` lie in one buffer
        already (a CONCAT in place, free).

        An axis of one entry is only dropped.
        """
        first, last = values[..., 0], values[..., -1]
        if values.shape[-1] == 1:
            return first
        whole = Values(first.op, first.device, first.lo, last.hi, values.dtype)
        return self._extend(Kind.CONCAT, whole, values.op, arg=IN_PLACE if in_place else 0)

    def scales(self, values: Values, divisor: int) -> Values:
        """Divide every value by a count."""
        return self._extend(Kind.SCALE, values, [values.op], arg=divisor)

    def outputs(self, values: Values) -> Values:
        """Declare every value a result on its device."""
        return self._extend(Kind.OUTPUT, values, [values.op])

    def finish(self, contract: Contract) -> Plan:
        """The plan, with its promise. The builder must not be used afterwards."""
        columns = self._finish_columns()
        devices = tuple(self.devices)
        charge(len(columns["kind"]))
        return Plan(devices=devices, **columns, contract=contract, machines=self.machines)
