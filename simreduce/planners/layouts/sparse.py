"""Rows of mostly zeros."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SparseRow(Sequence[int]):
    """A row of `size` numbers, zero except the ones in `values`.

    It reads, compares and hashes like a tuple. Thousands of ranks have few links each, so this
    saves memory.
    """

    values: Mapping[int, int]
    size: int

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> SparseRow: ...
    def __getitem__(self, place: int | slice) -> int | SparseRow:
        if isinstance(place, slice):
            kept = range(self.size)[place]
            return SparseRow(
                {kept.index(i): v for i, v in self.values.items() if i in kept}, len(kept)
            )
        if 0 <= place < self.size:
            return self.values.get(place, 0)
        return self.values.get(range(self.size)[place], 0)

    def __iter__(self) -> Iterator[int]:
        dense = [0] * self.size
        for place, value in self.values.items():
            dense[place] = value
        return iter(dense)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SparseRow):
            return self.size == other.size and self.values == other.values
        return tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def keep(row: Sequence[int], place: Mapping[int, int]) -> SparseRow:
    """The entries of a row at the keys of `place`, moved to its values."""
    values = row.values.items() if isinstance(row, SparseRow) else enumerate(row)
    return SparseRow({place[i]: value for i, value in values if i in place and value}, len(place))
