"""Columns of numbers that grow at their end."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from simreduce.computing.arrays import AnyInts

_FAR = 1 << 24
"""A column grows far ahead until it holds this many numbers."""

Numbers: TypeAlias = "int | AnyInts"
"""One number for all ops of a block, or one for each."""


class GrowingColumn:
    """A column of a plan. While all its numbers are equal it keeps only one: most plans have one
    dtype, one executor and no controls.
    """

    __slots__ = ("array", "dtype", "only", "size")

    def __init__(self, dtype: type[np.signedinteger[Any]]) -> None:
        self.dtype = dtype
        self.only: int | None = None
        self.array: AnyInts = np.empty(0, dtype=dtype)
        self.size = 0

    def extend(self, count: int, numbers: Numbers) -> None:
        """Append `count` numbers; a single number counts for all."""
        if count == 0:
            return
        end = self.size + count
        if self.size == 0 or self.only is not None:
            one = _one(numbers)
            if one is not None and (self.size == 0 or one == self.only):
                self.only, self.size = one, end
                return
        if end > len(self.array):
            self._make_room(end)
        self.array[self.size : end] = numbers
        self.size, self.only = end, None

    def _make_room(self, end: int) -> None:
        # Far too large: memory that is never touched costs nothing, and to grow often costs more
        # than to fill.
        have = len(self.array)
        room = max(end, 64, min(have * 16, _FAR), have * 4)
        grown = np.empty(room, dtype=self.dtype)
        grown[: self.size] = self.array[: self.size] if self.only is None else self.only
        self.array = grown

    def widen(self, dtype: type[np.signedinteger[Any]]) -> None:
        """Keep numbers of another dtype from now on."""
        self.dtype = dtype
        wider = np.empty(len(self.array), dtype=dtype)
        wider[: self.size] = self.array[: self.size]
        self.array = wider

    def current(self) -> AnyInts:
        """The numbers so far."""
        if self.only is not None:
            return np.full(self.size, self.only, dtype=self.dtype)
        return self.array[: self.size]

    def part(self, begin: int, end: int) -> AnyInts:
        """The numbers from place `begin` to before `end`."""
        if self.only is not None:
            return np.broadcast_to(np.array(self.only, dtype=self.dtype), end - begin)
        return self.array[begin:end]

    def filled(self) -> AnyInts:
        """The array, which must not grow any more. It takes no memory if all numbers are equal."""
        if self.only is not None:
            return np.broadcast_to(np.array(self.only, dtype=self.dtype), self.size)
        self.array.resize(self.size, refcheck=False)
        return self.array

    def starts(self) -> AnyInts:
        """Return where rows of these lengths begin, and where the last ends."""
        if self.only == 0:
            return np.broadcast_to(np.array(0, dtype=np.int32), self.size + 1)
        start = np.zeros(self.size + 1, dtype=np.int32)
        np.cumsum(self.filled(), out=start[1:])
        return start


def _one(numbers: Numbers) -> int | None:
    """The number that all of them equal, if there is one."""
    if not isinstance(numbers, np.ndarray):
        return numbers
    first = numbers[0]
    return int(first) if numbers[-1] == first and (numbers == first).all() else None
