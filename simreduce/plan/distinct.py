"""The distinct numbers of long columns, and the place of each entry among them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simreduce.computing.arrays import AnyInts, Ints, distinct
from simreduce.computing.compiling.loops import sweep, worth_compiling
from simreduce.plan.residues import collect, look_up

_FREE = np.iinfo(np.int64).min  # as in `residues`


def number_distinct(
    columns: Sequence[AnyInts], others: Sequence[AnyInts] = ()
) -> tuple[Ints, list[AnyInts]]:
    """The distinct numbers of `columns` and `others`, ascending, and by column the places of its
    entries among them. No number is negative.
    """
    every = (*columns, *others)
    if not worth_compiling(look_up, max(map(len, every), default=0)):
        numbers = distinct(np.concatenate(every))
        return numbers, [np.searchsorted(numbers, column) for column in columns]
    table = _hash(every)
    slots = np.flatnonzero(table != _FREE)
    slots = slots[np.argsort(table[slots])]
    place = np.zeros(len(table), dtype=np.int32)
    place[slots] = np.arange(len(slots), dtype=np.int32)
    found: list[AnyInts] = []
    for column in columns:
        places = np.empty(len(column), dtype=np.int32)
        sweep(look_up, (column, table, place), [places], compiled=True)
        found.append(places)
    return table[slots], found


def _hash(columns: Sequence[AnyInts]) -> Ints:
    """The distinct numbers of the columns in a hash table at most half full."""
    size = 1 << 12
    while True:
        table, count = np.full(size, _FREE, dtype=np.int64), 0
        for column in columns:
            if count >= 0:
                count = sweep(collect, (column, table, count), compiled=True)
        if count >= 0:
            return table
        size *= 4
