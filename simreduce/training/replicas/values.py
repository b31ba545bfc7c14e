"""Numbers for a run: values of variables and gradients, which show who entered which update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from simreduce.computing.arrays import Floats
from simreduce.training.replicas.accumulator import (
    Accumulator,
    DenseAccumulator,
    Slices,
    SparseAccumulator,
    UpstreamSparseAccumulator,
)


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
