"""Published values beside predictions: points, groups of them, and the figures of their errors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from simreduce.computing.arrays import Floats

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Point(Generic[T]):
    """What was published of a call, a step or a table, and what is predicted of it, in one unit.

    `predicted` is NaN without a prediction.
    """

    of: T
    published: float
    predicted: float

    @property
    def error(self) -> float:
        """By what part the prediction is too high: 0.1 is 10 % too long. NaN without one."""
        return self.predicted / self.published - 1.0


P = TypeVar("P", bound=Point[Any])


@dataclass(frozen=True, slots=True)
class PointGroup(Generic[P]):
    """Predictions that are judged together, and their errors."""

    points: Sequence[P]

    @property
    def of(self) -> Any:
        """What the first point is of."""
        return self.points[0].of

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self.points)

    @property
    def errors(self) -> Floats:
        """The error of each point, with its sign."""
        return np.array([point.error for point in self.points])

    @property
    def median(self) -> float:
        """Half of the errors are below this."""
        return median_and_p90(self.errors)[0]

    @property
    def p90(self) -> float:
        """The 90th percentile of the errors."""
        return median_and_p90(self.errors)[1]

    @property
    def worst(self) -> float:
        """The largest error."""
        return float(np.abs(self.errors).max())

    @property
    def bias(self) -> float:
        """The median of signed errors: above 0, predictions are too high."""
        return float(np.median(self.errors))

    @property
    def chosen(self) -> P:
        """The point with the least prediction."""
        return min(self.points, key=lambda point: point.predicted)

    @property
    def regret(self) -> float:
        """By what part the chosen point was published to be longer than the shortest."""
        return self.chosen.published / min(point.published for point in self.points) - 1.0


def group_by(points: Iterable[P], key: Callable[[P], K]) -> dict[K, PointGroup[P]]:
    """The points that have a prediction, by their key."""
    found: defaultdict[K, list[P]] = defaultdict(list)
    for point in points:
        if isfinite(point.predicted):
            found[key(point)].append(point)
    return {each: PointGroup(mine) for each, mine in found.items()}


def median_and_p90(errors: npt.ArrayLike) -> tuple[float, float]:
    """The median and the 90th percentile of the errors' sizes."""
    sizes = np.abs(errors)
    return float(np.median(sizes)), float(np.quantile(sizes, 0.9))


def in_order(pairs: Iterable[tuple[Point[Any], Point[Any]]]) -> list[bool]:
    """Whether each pair is predicted in the published order."""
    return [(a.predicted < b.predicted) == (a.published < b.published) for a, b in pairs]


@dataclass(frozen=True)
class AccuracyComparison(Generic[P]):
    """The points of a chapter, and what else is known `about` them, by name.

    It is not `complete` if the command was stopped.
    """

    points: Sequence[P]
    complete: bool = True
    about: Mapping[str, Any] = field(default_factory=dict)
