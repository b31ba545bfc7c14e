"""How much tests try: corners in `make test`, more in `make test-slow`, and all in `make thorough`,
which sets SIMREDUCE_THOROUGH.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
THOROUGH = os.environ.get("SIMREDUCE_THOROUGH", "0") != "0"
USUAL = 25
"""Examples of a property in `make test`, the same in every run."""


def examples(count: int, usual: int = USUAL) -> int:
    """Examples of a property: so many where tests are thorough, else at most `usual`."""
    return count if THOROUGH else min(count, usual)


def some(items: Iterable[T], count: int) -> list[T]:
    """All of the items where tests are thorough, else so many of them, evenly spaced."""
    listed = list(items)
    if THOROUGH or len(listed) <= count:
        return listed
    return [listed[i * len(listed) // count] for i in range(count)]


_PARAM = type(pytest.param())


def slow(items: Iterable[Any]) -> list[Any]:
    """The items, which may be a `pytest.param` each, as parameters of tests that are slow."""
    found = []
    for item in items:
        if isinstance(item, _PARAM):
            values, marks, name = item.values, item.marks, item.id
        else:
            values, marks, name = item if isinstance(item, tuple) else (item,), (), None
        found.append(pytest.param(*values, marks=[*marks, pytest.mark.slow], id=name))
    return found


def corners(items: Iterable[Any], count: int) -> list[Any]:
    """All of the items as parameters: so many of them, evenly spaced and with both ends, for `make
    test`, the others for slow tests.
    """
    listed = list(items)
    usual = {i * (len(listed) - 1) // max(count - 1, 1) for i in range(count)}
    return [
        each for i, item in enumerate(listed) for each in ([item] if i in usual else slow([item]))
    ]
