"""One strategy for one workload, to look at more closely than a ranking does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from simreduce.errors import StrategyError
from simreduce.export import Choice
from simreduce.packing import NoPacking
from simreduce.plan import Plan, repeat
from simreduce.scenario import Scenario
from simreduce.setup import Setup
from simreduce.strategy import Strategy
from simreduce.training import StepQuestion
from simreduce.training.sharded import DDP, largest_unit
from simreduce.workload import Workload


@dataclass(frozen=True, slots=True)
class Asked:
    """A strategy for a workload on one machine, `times` times in a row, before there is a plan."""

    name: str
    strategy: Strategy
    workload: Workload
    setup: Setup
    times: int = 1
    root: int = 0
    faithful: bool = False

    def compile(self) -> Question:
        """With its plan; StrategyError if the machine does not accept the strategy."""
        plan = self.setup.compile(
            self.strategy, self.workload, root=self.root, faithful=self.faithful
        )
        return Question(
            name=self.name,
            strategy=self.strategy.text,
            collective=self.strategy.collective,
            workload=self.workload.name,
            size_bytes=self.workload.nbytes,
            times=self.times,
            plan=repeat(plan, self.times) if self.times > 1 else plan,
            setup=self.setup,
        )


@dataclass(frozen=True, slots=True)
class Question:
    """One plan on one machine. The plan chains `times` reductions."""

    name: str
    strategy: str
    collective: str
    workload: str
    size_bytes: int
    times: int
    plan: Plan
    setup: Setup

    @property
    def about(self) -> dict[str, Any]:
        """What documents say of it."""
        return {
            "question": self.name,
            "strategy": self.strategy,
            "collective": self.collective,
            "workload": self.workload,
            "size_bytes": self.size_bytes,
            "ranks": len(self.setup.layout),
            "repeat": self.times,
            "disturbance": self.setup.disturbance.text,
        }


def ask(scenario: Scenario, strategy: Strategy) -> Asked:
    """A strategy of a scenario."""
    setup = scenario.setup.running(strategy)
    return Asked(
        scenario.name, strategy, scenario.workload, setup, scenario.repeat,
        faithful=scenario.faithful,
    )  # fmt: skip


def choice_of(asked: Asked, step: StepQuestion | None, method: str = DDP) -> Choice:
    """What other systems are told of it, with what a training step adds; StrategyError for packs of
    a sharded step.
    """
    choice = Choice(asked.setup, asked.workload, asked.strategy)
    if step is None:
        return choice
    sharding, job = step.sharding, step.job
    choice = replace(choice, cycle=step.cycle, batch=job.batch, accumulate=job.accumulate)
    if method == DDP or sharding is None:
        return choice
    if not isinstance(asked.strategy.packer, NoPacking):
        packing = asked.strategy.packing
        raise StrategyError(f"{method} reduces a unit at a time; leave out +{packing}")
    unit = largest_unit(job.model, sharding.units)
    return replace(choice, method=method, shards=sharding, unit=unit)
