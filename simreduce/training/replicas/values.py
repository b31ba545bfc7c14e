"""Numbers for a run: what the variables hold and what the gradients are, so that it can be seen who
entered what.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from simreduce.arrays import Floats
from simreduce.training.replicas.accumulator import (
    Accumulator,
    DenseAccumulator,
    Slices,
    SparseAccumulator,
    UpstreamSparseAccumulator,
)


class GradientRequest(NamedTuple):
    """The gradient of a variable that a worker computes in its own `step`-th step, from 0, with a
    `local_step`; `read` is what it has read of the variable.
    """

    worker: int
    step: int
    local_step: int
    variable: int
    read: Floats


@dataclass(frozen=True, slots=True)
class VariableValues:
    """`start[v]` is variable v at first; `gradient` makes an array of its shape, or `Slices` for
    the variables in `sparse`. Every update subtracts `rate` times the mean. With `decay`, a moving
    average of every variable is kept: after every update it moves (1 - decay) of the way to the
    variable, beginning where that begins. `warm_up`: as `tf.train.ExponentialMovingAverage` with
    `num_updates=global_step`, whose decay is no more than (1 + n) / (10 + n) after update n.
    """

    start: tuple[Floats, ...]
    gradient: Callable[[GradientRequest], Any]
    rate: float = 1.0
    sparse: frozenset[int] = frozenset()
    decay: float | None = None
    warm_up: bool = False

    def accumulator(self, variable: int, *, faithful: bool) -> Accumulator[Any]:
        """An empty one, for that variable."""
        if variable in self.sparse:
            return (UpstreamSparseAccumulator if faithful else SparseAccumulator)(
                np.shape(self.start[variable])
            )
        return DenseAccumulator(np.shape(self.start[variable]))

    def updated(self, weights: Floats, mean: Floats | Slices) -> Floats:
        """A variable after an update."""
        if not isinstance(mean, Slices):
            return weights - self.rate * mean
        found = weights.copy()
        np.subtract.at(found, np.array(mean.indices, dtype=np.int64), self.rate * mean.values)
        return found

    def averaged(self, average: Floats, weights: Floats, number: int) -> Floats:
        """A moving average after update `number`."""
        assert self.decay is not None  # noqa: S101 - there is none to ask for
        decay = min(self.decay, (1.0 + number) / (10.0 + number)) if self.warm_up else self.decay
        return average - (1.0 - decay) * (average - weights)


def constant_gradients(
    numbers: Sequence[float], variables: int = 1, rate: float = 1.0
) -> VariableValues:
    """One number for each variable, 0 at first, and one for each worker, which is its gradient for
    ever.
    """

    def gradient(asked: GradientRequest) -> Floats:
        return np.array(float(numbers[asked.worker]))

    return VariableValues((np.array(0.0),) * variables, gradient, rate)


__all__ = ["GradientRequest", "Slices", "VariableValues", "constant_gradients"]
