"""Verbs for planners. A planner names values and devices; the builder keeps the books.

b = PlanBuilder(("gpu0", "gpu1"))
x = b.input(0, 0, 8), b.input(1, 0, 8)
total = b.add([x[0], b.copy(x[1], 0)])
for value in (total, b.copy(total, 1)):
    b.output(value)
plan = b.finish(Contract.all_reduce([0, 1], [(0, 8, 0)]))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from simreduce.errors import PlanError, StrategyError
from simreduce.plan.contract import Contract
from simreduce.plan.plan import IN_PLACE, NO_STREAM, ZEROS, Executor, Kind, Plan

MOST_OPS = 5_000_000
"""A larger plan would take minutes and gigabytes to build op by op."""


class Value(NamedTuple):
    """A handle on what op `op` makes: elements [lo, hi) on a device."""

    op: int
    device: int
    lo: int
    hi: int
    dtype: int


class PlanBuilder:
    """Appends ops in program order. `executor` is stamped on the ops that follow; planners may set it."""

    def __init__(self, devices: Sequence[str]) -> None:
        self.devices = tuple(devices)
        self.executor = Executor.TF
        self._rows: list[tuple[int, int, int, int, int, int, int, int]] = []
        self._operands: list[int] = []
        self._operand_start: list[int] = [0]
        self._controls: list[int] = []
        self._control_start: list[int] = [0]
        self._copied: dict[tuple[int, int, int, int], Value] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def stream(self, device: int, channel: int = 0) -> int:
        """The stream of `channel` on `device`: ops given it run one after another in program order."""
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

    def barrier(self, device: int, after: Sequence[int]) -> int:
        """An empty INPUT that exists once all the ops `after` are done; its id, for the `after` of others."""
        return self.input(device, 0, 0, contributor=ZEROS, after=after).op

    def slice(self, value: Value, lo: int, hi: int) -> Value:
        """Narrow `value` to [lo, hi) by an op of its own (a view in an operand needs none)."""
        return self._append(Kind.SLICE, value.device, lo, hi, value.dtype, (value.op,))

    def split(self, value: Value, sizes: Iterable[int]) -> list[Value]:
        """Cut `value` from its start into pieces of the given sizes; one piece that is all of it is no op."""
        sizes, pieces, lo = list(sizes), [], value.lo
        for size in sizes:
            # Every piece of an empty value is a value of its own, or copies of them would be taken for one.
            whole = size == value.hi - value.lo and (size > 0 or len(sizes) == 1)
            pieces.append(value if whole else self.slice(value, lo, lo + size))
            lo += size
        return pieces

    def concat(self, values: Sequence[Value], *, in_place: bool = False) -> Value:
        """Join adjacent intervals on one device; a single value is returned as it is.

        `in_place`: they lie in one buffer already, so that no runtime spends anything on it.
        """
        if len(values) == 1:
            return values[0]
        first, last = values[0], values[-1]
        operands = tuple(v.op for v in values)
        arg = IN_PLACE if in_place else 0
        return self._append(Kind.CONCAT, first.device, first.lo, last.hi, first.dtype, operands, arg=arg)

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

        A copy to where it is already is the value (or a view of it) itself, and a second copy to one device is the first: the
        runtimes send a value once per destination.
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
        """The n-ary sum, on the device where all `values` are, over the interval they have in common."""
        _, device, lo, hi, dtype = values[0]
        for v in (
            values
        ):  # quicker than max() and min() of generators, and this is where planners spend their time
            lo, hi = (v.lo if v.lo > lo else lo), (v.hi if v.hi < hi else hi)  # noqa: FURB136
        return self._append(Kind.ADD, device, lo, hi, dtype, tuple([v.op for v in values]), stream=stream)

    def add_on(self, device: int, values: Sequence[Value]) -> Value:
        """The n-ary sum of `values` on `device`, all brought there; a lone value stays what and where it is.

        (TensorFlow's `add_n` of one tensor is that tensor.)
        """
        return values[0] if len(values) == 1 else self.add([self.copy(value, device) for value in values])

    def scale(self, value: Value, divisor: int) -> Value:
        """Divide by a count."""
        return self._append(Kind.SCALE, *value[1:], (value.op,), arg=divisor)

    def cast(self, value: Value, dtype: int) -> Value:
        """The same elements in another dtype."""
        return self._append(Kind.CAST, value.device, value.lo, value.hi, dtype, (value.op,))

    def output(self, value: Value) -> Value:
        """Declare `value` a result on its device."""
        return self._append(Kind.OUTPUT, *value[1:], (value.op,))

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

    def finish(self, contract: Contract) -> Plan:
        """The plan, with its promise. The builder must not be used afterwards."""
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, 8)
        kind, device, lo, hi, dtype, arg, stream, executor = (np.ascontiguousarray(c) for c in rows.T)
        return Plan(
            devices=self.devices,
            kind=kind.astype(np.int8),
            device=device.astype(np.int32),
            lo=lo,
            hi=hi,
            dtype=dtype.astype(np.int8),
            arg=arg.astype(np.int32),
            stream=stream.astype(np.int32),
            executor=executor.astype(np.int8),
            operand_start=np.array(self._operand_start, dtype=np.int32),
            operands=np.array(self._operands, dtype=np.int32),
            control_start=np.array(self._control_start, dtype=np.int32),
            controls=np.array(self._controls, dtype=np.int32),
            contract=contract,
        )

    def _append(
        self,
        kind: Kind,
        device: int,
        lo: int,
        hi: int,
        dtype: int,
        operands: tuple[int, ...],
        *,
        arg: int = 0,
        stream: int = NO_STREAM,
        after: Sequence[int] = (),
    ) -> Value:
        if hi < lo:
            raise PlanError(f"{kind.name} on {self.devices[device]}: the interval [{lo}, {hi}) is reversed")
        op = len(self._rows)
        if op >= MOST_OPS:
            raise StrategyError(f"the plan would have more than {MOST_OPS} ops; try fewer GPUs or gradients")
        self._rows.append((kind, device, lo, hi, dtype, arg, stream, self.executor))
        self._operands += operands
        self._operand_start.append(len(self._operands))
        self._controls += after
        self._control_start.append(len(self._controls))
        return Value(op, device, lo, hi, dtype)
