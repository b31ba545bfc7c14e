"""The kernel under numba: compiled once per machine, then loaded from numba's cache. The same
source, the same bits.

numba keeps compiled code beside the source, in `__pycache__`, or in the user's cache folder where
that cannot be written, or in `NUMBA_CACHE_DIR`; where nothing can be written, every process
compiles for itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

from simreduce.compiling import CALLEE, single
from simreduce.engine.kernel import advance as kernel, calendar, flows, queues, sharing, tables
from simreduce.engine.kernel.advance import advance

Advance = Callable[[Any, Any, float, float], tuple[bool, float]]

WORTH = 60_000
"""Ops that take about as long interpreted as it takes to load numba and the compiled kernel."""

SMALL = 500
"""Fewer ops are quicker interpreted although the compiled kernel is there."""

_MODULES: tuple[ModuleType, ...] = (calendar, queues, flows, sharing, kernel)  # callees first
_seen = [0]


def pays(ops: int, *, again: bool = False) -> bool:
    """Whether so many ops in flight are worth the compiled kernel, which is worth its loading once
    a process has had many. It gives the same bits either way. Few ops are not worth it, unless they
    are in the tables already (`again`).
    """
    if ops < SMALL and not again:
        return False
    if loaded():
        return True
    _seen[0] += ops
    return _seen[0] >= WORTH


@cache
def load() -> Advance:
    """`advance`, compiled."""
    import numba  # noqa: PLC0415 - takes a while to load; small plans do without

    njit: Any = numba.njit
    functions = {
        name: f
        for module in _MODULES
        for name, f in vars(module).items()
        if isinstance(f, FunctionType) and f.__module__ == module.__name__
    }
    scope: dict[str, Any] = {
        name: value for module in (tables, *_MODULES) for name, value in vars(module).items()
    }
    done: set[str] = set()

    def compile_with_callees(name: str) -> None:
        done.add(name)
        code = functions[name].__code__
        for callee in code.co_names:
            if callee in functions and callee not in done:
                compile_with_callees(callee)
        copy = FunctionType(code, scope, name, functions[name].__defaults__)
        scope[name] = njit(copy, **CALLEE)

    compile_with_callees("advance")
    scope["bare"] = _compiled_bare()
    entry = _entry(_digest(functions, scope))
    qualname = entry.__qualname__
    entry = FunctionType(entry.__code__, scope, entry.__name__, None, entry.__closure__)
    entry.__qualname__ = qualname
    # Its caller keeps the arrays; counting references to them would take a fifth of the time of a
    # short call.
    try:
        compiled: Advance = njit(cache=True, _nrt=False)(entry)
    except RuntimeError:  # no folder for the cache
        compiled = njit(entry, _nrt=False)
    return compiled


def loaded() -> bool:
    """Whether the compiled kernel is there, and numba with it."""
    return bool(load.cache_info().currsize)


def fill(
    function: Callable[..., Any], ops: int, reads: Sequence[Any], writes: Sequence[Any]
) -> Any:
    """`function(*reads, *writes)`, a function that calls no other of ours and fills the arrays
    `writes`: compiled if the kernel is, or will be once so many ops are submitted.
    """
    if loaded() or ops >= WORTH:
        return single(function)(*reads, *writes)
    lists = [column.tolist() for column in writes]
    value = function(*(column.tolist() for column in reads), *lists)
    for column, numbers in zip(writes, lists, strict=True):
        column[:] = numbers
    return value


def bare(table: Any) -> Any:
    """The table; compiled, the same with only the addresses of its columns. Of every array, numba
    would hand seven numbers to each function that is given the table, count references, and look
    for negative indices, which the kernel has not: that would take half the time to compile.
    """
    return table


def _compiled_bare() -> Any:
    """What takes the place of `bare` in compiled code."""
    import numba  # noqa: PLC0415 - as above
    from numba.core.errors import TypingError  # noqa: PLC0415
    from numba.extending import intrinsic  # noqa: PLC0415

    types: Any = numba.types

    def bare_type(table: Any) -> Any:
        if isinstance(table, types.Array):
            if table.layout != "C":
                raise TypingError("a column of the kernel has gaps")
            return types.CPointer(types.int8 if table.dtype == types.boolean else table.dtype)
        return types.BaseTuple.from_types(
            [bare_type(column) for column in table], table.instance_class
        )

    def convert(context: Any, builder: Any, table: Any, value: Any) -> Any:
        if isinstance(table, types.Array):
            return context.make_array(table)(context, builder, value).data
        bared = [
            convert(context, builder, column, builder.extract_value(value, i))
            for i, column in enumerate(table)
        ]
        return context.make_tuple(builder, bare_type(table), bared)

    @intrinsic
    def addresses(_: Any, table: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return convert(context, builder, signature.args[0], arguments[0])

        return bare_type(table)(table), build

    return addresses


def _entry(digest: str) -> Any:
    """What is cached: numba takes a cached function for current while its own file and what it
    encloses are the same, so it encloses a digest of everything that it calls.
    """

    def run(ops: Any, state: Any, now: float, horizon: float) -> tuple[bool, float]:
        if len(digest) == 0:
            return False, now
        return advance(bare(ops), bare(state), now, horizon)

    # The cache's files are named after it. Under one name, a process could find the index of a new
    # version before its code is written, and load what an old version has left.
    run.__qualname__ = f"run_{digest[:16]}"
    return run


def _digest(functions: dict[str, FunctionType], scope: dict[str, Any]) -> str:
    parts: list[Any] = []
    for name, function in sorted(functions.items()):
        code: CodeType = function.__code__
        parts.append((name, code.co_code, code.co_consts, code.co_names, code.co_varnames))
    parts.extend(
        sorted((k, v) for k, v in scope.items() if isinstance(v, (int, float)) and k.isupper())
    )
    parts.extend(
        (t.__name__, t._fields)
        for t in (calendar.Heap, tables.Ops, tables.Queues, tables.Flows, tables.State)
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()
