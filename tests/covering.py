"""Few combinations of parameters in place of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any


def covering(*lists: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Rows with one value of each list, such that every two values of two lists meet in some row.

    A whole product is long and proves the same again and again: a fault shows with one value, or
    where two meet, and hardly ever only where three do. The rows are the same in every run.
    """
    pairs = combinations(range(len(lists)), 2)
    values = [range(len(each)) for each in lists]
    alone = [(i, a, i, a) for i, mine in enumerate(values) for a in mine]
    missing = dict.fromkeys([(i, a, j, b) for i, j in pairs for a in values[i] for b in values[j]])
    missing |= dict.fromkeys(alone)
    uses = Counter[tuple[int, int]]()
    rows = []
    while missing:
        i, a, j, b = next(iter(missing))
        row = {i: a, j: b}
        for k in range(len(lists)):
            if k not in row:
                row[k] = min(values[k], key=lambda v: (-_met(missing, row, k, v), uses[k, v]))
        for k, v in row.items():
            uses[k, v] += 1
            for o, w in row.items():
                missing.pop((k, v, o, w), None)
        rows.append(tuple(each[row[k]] for k, each in enumerate(lists)))
    return rows


def _met(
    missing: dict[tuple[int, int, int, int], None], row: dict[int, int], place: int, value: int
) -> int:
    """How many missing pairs a value would complete with those of a row."""
    return sum(
        (place, value, o, w) in missing or (o, w, place, value) in missing for o, w in row.items()
    )
