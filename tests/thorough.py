"""How much slow tests try: `make thorough` sets SIMREDUCE_THOROUGH, and they try all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")
THOROUGH = os.environ.get("SIMREDUCE_THOROUGH", "0") != "0"


def some(items: Iterable[T], count: int) -> list[T]:
    """All of the items where tests are thorough, else so many of them, evenly spaced."""
    listed = list(items)
    if THOROUGH or len(listed) <= count:
        return listed
    return [listed[i * len(listed) // count] for i in range(count)]
