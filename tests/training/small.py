"""Jobs small enough to work out by hand: whole KiB, 1 MiB/s, binary fractions of a second, so that
sums are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from simreduce.computing.arrays import Floats
from simreduce.engine import IDEAL, Runtime
from simreduce.engine.setup import Setup
from simreduce.files.formats.syntax import Faults
from simreduce.planners.layouts import layout
from simreduce.planners.strategy import parse_strategy
from simreduce.topology import Topology, load_topology
from simreduce.training import (
    Method,
    Profile,
    StepJob,
    StepQuestion,
    StepResult,
    method_for_strategy,
    parse_step,
    simulate_step,
)
from simreduce.training.replicas.network import GradientRequest, VariableValues
from simreduce.training.replicas.processes import ReplicasRun
from simreduce.workload import Gradient, Layer, Model

KIB = 256
"""Elements of 1 KiB, which a pair of GPUs reduces by a ring in 1/1024 s."""

TICK = 1 / 1024
"""Seconds."""


@cache
def pair() -> Topology:
    """Two GPUs whose ring all-reduce of S bytes takes S / (1 MiB/s), twice half of it."""
    return load_topology("switch:2,bandwidth=1MiB/s,latency=0us")


def model(*kib: int) -> Model:
    """A layer for each gradient, of so many KiB."""
    return Model(
        "test", tuple(Layer(f"layer{i}", (Gradient(f"g{i}", n * KIB),)) for i, n in enumerate(kib))
    )


def job(
    kib: Sequence[int], forward: Sequence[int], backward: Sequence[int], **more: Any
) -> StepJob:
    """Times in ticks."""
    times = (tuple(t * TICK for t in each) for each in (forward, backward))
    return StepJob(model(*kib), Profile(*times, "by hand"), **({"batch": 1} | more))


def by(strategy: str, work: StepJob, machine: Topology, **more: Any) -> Method:
    return method_for_strategy(
        parse_strategy(strategy), work.model.workload, layout(machine), **more
    )


def read_step(table: object, work: Model, machine: Topology, **more: Any) -> StepQuestion:
    """The question of a `[step]` table without faults."""
    faults = Faults()
    question = parse_step(table, work, machine, faults, **more)
    faults.raise_any()
    assert question is not None
    return question


def constant_gradients(
    numbers: Sequence[float], variables: int = 1, rate: float = 1.0
) -> VariableValues:
    """Scalar variables that begin at 0; worker w's gradient is always `numbers[w]`."""

    def gradient(request: GradientRequest) -> Floats:
        return np.array(float(numbers[request.worker]))

    return VariableValues((np.array(0.0),) * variables, gradient, rate)


def run(
    work: StepJob,
    strategy: str | Method,
    machine: Topology | None = None,
    runtime: Runtime = IDEAL,
    **more: Any,
) -> StepResult:
    """The step of `work` on `machine`, a pair unless given; `more` is for the method."""
    machine = machine or pair()
    method = by(strategy, work, machine, **more) if isinstance(strategy, str) else strategy
    return simulate_step(work, method, Setup(machine, runtime))


def ticks(step: StepResult) -> list[tuple[float, float, float]]:
    """(ready, start, finish) of every bucket."""
    return [(b.ready / TICK, b.start / TICK, b.finish / TICK) for b in step.buckets]


def entered(run: ReplicasRun, update: int, variable: int = 0) -> list[tuple[int, int]]:
    """(worker, its own step) of every gradient in an update of a variable, by arrival."""
    return [
        (a.worker, a.step) for a in run.arrivals if (a.update, a.variable) == (update, variable)
    ]
