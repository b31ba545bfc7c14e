"""Arrays, loops compiled to machine code, worker processes; lists by key, walks over graphs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


def grouped(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """By key, the values that come with it; keys and values keep their order."""
    found: dict[K, list[T]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def group_by(values: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The values with equal keys together, groups in the order of their firsts."""
    return grouped((key(value), value) for value in values)


def once(known: dict[K, T], key: K, find: Callable[[], T], *, most: int = sys.maxsize) -> T:
    """What is known for a key, or is found now; of more than `most` the oldest is forgotten."""
    if key not in known:
        while len(known) >= most:
            del known[next(iter(known))]
        known[key] = find()
    return known[key]


def breadth_first(start: K, beside: Callable[[K], Iterable[K]]) -> dict[K, K]:
    """By vertex that is reached from `start`, nearest first, the one before it; that of `start` is
    itself.
    """
    before = {start: start}
    frontier = [start]
    for vertex in frontier:
        for other in beside(vertex):
            if other not in before:
                before[other] = vertex
                frontier.append(other)
    return before
