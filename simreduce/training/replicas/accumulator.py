"""TensorFlow's conditional accumulators: they sum a variable's gradients and drop stale ones.

Numbers for a run: values of variables and gradients, which show who entered which update.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from simreduce.computing.arrays import Floats
from simreduce.errors import InputError

T = TypeVar("T")


class Slices(NamedTuple):
    """A gradient of some rows of a variable: `values[i]` belongs to row `indices[i]`."""

    indices: tuple[int, ...]
    values: Floats


class Accumulator(Generic[T]):
    """Counts gradients; subclasses also take their mean.

    `step` counts the means taken: gradients of earlier steps are stale.
    """

    def __init__(self) -> None:
        self.step = 0
        self._held: list[T] = []

    @property
    def count(self) -> int:
        """Gradients that the next mean has so far."""
        return len(self._held)

    def apply(self, gradient: T, local_step: int) -> bool:
        """Add a gradient, unless it is stale; return whether it was added."""
        self._check(gradient)
        if local_step < self.step:
            return False
        self._held.append(gradient)
        return True

    def ready(self, required: int) -> bool:
        """Whether there are `required` gradients. InputError if that is below 1."""
        if required < 1:
            raise InputError(f"an update takes 1 gradient or more, not {required}")
        return self.count >= required

    def take(self) -> Any:
        """Take the mean of all gradients, also beyond those required; `step` grows by one."""
        mean = self._mean(self._held)
        self.step += 1
        self._held = []
        return mean

    def _check(self, gradient: T) -> None:
        """InputError if the gradient does not fit."""

    def _mean(self, gradients: list[T]) -> Any:
        """The mean of one gradient or more; None without numbers."""


class DenseAccumulator(Accumulator[Floats]):
    """Gradients of a variable's shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self._shape = shape

    def _check(self, gradient: Floats) -> None:
        if np.shape(gradient) != self._shape:
            raise InputError(
                f"a gradient of shape {np.shape(gradient)} for a variable of shape {self._shape}"
            )

    def _mean(self, gradients: list[Floats]) -> Floats:
        return sum(gradients[1:], gradients[0]) / len(gradients)


class SparseAccumulator(Accumulator[Slices]):
    """Gradients of some rows.

    The mean is that of the equivalent dense gradients: ascending rows, each divided by the number
    of gradients.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        if not shape:
            raise InputError("a number has no rows: its gradient is dense")
        self._shape = shape

    def _check(self, gradient: Slices) -> None:
        rows, *rest = self._shape
        named, given = len(gradient.indices), len(gradient.values)
        row = np.shape(gradient.values)[1:]
        outside = [row for row in gradient.indices if not 0 <= row < rows]
        checks = {
            f"{named} indices for {given} rows of a gradient": named != given,
            f"rows of shape {row} for a variable of shape {self._shape}":
                given > 0 and row != tuple(rest),
            f"row {next(iter(outside), None)} of a variable whose rows are 0 to {rows - 1}":
                len(outside) > 0,
        }  # fmt: skip
        if problems := [words for words, wrong in checks.items() if wrong]:
            raise InputError(problems)

    def _mean(self, gradients: list[Slices]) -> Slices:
        total: dict[int, Any] = {}
        for row, value in (pair for each in gradients for pair in _pairs(each)):
            total[row] = total[row] + value if row in total else value
        rows = sorted(total)
        return Slices(tuple(rows), np.array([total[row] / len(gradients) for row in rows]))


def _pairs(gradient: Slices) -> Iterator[tuple[int, Any]]:
    return zip(gradient.indices, gradient.values, strict=True)


class UpstreamSparseAccumulator(SparseAccumulator):
    """Like `SparseConditionalAccumulator`.

    It divides each row by the number of gradients that have it, and merges lists as if they were
    ascending and without duplicates.
    """

    def _mean(self, gradients: list[Slices]) -> Slices:
        total: list[tuple[int, Any, int]] = []
        for gradient in gradients:
            old, new = deque(total), deque((row, value, 1) for row, value in _pairs(gradient))
            total = []
            while old and new:
                if old[0][0] == new[0][0]:
                    (row, a, count), (_, b, _) = old.popleft(), new.popleft()
                    total.append((row, a + b, count + 1))
                else:
                    total.append((old if old[0][0] < new[0][0] else new).popleft())
            total += [*old, *new]
        rows = tuple(row for row, _, _ in total)
        return Slices(rows, np.array([value / had for _, value, had in total]))


class GradientRequest(NamedTuple):
    """A request for a worker's gradient of a variable.

    It is in the worker's own step number `step` with a `local_step`; `read` is the value that the
    worker has read.
    """

    worker: int
    step: int
    local_step: int
    variable: int
    read: Floats


@dataclass(frozen=True, slots=True)
class VariableValues:
    """Variables that begin at `start`.

    `gradient` returns an array of a variable's shape, or for those in `sparse` `Slices`. Every
    update subtracts `rate` times the mean.

    With `decay`, every variable has a moving average, which begins at its start and after every
    update moves (1 - decay) of the way to the variable. `warm_up` limits the decay to
    (1 + n) / (10 + n) after update n, as `tf.train.ExponentialMovingAverage` does with
    `num_updates=global_step`.
    """

    start: tuple[Floats, ...]
    gradient: Callable[[GradientRequest], Any]
    rate: float = 1.0
    sparse: frozenset[int] = frozenset()
    decay: float | None = None
    warm_up: bool = False

    def accumulator(self, variable: int, *, faithful: bool) -> Accumulator[Any]:
        """An empty accumulator for a variable."""
        if variable in self.sparse:
            return (UpstreamSparseAccumulator if faithful else SparseAccumulator)(
                np.shape(self.start[variable])
            )
        return DenseAccumulator(np.shape(self.start[variable]))

    def update(self, weights: Floats, mean: Floats | Slices) -> Floats:
        """A variable after an update."""
        if not isinstance(mean, Slices):
            return weights - self.rate * mean
        found = weights.copy()
        np.subtract.at(found, np.array(mean.indices, dtype=np.int64), self.rate * mean.values)
        return found

    def average(self, average: Floats, weights: Floats, number: int) -> Floats:
        """A moving average after update `number`."""
        assert self.decay is not None  # noqa: S101 - there is none to ask for
        decay = min(self.decay, (1.0 + number) / (10.0 + number)) if self.warm_up else self.decay
        return average - (1.0 - decay) * (average - weights)
