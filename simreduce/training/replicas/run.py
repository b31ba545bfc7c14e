"""The record of one run: every gradient, every update, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Arrival:
    """A gradient at its accumulator, from the worker's own step number `step`.

    `update`, from 1, is the one it enters; 0 if it was dropped as stale.
    """

    time: float  # s
    worker: int
    step: int
    local_step: int
    variable: int
    update: int


@dataclass(frozen=True, slots=True)
class Update:
    """The global step reaches `number` at `time`.

    By variable: when its mean was taken, of how many gradients, and with `VariableValues` its new
    value and moving average.
    """

    number: int
    time: float  # s
    taken: tuple[float, ...]
    gradients: tuple[int, ...]
    weights: tuple[Any, ...] = ()
    averages: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerStep:
    """A worker's own step number `step`.

    The worker had its token at `begun`, all variables at `read` and its gradients at `computed`;
    with all delivered, it asked for a token at `asked`.
    """

    worker: int
    step: int
    local_step: int
    begun: float  # s
    read: float
    computed: float
    asked: float


@dataclass(frozen=True, slots=True)
class ReplicasRun:
    """A run in order of time.

    `steps` are over. `unfinished` steps were in flight at the end or at their worker's death; a
    time that they did not reach is that instant. `blocked` says why a run has not made all its
    updates; "" if it has.
    """

    workers: int
    variables: int
    arrivals: tuple[Arrival, ...]
    updates: tuple[Update, ...]
    steps: tuple[WorkerStep, ...]
    unfinished: tuple[WorkerStep, ...] = ()
    blocked: str = ""

    @property
    def seconds(self) -> float:
        """Seconds until the last update."""
        return self.updates[-1].time if self.updates else 0.0

    @property
    def dropped(self) -> tuple[Arrival, ...]:
        """The stale gradients."""
        return tuple(a for a in self.arrivals if not a.update)

    def entered(self, update: int, variable: int = 0) -> list[tuple[int, int]]:
        """(worker, its own step) of every gradient in an update of a variable, by arrival."""
        return [
            (a.worker, a.step)
            for a in self.arrivals
            if (a.update, a.variable) == (update, variable)
        ]

    def document(self) -> dict[str, Any]:
        """The run as JSON values; times in microseconds."""
        return {
            "workers": self.workers,
            "variables": self.variables,
            "updates": [_row(each) for each in self.updates],
            "gradients": [_row(each) for each in self.arrivals],
            "steps": [_row(each) for each in self.steps],
            "unfinished": [_row(each) for each in self.unfinished],
            "blocked": self.blocked,
        }


_TIMES = ("time", "taken", "begun", "read", "computed", "asked")


def _row(each: Arrival | Update | WorkerStep) -> dict[str, Any]:
    return dict(_columns(asdict(each)))


def _columns(row: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if name in _TIMES:
            yield (
                f"{name}_us",
                [t * 1e6 for t in value] if isinstance(value, tuple) else value * 1e6,
            )
        elif name in ("weights", "averages"):
            if value:
                yield name, [np.asarray(each).tolist() for each in value]
        else:
            yield name, list(value) if isinstance(value, tuple) else value
