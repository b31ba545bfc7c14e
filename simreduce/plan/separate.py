"""Ops of many groups planned at once, and put into the plan group by group.

What a planner does with one tensor it does with a thousand in the same calls, if each of them has
devices of its own. Then only the program order is missing, which a stable sort by group gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np

from simreduce.computing.arrays import AnyInts, Ints, ranges, row_starts
from simreduce.plan.builder import PlanBuilder
from simreduce.plan.plan import NO_STREAM
from simreduce.plan.values import Values


class _Names(Sequence[str]):
    """The names of the devices of all groups."""

    def __init__(self, names: Sequence[str], groups: int) -> None:
        self.names, self.groups = names, groups

    def __len__(self) -> int:
        return len(self.names) * self.groups

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.names[index % len(self.names)]


class SeparateBuilder(PlanBuilder):
    """A builder whose ops `settle` appends to `b`, group 0's first.

    Group g has every device of `b`, as number g * len(b.devices) + device. Within a group the ops
    keep their order. Nothing else may be appended to `b` in between.
    """

    def __init__(self, b: PlanBuilder, groups: int) -> None:
        super().__init__((), b.machines)
        self.devices = _Names(b.devices, groups)
        self.executor = b.executor
        self._b, self._place = b, np.zeros(0, dtype=np.int64)
        self._first = self._before = len(b)

    def lift(self, values: Values, group: Ints) -> Values:
        """The values as their groups know them; `group` broadcasts with them."""
        return values.on(values.device % len(self._b.devices) + group * len(self._b.devices))

    def settle(self) -> None:
        """Append the ops to `b`, in which `settled` then finds them."""
        self._flush()
        columns = {name: column.current() for name, column in self._columns.items()}
        count = len(self._b.devices)
        group, device = np.divmod(columns["device"], count)
        order = np.argsort(group, kind="stable")
        self._place = np.empty(len(order), dtype=np.int64)
        self._place[order] = np.arange(self._first, self._first + len(order))
        channel, there = np.divmod(columns["stream"], len(self.devices))
        stream = channel * count + there % count
        columns["device"] = device
        columns["stream"] = np.where(columns["stream"] == NO_STREAM, NO_STREAM, stream)
        rows = {
            name: self._rows_in_order(columns[f"{name}_count"], columns.pop(f"{name}s"), order)
            for name in ("operand", "control")
        }
        ordered = [column[order] for column in columns.values()]
        self._b.append(ordered, operands=rows["operand"], controls=rows["control"])

    def _rows_in_order(self, count: AnyInts, used: AnyInts, order: Ints) -> Ints:
        """Return what ops use, row by row in another order, as the ops' numbers in `b`."""
        if not len(used):
            return used.astype(np.int64)
        start = row_starts(count)[:-1]
        return self._numbers(used.astype(np.int64)[ranges(start[order], count[order])])

    def _numbers(self, op: Ints) -> Ints:
        """Numbers in `b` of ops of this builder, or of `b`."""
        if not len(self._place):
            return op
        here = op >= self._first
        return np.where(here, self._place[np.where(here, op - self._first, 0)], op)

    def settled(self, values: Values) -> Values:
        """Values of this builder, or of `b`, as `b` knows them."""
        device = values.device % len(self._b.devices)
        return Values(self._numbers(values.op), device, values.lo, values.hi, values.dtype)
