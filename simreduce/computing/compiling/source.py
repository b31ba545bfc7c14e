"""What a function is compiled from: its code, and that of every function of its package that it
calls.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FunctionType
from typing import Any


def callees(function: Callable[..., Any]) -> Iterator[tuple[str, FunctionType]]:
    """The functions of the same package that it calls, by the names that it calls them by."""
    assert isinstance(function, FunctionType)  # noqa: S101
    package = _package(function)
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, FunctionType) and _package(value) == package:
            yield name, value


def _package(function: FunctionType) -> str:
    return function.__module__.split(".", maxsplit=1)[0]


@cache
def digest_of(function: Callable[..., Any]) -> str:
    """A hash of all that the machine code depends on, but for the types of arguments."""
    found: dict[str, Any] = {}
    _collect(function, found)
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()[:16]


def code_size(function: Callable[..., Any]) -> int:
    """Bytes of Python's code, with all that it calls."""
    found: dict[str, Any] = {}
    _collect(function, found)
    return sum(len(code[0]) for code, *_ in found.values())


def _collect(function: Callable[..., Any], found: dict[str, Any]) -> None:
    assert isinstance(function, FunctionType)  # noqa: S101
    name = f"{function.__module__}.{function.__qualname__}"
    if name in found:
        return
    constants = {
        each: value
        for each in function.__code__.co_names
        if isinstance(value := function.__globals__.get(each), (int, float, str))
    }
    found[name] = _describe(function.__code__), function.__defaults__, sorted(constants.items())
    for _, callee in callees(function):
        _collect(callee, found)


def _describe(code: CodeType) -> tuple[Any, ...]:
    constants = tuple(_describe(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.co_code, constants, code.co_names, code.co_varnames
