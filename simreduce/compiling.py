"""Loops over columns, interpreted or compiled by numba: one source, the same results.

numba keeps compiled code beside the source, in `__pycache__`, or in the user's cache folder where
that cannot be written, or in `NUMBA_CACHE_DIR`; where nothing can be written, every process
compiles for itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np

CALLEE = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Only compiled code calls it: without wrappers for Python and C, compiling takes half as long."""

_LOADING, _LOADED, _SMALL = 400_000, 60_000, 1_000
"""Entries that take about as long interpreted as it takes to load numba and compiled loops, or the
loops if numba is there; and how few are quicker interpreted even then.
"""

_seen = [0]


def worth_compiling(entries: int) -> bool:
    """Whether to run a loop over so many entries compiled: once a process has had many."""
    if entries < _SMALL:
        return False
    _seen[0] += entries
    return _seen[0] >= (_LOADED if "numba" in sys.modules else _LOADING)


def sweep(
    function: Callable[..., Any],
    reads: Sequence[Any],
    writes: Sequence[Any] = (),
    *,
    compiled: bool,
) -> Any:
    """`function(*reads, *writes)`, of numbers and one-dimensional arrays, of which it fills
    `writes`. It allocates nothing, and indexes no array by a negative number.
    """
    if compiled:
        return family(function)(*map(_plain, reads), *writes)
    lists = [column.tolist() for column in writes]
    value = function(*(r.tolist() if isinstance(r, np.ndarray) else r for r in reads), *lists)
    for column, numbers in zip(writes, lists, strict=True):
        column[:] = numbers
    return value


def _plain(value: Any) -> Any:
    """An array without gaps that may be written, as numba compiles anew for every other kind."""
    if not isinstance(value, np.ndarray) or (value.flags.c_contiguous and value.flags.writeable):
        return value
    return value.copy()


@cache
def single(function: Callable[..., Any]) -> Any:
    """A function that calls no other of ours, compiled."""
    import numba  # noqa: PLC0415 - takes a while to load; small plans do without

    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:  # no folder for the cache
        return numba.njit(function)


@cache
def family(function: Callable[..., Any]) -> Any:
    """A function that allocates nothing, with those of its module that it calls, compiled."""
    import numba  # noqa: PLC0415 - as above

    njit: Any = numba.njit
    scope = dict(function.__globals__)

    def compile_with_callees(each: FunctionType, **options: Any) -> Any:
        for name in each.__code__.co_names:
            callee = scope.get(name)
            if isinstance(callee, FunctionType) and callee.__module__ == each.__module__:
                scope[name] = compile_with_callees(callee, **CALLEE)
        copy = FunctionType(each.__code__, scope, each.__name__, each.__defaults__)
        # Counting references to arrays would take nine tenths of the time.
        return njit(copy, _nrt=False, **options)

    entry: Any = function
    try:
        return compile_with_callees(entry, cache=True)
    except RuntimeError:  # no folder for the cache
        return compile_with_callees(entry)
