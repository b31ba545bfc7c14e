"""The training job: its workers, their compute times and failures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite

import numpy as np

from simreduce.computing.arrays import Floats, uniform
from simreduce.errors import InputError
from simreduce.training.distributions import Distribution
from simreduce.training.replicas.network import Delays, LinkNetwork
from simreduce.training.replicas.settings import SyncSettings

_APART = 1 << 40
"""Upper limit of the random numbers of one repetition."""

MOST_TIMES = 1 << 26
"""Worker steps with random times in one repetition: half a GiB."""


@dataclass(frozen=True, slots=True)
class ReplicasJob:
    """Synchronous training on several workers; times in seconds.

    `compute` is a worker's time from variables to gradients: one distribution for all, or one each.
    Worker w takes `slow[w]` times as long. It stops at `dies[w]`, losing its token and undelivered
    gradients, until it begins a new step at `returns[w]`, if ever. Worker 0 is the chief: while it
    is dead there is no update.

    Updating a variable takes `update` seconds. After each global step the chief spends `averages`
    on moving averages and `turn` before the next round.
    """

    settings: SyncSettings
    network: Delays | LinkNetwork
    compute: Distribution | tuple[Distribution, ...]
    slow: Mapping[int, float] = field(default_factory=dict)
    dies: Mapping[int, float] = field(default_factory=dict)
    returns: Mapping[int, float] = field(default_factory=dict)
    update: float = 0.0
    averages: float = 0.0
    turn: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        problems = []
        if not self.workers:
            problems.append("workers: 1 or more")
        if not self.variables:
            problems.append("variables: at least one must be supplied")
        if isinstance(self.compute, tuple) and len(self.compute) != self.workers:
            problems.append(
                f"compute: {len(self.compute)} distributions for {self.workers} workers"
            )
        for name, seconds in (
            ("update", self.update),
            ("averages", self.averages),
            ("turn", self.turn),
        ):
            if not (isfinite(seconds) and seconds >= 0.0):
                problems.append(f"{name}: 0 s or more, not {seconds:g}")
        problems += worker_faults(self.workers, self.slow, self.dies, self.returns)
        if problems:
            raise InputError(problems)

    @property
    def workers(self) -> int:
        """How many workers there are. `settings.total` counts tokens, and may differ."""
        return (
            self.network.workers if isinstance(self.network, Delays) else len(self.network.workers)
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The workers' devices, or `worker 0` and so on."""
        if isinstance(self.network, Delays):
            return tuple(f"worker {w}" for w in range(self.workers))
        return self.network.workers

    @property
    def variables(self) -> int:
        """How many variables have an accumulator."""
        return (
            self.network.variables
            if isinstance(self.network, Delays)
            else len(self.network.servers)
        )

    def death(self, worker: int) -> float:
        """The time at which a worker stops, or inf."""
        return self.dies.get(worker, inf)

    def back(self, worker: int) -> float:
        """The time at which a worker comes back, or inf."""
        return self.returns.get(worker, inf)

    def seconds(self, repetition: int, steps: int) -> Floats:
        """Compute times of the first `steps` steps, by [worker, step], of a repetition.

        More steps do not change those before. InputError if there are too many for memory.
        """
        if steps * self.workers > MOST_TIMES:
            raise InputError(
                f"{steps:,} steps of {self.workers:,} workers are more than the {MOST_TIMES:,} of"
                " one repetition: ask for fewer updates, and more repetitions"
            )
        drawn = uniform(self.seed, repetition * _APART, steps * self.workers).reshape(steps, -1).T
        if isinstance(self.compute, tuple):
            times = np.array(
                [each.quantile(u) for each, u in zip(self.compute, drawn, strict=True)]
            )
        else:
            times = np.ascontiguousarray(self.compute.quantile(drawn))
        for worker, factor in self.slow.items():
            times[worker] *= factor
        return times


def worker_faults(
    workers: int, slow: Mapping[int, float], dies: Mapping[int, float], returns: Mapping[int, float]
) -> list[str]:
    """The faults of `ReplicasJob`'s tables by worker."""
    problems = []
    for name, least, given in (("slow", "above 0", slow), ("dies", "0 s or more", dies)):
        for worker, value in given.items():
            if not 0 <= worker < workers:
                problems.append(f"{name}: the workers are 0 to {workers - 1}, not {worker}")
            if not (isfinite(value) and value >= 0.0 and (value > 0.0 or name == "dies")):
                problems.append(f"{name}: worker {worker}: {least}, not {value:g}")
    for worker, value in returns.items():
        if worker not in dies:
            problems.append(f"returns: worker {worker} does not die")
        elif not (isfinite(value) and value > dies[worker]):
            problems.append(
                f"returns: worker {worker}: after it dies at {dies[worker]:g} s, not at {value:g} s"
            )
    return problems
