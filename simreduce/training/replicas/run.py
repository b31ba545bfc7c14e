"""What happened in one run: every gradient, every update, and how it ended. A value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Arrival:
    """A gradient that came to its accumulator, of a worker's own `step`-th step. `update` is the
    one that it entered, or will enter, from 1; 0 if it was dropped, as `local_step` was below that
    of the accumulator.
    """

    time: float  # s
    worker: int
    step: int
    local_step: int
    variable: int
    update: int


@dataclass(frozen=True, slots=True)
class Update:
    """The global step goes from `number` - 1 to `number` at `time`. By variable: when its gradients
    were taken, how many these were, and if there are numbers its value after that, and that of its
    moving average if there is one.
    """

    number: int
    time: float  # s
    taken: tuple[float, ...]
    gradients: tuple[int, ...]
    weights: tuple[Any, ...] = ()
    averages: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerStep:
    """A worker's own `step`-th step: it had its token at `begun`, all variables at `read`, its
    gradients at `computed`, all of these had been delivered and it asked for the next token at
    `asked`.
    """

    worker: int
    step: int
    local_step: int
    begun: float  # s
    read: float
    computed: float
    asked: float


@dataclass(frozen=True, slots=True)
class Run:
    """In order of time. `steps` are over; `unfinished` were under way at the end, or when their
    worker died, and what had not happened by then has that time. `blocked` says what a run waits
    for that has not made all its updates; "" if it has.
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
        """Until the last update."""
        return self.updates[-1].time if self.updates else 0.0

    @property
    def dropped(self) -> tuple[Arrival, ...]:
        """Gradients that came too late."""
        return tuple(a for a in self.arrivals if not a.update)

    def entered(self, update: int, variable: int = 0) -> list[tuple[int, int]]:
        """(worker, its own step) of every gradient that is in an update of a variable, in order of
        arrival.
        """
        return [
            (a.worker, a.step)
            for a in self.arrivals
            if (a.update, a.variable) == (update, variable)
        ]

    def document(self) -> dict[str, Any]:
        """For JSON; times in microseconds, as in all documents."""
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
