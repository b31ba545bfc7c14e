"""Best-first search.

The point with the lowest bound is looked at next, until no bound is below the best time found.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Generic, NamedTuple, TypeVar

from simreduce.computing.watching import Progress

P = TypeVar("P")

SAME = 1e-9
"""A relative difference that is rounding."""


Busy = tuple[str, float]
"""A link or a lane, and the seconds that bytes need of it."""

NOTHING: Busy = ("", 0.0)


class Tried(NamedTuple):
    """The seconds of a point; if the simulation was stopped (not `exact`), it takes at least that.

    `ops` were simulated, which represent `whole` ops of all machines of a single call, whose
    busiest `link` and `lane` are known.
    """

    seconds: float
    ops: int = 0
    exact: bool = True
    whole: int = 0
    link: Busy = NOTHING
    lane: Busy = NOTHING


@dataclass(slots=True)
class SearchOutcome(Generic[P]):
    """The outcome of a search: seconds of the points that were simulated, bounds of the others."""

    seconds: dict[P, float] = field(default_factory=dict)
    excluded: dict[P, float] = field(default_factory=dict)

    @property
    def best(self) -> float:
        """The shortest time so far."""
        return min(self.seconds.values(), default=inf)

    @property
    def bound(self) -> float:
        """Seconds that no point can be below."""
        return min(min(self.excluded.values(), default=inf), self.best)

    def bound_or(self, floor: float, *, stopped: bool) -> float:
        """The bound; `floor` if the search was stopped before it had listed its points."""
        return min(floor, self.best) if stopped and not self.excluded else self.bound

    @property
    def complete(self) -> bool:
        """Whether every point that was not simulated is excluded by its bound."""
        return self.bound >= self.best * (1.0 - SAME)


def search(
    points: Iterable[tuple[float, P]],
    sharpen: Callable[[P], float | None],
    simulate: Callable[[Sequence[P]], list[Tried]],
    outcome: SearchOutcome[P],
    width: int = 1,
    enough: Callable[[], bool] = lambda: False,
    progress: Progress = lambda _done, _all: None,
    gap: float = SAME,
) -> None:
    """Fill `outcome`, which keeps what there is if an interrupt ends the search.

    `points` come with bounds in seconds. `sharpen` gives a better bound of a point that has come to
    the front, once; None if it has none. `simulate` takes up to `width` points at a time, and may
    stop those that are slower than `outcome.best`. The search ends early once `enough` says so, and
    once nothing is left that may be faster by more than a part of `gap`.
    """
    order = count()
    heap = [(bound, next(order), False, point) for bound, point in points]
    heapq.heapify(heap)
    total = len(heap)
    for bound, _, _, point in heap:
        outcome.excluded[point] = bound
    first = True
    while heap:
        front: list[P] = []
        # The first alone, sharpened or not: what it takes may exclude all others, and is an answer
        # for those who do not wait for the end.
        most = 1 if first else width
        while heap and len(front) < most and heap[0][0] < outcome.best * (1.0 - gap):
            bound, _, sharp, point = heapq.heappop(heap)
            better = None if sharp else sharpen(point)
            if better is not None and better > bound:
                outcome.excluded[point] = better
                if not first:
                    heapq.heappush(heap, (better, next(order), True, point))
                    continue
            front.append(point)
        if not front:
            break
        if outcome.seconds and enough():
            break
        first = False
        for point, tried in zip(front, simulate(front), strict=True):
            if tried.exact:
                outcome.seconds[point] = tried.seconds
                del outcome.excluded[point]
            else:
                outcome.excluded[point] = max(outcome.excluded[point], tried.seconds)
        progress(total - sum(1 for each in heap if each[0] < outcome.best), total)
