"""The all-reduces of small tensors that a target has, and where each is the fastest."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import NamedTuple

from simreduce.errors import StrategyError
from simreduce.export import Choice
from simreduce.export.frameworks import FRAMEWORKS
from simreduce.planners.strategy import parse_strategy
from simreduce.study.scenario import Scenario
from simreduce.study.study import TIED
from simreduce.study.tune.sizes import tensor

SIZES = tuple(1 << power for power in range(10, 25))
"""1 KiB to 16 MiB."""


class SizeRange(NamedTuple):
    """The fastest strategy from a size on, what switches it on, and its time at that size; beside
    it what runs unless anybody says, with its time.
    """

    nbytes: int
    strategy: str
    switch: str
    seconds: float
    default: str
    default_seconds: float


def size_ranges(target: str, scenario: Scenario) -> tuple[SizeRange, ...]:
    """Where the fastest changes, launched by CUDA graphs; nothing of targets without kernels for
    small tensors, and where NVLinks do not join all GPUs.
    """
    setup = scenario.setup.but(call_cost=0.0)
    known, layout = FRAMEWORKS[target], setup.layout
    if not known.switches or layout.task_count > 1 or layout.n < 2 or not layout.joined:
        return ()
    dtype, found = scenario.workload.gradients[0].dtype, list[SizeRange]()
    for nbytes in SIZES:
        choice = Choice(setup, tensor(nbytes, dtype), parse_strategy("nccl"))
        took = times_of(target, choice)
        best = min(took, key=took.__getitem__, default="")
        if not best or (found and took.get(found[-1].strategy, inf) <= took[best] * TIED):
            continue
        default = known.default(choice).partition("+")[0]  # one tensor is not packed
        now = took.get(default, took[best])
        found.append(SizeRange(nbytes, best, known.switches[best], took[best], default, now))
    return tuple(found)


def times_of(target: str, choice: Choice) -> Mapping[str, float]:
    """The seconds of the strategies that a target has for small tensors, where it has a setting
    for one and the machine a plan.
    """
    known, took = FRAMEWORKS[target], dict[str, float]()
    for text in known.switches:
        strategy = parse_strategy(text)
        if known.tried and known.refusals(replace(choice, strategy=strategy)):
            continue
        running = choice.setup.running(strategy)
        with suppress(StrategyError):
            took[text] = running.summarise(running.compile(strategy, choice.workload)).seconds
    return took
