"""The training job: its workers, their compute times and failures.

The arguments of `tf.train.SyncReplicasOptimizer` and of its hook, under their own names.

The key `compute` of `[replicas]`: a time, or a table with a distribution of times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np

from simreduce.computing.arrays import Floats, uniform
from simreduce.errors import InputError
from simreduce.files.formats import (
    DURATION,
    Faults,
    Field,
    Format,
    ListOf,
    ValueKind,
    choice,
    inside,
    number,
)
from simreduce.training.distributions import (
    Constant,
    Distribution,
    Empirical,
    Exponential,
    Lognormal,
    Normal,
    Pareto,
    Uniform,
)
from simreduce.training.replicas.network import Delays, LinkNetwork


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """The optimizer's arguments.

    An update takes `replicas_to_aggregate` gradients of every variable and puts out tokens for
    `total_num_replicas` workers, at least as many as gradients (the default). Workers beyond the
    gradients are *backups*.

    `num_tokens` is the queue's length at the start; -1 for `replicas_to_aggregate`. None is the
    fewest that work: 0 unless workers must send several gradients each. If `faithful`, None is -1,
    as upstream, so the first update waits for nobody; sparse gradients are averaged as upstream.
    """

    replicas_to_aggregate: int
    total_num_replicas: int | None = None
    num_tokens: int | None = None
    faithful: bool = False

    def __post_init__(self) -> None:
        needed, total, tokens = self.replicas_to_aggregate, self.total_num_replicas, self.num_tokens
        checks = {
            f"replicas_to_aggregate: an update takes 1 gradient or more, not {needed}": needed < 1,
            f"total_num_replicas: 1 or more, not {total}": total is not None and total < 1,
            f"num_tokens: 0 or more, or -1 for replicas_to_aggregate, not {tokens}": (
                tokens is not None and tokens < -1
            ),
        }
        problems = [words for words, wrong in checks.items() if wrong]
        if not problems and tokens is not None and 0 <= tokens < self.fewest_tokens:
            problems.append(
                "num_tokens: too few tokens to finish the first step:"
                f" {tokens} given, {self.fewest_tokens} needed"
            )
        if problems:
            raise InputError(problems)

    @property
    def total(self) -> int:
        """How many workers get tokens."""
        return (
            self.replicas_to_aggregate
            if self.total_num_replicas is None
            else self.total_num_replicas
        )

    @property
    def fewest_tokens(self) -> int:
        """Tokens needed for the first update, beside one gradient of every worker."""
        return max(self.replicas_to_aggregate - self.total, 0)

    @property
    def initial_tokens(self) -> int:
        """Tokens in the queue at the start, all of step 0."""
        if self.num_tokens is None:
            return self.replicas_to_aggregate if self.faithful else self.fewest_tokens
        return self.replicas_to_aggregate if self.num_tokens == -1 else self.num_tokens

    @property
    def tokens_per_step(self) -> int:
        """Tokens that every update puts out."""
        return max(self.total, self.replicas_to_aggregate)


def easyrec(workers: int) -> SyncSettings:
    """Return the settings of EasyRec (parameter-server strategy, `sync_replicas`).

    A gradient of every worker is in every update, and there is no token at the start. InputError
    for one worker, which EasyRec does not synchronise.
    """
    if workers < 2:
        raise InputError(f"EasyRec synchronises several workers, not {workers}")
    return SyncSettings(replicas_to_aggregate=workers, total_num_replicas=workers, num_tokens=0)


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
        each = isinstance(self.compute, tuple) and len(self.compute)
        times = {"update": self.update, "averages": self.averages, "turn": self.turn}
        checks = {
            "workers: 1 or more": not self.workers,
            "variables: at least one must be supplied": not self.variables,
            f"compute: {each} distributions for {self.workers} workers": (
                each is not False and each != self.workers
            ),
        }
        checks |= {
            f"{name}: 0 s or more, not {seconds:g}": not (isfinite(seconds) and seconds >= 0.0)
            for name, seconds in times.items()
        }
        problems = [words for words, wrong in checks.items() if wrong]
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
        return (
            tuple(f"worker {w}" for w in range(self.workers))
            if isinstance(self.network, Delays)
            else self.network.workers
        )

    @property
    def variables(self) -> int:
        """How many variables have an accumulator."""
        return (
            self.network.variables
            if isinstance(self.network, Delays)
            else len(self.network.servers)
        )

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


def _time(key: str, about: str) -> Field:
    return Field(key, DURATION, about, required=True)


def _form(name: str, about: str, *fields: Field) -> Format:
    return Format(name, about, Field("distribution", _NAME, "Its name.", required=True), *fields)


_NAMES = ("constant", "uniform", "normal", "lognormal", "exponential", "pareto", "trace")
_NAME = choice(_NAMES, "distribution")
_MEAN, _SD = _time("mean", "The mean."), _time("sd", "The standard deviation.")
DISTRIBUTIONS: Mapping[str, tuple[Callable[..., Distribution], Format]] = {
    form.name: (make, form)
    for make, form in (
        (Constant, _form("constant", "Always the same time.", _time("seconds", "The time."))),
        (Uniform, _form("uniform", "Equally likely times.", _time("low", "The least."),
                        _time("high", "The greatest."))),
        (Normal, _form("normal", "Normally distributed times above 0 s.", _MEAN, _SD)),
        (Lognormal, _form("lognormal", "Times whose logarithm is normal.", _MEAN, _SD)),
        (Exponential, _form("exponential", "Exponentially distributed times, after a least one.",
                            _MEAN, Field("least", DURATION, "The least.", 0.0))),
        (Pareto, _form("pareto", "Times with a heavy tail.", _time("least", "The least."),
                       Field("shape", number(0.0), "The exponent of the tail.", required=True))),
        (lambda times: Empirical(tuple(times)),
         _form("trace", "Any of some measured times, equally likely.",
               Field("times", ListOf(DURATION), "The times.", required=True))),
    )
}  # fmt: skip
"""Distributions by name; the keys after the first are their arguments, in order."""


class ComputeTime(ValueKind[Distribution]):
    """A time, or a table with a distribution."""

    def __init__(self) -> None:
        schema = {"anyOf": [DURATION.schema, {"type": "object", "required": ["distribution"]}]}
        super().__init__('a time such as "120 ms", or a table with a distribution', schema)

    def take(self, value: object, faults: Faults, path: str) -> Distribution | None:
        """Read either; None if it has a fault."""
        if not isinstance(value, dict):
            seconds = DURATION.take(value, faults, path)
            return None if seconds is None else Constant(seconds)
        name = _NAME.take(value.get("distribution"), faults, inside(path, "distribution"))
        if name is None:
            return None
        make, form = DISTRIBUTIONS[name]
        before = len(faults.problems)
        values = form.read(value, faults, path)
        if len(faults.problems) > before:
            return None
        arguments: list[Any] = [values[key] for key in form.keys[1:]]
        return faults.attempt(path, make, *arguments)
