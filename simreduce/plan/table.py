"""Values in rows: what planners are given, tensor by tensor, and what they give back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from simreduce.computing.arrays import Ints
from simreduce.plan.values import Value, Values


@dataclass(frozen=True, slots=True, eq=False)
class ValueTable(Sequence[Values]):
    """Rows of as many values each. All values of a row have one dtype, and rows may differ in it.

    `op`, `device`, `lo` and `hi` have the shape (rows, width), `dtype` has one entry for each row.
    """

    op: Ints
    device: Ints
    lo: Ints
    hi: Ints
    dtype: Ints

    @staticmethod
    def of(rows: Sequence[Sequence[Value]]) -> ValueTable:
        """Rows of equal length."""
        if isinstance(rows, ValueTable):
            return rows
        each = [Values.of(row) for row in rows]
        if not each:
            return ValueTable.empty(0)
        return ValueTable(
            np.stack([v.op for v in each]), np.stack([v.device for v in each]),
            np.stack([v.lo for v in each]), np.stack([v.hi for v in each]),
            np.array([v.dtype for v in each], dtype=np.int64),
        )  # fmt: skip

    @staticmethod
    def empty(width: int) -> ValueTable:
        """No rows of that width."""
        none = np.zeros((0, width), dtype=np.int64)
        return ValueTable(none, none, none, none, none[:, 0] if width else none.reshape(-1))

    @staticmethod
    def stacked(values: Values) -> ValueTable:
        """The table of values with two axes."""
        dtype = np.full(len(values), values.dtype, dtype=np.int64)
        return ValueTable(values.op, values.device, values.lo, values.hi, dtype)

    @staticmethod
    def of_columns(columns: Sequence[Sequence[Value]]) -> ValueTable:
        """Columns of equal length, whose first has the dtypes of all."""
        table = np.array(columns, dtype=np.int64).reshape(len(columns), -1, len(Value._fields))
        op, device, lo, hi, dtype = np.moveaxis(table.swapaxes(0, 1), -1, 0)
        return ValueTable(op, device, lo, hi, dtype[:, 0])

    @staticmethod
    def concatenate(parts: Sequence[ValueTable], axis: int = 0) -> ValueTable:
        """Tables below each other, or along axis 1 beside each other."""
        if len(parts) == 1:
            return parts[0]
        op, device, lo, hi = (
            np.concatenate([getattr(part, name) for part in parts], axis)
            for name in ("op", "device", "lo", "hi")
        )
        dtype = parts[0].dtype if axis else np.concatenate([part.dtype for part in parts])
        return ValueTable(op, device, lo, hi, dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and width."""
        return self.op.shape

    def __len__(self) -> int:
        return len(self.op)

    def __iter__(self) -> Iterator[Values]:
        return map(self.__getitem__, range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Values: ...
    @overload
    def __getitem__(self, index: slice | Ints) -> ValueTable: ...
    def __getitem__(self, index: int | slice | Ints) -> Values | ValueTable:
        parts = self.op[index], self.device[index], self.lo[index], self.hi[index]
        if isinstance(index, (int, np.integer)):
            return Values(*parts, int(self.dtype[index]))
        return ValueTable(*parts, self.dtype[index])

    def moved(self, op: Ints, shift: Ints) -> ValueTable:
        """Values of other ops, whose addresses are `shift` further on."""
        return ValueTable(op, self.device, self.lo + shift, self.hi + shift, self.dtype)

    def columns(self, first: int, last: int) -> ValueTable:
        """The columns from `first` to before `last`."""
        some = slice(first, last)
        parts = self.op[:, some], self.device[:, some], self.lo[:, some], self.hi[:, some]
        return ValueTable(*parts, self.dtype)

    def column(self, place: int) -> list[Value]:
        """One column, value by value."""
        arrays = (array[:, place].tolist() for array in (self.op, self.device, self.lo, self.hi))
        return [Value(*each) for each in zip(*arrays, self.dtype.tolist(), strict=True)]

    def by_dtype(self) -> Iterator[Values]:
        """All values, in stretches of rows of one dtype."""
        edges = np.flatnonzero(np.diff(self.dtype)) + 1
        for first, last in zip([0, *edges], [*edges, len(self)], strict=True):
            if first < last:
                some = slice(first, last)
                parts = self.op[some], self.device[some], self.lo[some], self.hi[some]
                yield Values(*parts, int(self.dtype[first]))
