"""One strategy for one workload, to look at more closely than a ranking does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simreduce.plan import Plan, repeat
from simreduce.scenario import Scenario
from simreduce.setup import Setup
from simreduce.strategy import Strategy
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
