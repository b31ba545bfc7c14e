"""Handles on what ops make, for planners: one value, an array of them, or rows by tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, NamedTuple, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

from simreduce.computing.arrays import Ints

T = TypeVar("T")

Many: TypeAlias = "slice | EllipsisType | npt.NDArray[Any] | tuple[Any, ...] | None"
"""An index of numpy arrays that is no integer."""


class Value(NamedTuple):
    """A handle on what op `op` makes: elements [lo, hi) on a device."""

    op: int
    device: int
    lo: int
    hi: int
    dtype: int


@dataclass(frozen=True, slots=True, eq=False)
class _Handles:
    """Arrays of one shape: the ops that make values, their devices and their intervals."""

    op: Ints
    device: Ints
    lo: Ints
    hi: Ints

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of every array."""
        return self.lo.shape

    def __len__(self) -> int:
        return len(self.lo)

    def _arrays(self, change: Callable[[Ints], T]) -> tuple[T, T, T, T]:
        return change(self.op), change(self.device), change(self.lo), change(self.hi)


@dataclass(frozen=True, slots=True, eq=False)
class Values(_Handles, Sequence[Value]):
    """Handles on many values: arrays of one shape, whatever axes a planner finds handy, and one
    dtype.

    A one-dimensional `Values` is a sequence of `Value`: `len`, iteration and `values[3]`. Every
    other index is numpy's (slices, index arrays, masks, `...`) and gives a `Values`.
    """

    dtype: int = 0

    @staticmethod
    def of(values: Sequence[Value]) -> Values:
        """One axis of values, which have one dtype."""
        if isinstance(values, Values):
            return values
        op, device, lo, hi, _ = np.array(values, dtype=np.int64).reshape(-1, 5).T
        return Values(op, device, lo, hi, values[0].dtype if values else 0)

    @staticmethod
    def stack(parts: Sequence[Values], axis: int = 0) -> Values:
        """Join arrays of one shape along a new axis."""
        return _join(parts, lambda arrays: np.stack(arrays, axis))

    @staticmethod
    def concatenate(parts: Sequence[Values], axis: int = 0) -> Values:
        """Join arrays along an axis that they have."""
        return _join(parts, lambda arrays: np.concatenate(arrays, axis))

    @property
    def elements(self) -> Ints:
        """How many elements each value has."""
        return self.hi - self.lo

    def __iter__(self) -> Iterator[Value]:
        for op, device, lo, hi in zip(*self._arrays(np.ndarray.tolist), strict=True):
            yield Value(op, device, lo, hi, self.dtype)

    @overload
    def __getitem__(self, index: int) -> Value: ...
    @overload
    def __getitem__(self, index: Many) -> Values: ...
    def __getitem__(self, index: int | Many) -> Value | Values:
        if self.lo.ndim == 1 and isinstance(index, (int, np.integer)):
            return Value(*self._arrays(lambda array: int(array[index])), self.dtype)
        return self._each(lambda array: array[index])

    def reshape(self, *shape: int) -> Values:
        """The same values in another shape."""
        return self._each(lambda array: array.reshape(shape))

    def swapaxes(self, a: int, b: int) -> Values:
        """The same values with two axes exchanged."""
        return self._each(lambda array: array.swapaxes(a, b))

    def view(self, lo: Ints, hi: Ints) -> Values:
        """Parts of the values, which an op that reads them needs no op for; `lo` and `hi` broadcast
        with them.
        """
        if lo.shape == hi.shape == self.shape:  # which numpy takes long to find out
            return Values(self.op, self.device, lo, hi, self.dtype)
        op, device, lo, hi = np.broadcast_arrays(self.op, self.device, lo, hi)
        return Values(op, device, lo, hi, self.dtype)

    def cut(self, pieces: int) -> Values:
        """Views of every value in `pieces` parts of nearly equal size, along a new last axis."""
        # elements * i // pieces, which might be more than 64 bits hold on the way
        each, more = self.elements[..., None] // pieces, self.elements[..., None] % pieces
        place = np.arange(pieces + 1)
        edges: Ints = self.lo[..., None] + each * place + more * place // pieces
        return self._each(lambda array: array[..., None]).view(edges[..., :-1], edges[..., 1:])

    def with_ops(self, op: Ints) -> Values:
        """The same devices and intervals, made by other ops."""
        return Values(op, self.device, self.lo, self.hi, self.dtype)

    def on(self, device: Ints) -> Values:
        """The same ops and intervals, said to be on other devices; `device` broadcasts with
        them.
        """
        op, device, lo, hi = np.broadcast_arrays(self.op, device, self.lo, self.hi)
        return Values(op, device, lo, hi, self.dtype)

    def _each(self, change: Callable[[Ints], Ints]) -> Values:
        return Values(*self._arrays(change), self.dtype)


def _join(parts: Sequence[Values], join: Callable[[list[Ints]], Ints]) -> Values:
    return Values(
        join([p.op for p in parts]), join([p.device for p in parts]),
        join([p.lo for p in parts]), join([p.hi for p in parts]), parts[0].dtype,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class ValueTable(_Handles, Sequence[Values]):
    """Rows of as many values each. All values of a row have one dtype, and rows may differ in it.

    `op`, `device`, `lo` and `hi` have the shape (rows, width), `dtype` has one entry for each row.
    """

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

    @overload
    def __getitem__(self, index: int) -> Values: ...
    @overload
    def __getitem__(self, index: slice | Ints) -> ValueTable: ...
    def __getitem__(self, index: int | slice | Ints) -> Values | ValueTable:
        parts = self._arrays(lambda array: array[index])
        if isinstance(index, (int, np.integer)):
            return Values(*parts, int(self.dtype[index]))
        return ValueTable(*parts, self.dtype[index])

    def moved(self, op: Ints, shift: Ints) -> ValueTable:
        """Values of other ops, whose addresses are `shift` further on."""
        return ValueTable(op, self.device, self.lo + shift, self.hi + shift, self.dtype)

    def columns(self, first: int, last: int) -> ValueTable:
        """The columns from `first` to before `last`."""
        return ValueTable(*self._arrays(lambda array: array[:, first:last]), self.dtype)

    def column(self, place: int) -> list[Value]:
        """One column, value by value."""
        arrays = self._arrays(lambda array: array[:, place].tolist())
        return [Value(*each) for each in zip(*arrays, self.dtype.tolist(), strict=True)]

    def by_dtype(self) -> Iterator[Values]:
        """All values, in stretches of rows of one dtype."""
        edges = np.flatnonzero(np.diff(self.dtype)) + 1
        for first, last in zip([0, *edges], [*edges, len(self)], strict=True):
            if first < last:
                some = self[first:last]
                yield Values(some.op, some.device, some.lo, some.hi, int(some.dtype[0]))
