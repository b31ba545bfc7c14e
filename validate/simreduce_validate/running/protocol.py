"""The values that a backend and its driver exchange between their processes."""

from __future__ import annotations

from dataclasses import dataclass

from simreduce_validate.running.execution import StepCounts

ROUTES = ("session", "function")
"""How TensorFlow runs a step: the Session executor of version 1, or a function of version 2."""


@dataclass(frozen=True, slots=True)
class DriverConfig:
    """`place` is the TensorFlow device of each of `devices`, which are those of plans. `cpus` are
    the CPU devices of the driver's process and `gpus` how many logical GPUs each of its physical
    ones is split into, 0 for none at all. `threads` is how many ops run at a time in a process, 0
    for one per core. `cluster` are the addresses of workers, none if the driver does the work.
    """

    devices: tuple[str, ...]
    place: tuple[str, ...] = ()
    cpus: int = 1
    gpus: int = 0
    threads: int = 0
    cluster: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FirstStep:
    """A candidate's first step: the `faults` of its results, the `departures` from its plan (of
    a builtin: from its collectives), the ops it `executed`, and the `seconds` to build and run it
    once.
    """

    faults: tuple[str, ...]
    departures: tuple[str, ...]
    executed: StepCounts
    seconds: float
