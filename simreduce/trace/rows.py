"""Slices that overlap cannot share a row: viewers drop or misplace them."""

from __future__ import annotations

import numpy as np

from simreduce.arrays import ULP, Floats, Ints

_INSTANT = 8 * ULP
"""Slices that overlap by less only touch: their ends are two computations of one instant."""


def rows(ops: Ints, begin: Floats, end: Floats) -> list[list[tuple[int, float, float]]]:
    """(op, from, to) in order of time, row by row; each op is in the first row that is free when it
    begins.
    """
    found: list[list[tuple[int, float, float]]] = []
    order = np.lexsort((ops, end, begin))
    for op, start, stop in zip(
        ops[order].tolist(), begin[order].tolist(), end[order].tolist(), strict=True
    ):
        for row in found:
            last, since, until = row[-1]
            if until <= start * (1 + _INSTANT):
                if until > start:
                    row[-1] = (last, since, start)
                break
        else:
            row = []
            found.append(row)
        row.append((op, start, max(start, stop)))
    return found
