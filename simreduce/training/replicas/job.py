"""What is trained: by how many workers, how long each computes, and what goes wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite

import numpy as np

from simreduce.arrays import Floats, uniform
from simreduce.errors import InputError
from simreduce.training.distributions import Distribution
from simreduce.training.replicas.network import Delays, Flows
from simreduce.training.replicas.settings import SyncSettings

_APART = 1 << 40
"""Random numbers of one repetition."""

MOST_TIMES = 1 << 26
"""Steps of workers whose times are drawn for one repetition: half a GiB."""


@dataclass(frozen=True, slots=True)
class ReplicasJob:
    """`compute` is how long a worker computes in a step, between having the variables and having
    the gradients: for all, or one for each; `slow[w]` times as long for worker w. At `dies[w]`
    seconds worker w stops, for ever or until it begins a step again at `returns[w]`: what it has
    not delivered is lost, and its token. Worker 0 is the chief; without it no update is made.

    An update of a variable takes `update` seconds once its gradients are there. Between an update
    of all and the next round the chief loses `turn` seconds, and before that `averages` seconds for
    moving averages.
    """

    settings: SyncSettings
    network: Delays | Flows
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
        """How many workers there are: their tokens are counted by the settings, which need not
        agree.
        """
        return (
            self.network.workers if isinstance(self.network, Delays) else len(self.network.workers)
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Of the workers: their devices, or numbers."""
        if isinstance(self.network, Delays):
            return tuple(f"worker {w}" for w in range(self.workers))
        return self.network.workers

    @property
    def variables(self) -> int:
        """How many variables have a gradient, and so an accumulator."""
        return (
            self.network.variables
            if isinstance(self.network, Delays)
            else len(self.network.servers)
        )

    def death(self, worker: int) -> float:
        """The time at which a worker stops."""
        return self.dies.get(worker, inf)

    def back(self, worker: int) -> float:
        """The time at which it begins again."""
        return self.returns.get(worker, inf)

    def seconds(self, repetition: int, steps: int) -> Floats:
        """How long worker w computes in its first `steps` steps, by [w, step]: a function of seed
        and repetition, and the same in the steps that there are, however many are asked for.
        InputError if they are more than memory is for.
        """
        if steps * self.workers > MOST_TIMES:
            raise InputError(
                f"{steps:,} steps of {self.workers:,} workers are more than the {MOST_TIMES:,} of one repetition: "
                "ask for fewer updates, and more repetitions"
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
    """What is wrong with figures of single workers; see `ReplicasJob`."""
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
