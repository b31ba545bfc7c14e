"""Loops over columns, interpreted or as machine code: one source, the same bits.

    sweep(function, reads, writes, compiled=worth_compiling(function, entries))

Interpreted, a loop is given lists. Machine code is used where it is there already (`kept`), or for
so many entries that it is worth compiling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from simreduce.computing.compiling.code import native

_COMPILING, _SMALL = 400_000, 64
"""Entries that take about as long interpreted as compiling does, and how few are quicker
interpreted even if the machine code is there.
"""

_seen = [0]


def worth_compiling(function: Callable[..., Any], entries: int) -> bool:
    """Whether to run machine code for a loop over so many entries.

    Without machine code of an earlier process, compiling must first be worth its time: once this
    process has had many entries.
    """
    if entries < _SMALL:
        return False
    _seen[0] += entries
    return _seen[0] >= _COMPILING or native(function).is_kept


def sweep(
    function: Callable[..., Any],
    reads: Sequence[Any],
    writes: Sequence[Any] = (),
    *,
    compiled: bool,
) -> Any:
    """`function(*reads, *writes)`, of whole numbers and one-dimensional arrays; it fills
    `writes`. It allocates nothing, indexes no array by a negative number, and returns a whole
    number, a truth value or None.
    """
    if compiled:
        return native(function)(*map(_without_gaps, reads), *writes)
    lists = [column.tolist() for column in writes]
    value = function(*(r.tolist() if isinstance(r, np.ndarray) else r for r in reads), *lists)
    for column, numbers in zip(writes, lists, strict=True):
        column[:] = numbers
    return value


def _without_gaps(value: Any) -> Any:
    return np.ascontiguousarray(value) if isinstance(value, np.ndarray) else value
