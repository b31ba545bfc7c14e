"""One strategy for one workload, to look at more closely than a ranking does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from simreduce.engine.setup import Setup
from simreduce.errors import StrategyError
from simreduce.export import Choice
from simreduce.files.formats.fields import Name
from simreduce.plan import Plan, repeat
from simreduce.planners.layouts import node_names
from simreduce.planners.packing import NoPacking
from simreduce.planners.strategy import Strategy
from simreduce.topology import Topology
from simreduce.topology.switch_groups import label, switch_groups
from simreduce.workload import Workload

if TYPE_CHECKING:
    from simreduce.study.scenario import Scenario
    from simreduce.training import StepQuestion


@dataclass(frozen=True, slots=True)
class Question:
    """How long a strategy takes for a workload on one machine, `times` times in a row."""

    strategy: Strategy
    workload: Workload
    setup: Setup
    times: int = 1
    root: int = 0
    faithful: bool = False
    name: str = ""

    def compile(self) -> Plan:
        """The plan of one of its reductions; StrategyError if the machine does not accept it."""
        return self.setup.compile(
            self.strategy, self.workload, root=self.root, faithful=self.faithful
        )

    def compile_all(self) -> Plan:
        """The plan that chains all its reductions. Raises as `compile` does."""
        plan = self.compile()
        return repeat(plan, self.times) if self.times > 1 else plan

    @property
    def about(self) -> dict[str, Any]:
        """The keys with which documents name the question."""
        setup, strategy = self.setup, self.strategy
        return {
            "question": self.name,
            "strategy": strategy.text,
            "collective": strategy.collective,
            "workload": self.workload.name,
            "size_bytes": self.workload.nbytes,
            "ranks": len(setup.layout),
            "repeat": self.times,
            "equal_paths": setup.equal_paths,
            "nccl_settings": setup.nccl.text,
            "nominal": setup.nominal([strategy.text], setup.calls_of(strategy, self.workload)),
            "disturbance": setup.disturbed,
        }


def ask(scenario: Scenario, strategy: Strategy) -> Question:
    """A strategy of a scenario."""
    setup, times = scenario.setup.running(strategy), scenario.repeat
    return Question(
        strategy, scenario.workload, setup, times, faithful=scenario.faithful, name=scenario.name
    )


def choice_of(question: Question, step: StepQuestion | None, method: str = "") -> Choice:
    """The question as exporters take it.

    It has the settings of a training step by a method, DDP unless given. StrategyError for packs of
    a sharded step.
    """
    hosts, groups = _hosts(question.setup)
    choice = Choice(
        question.setup, question.workload, question.strategy, hosts=hosts, groups=groups
    )
    if step is None:
        return choice
    from simreduce.training.sharded import DDP, largest_unit  # noqa: PLC0415 - a bench does without

    sharding, job = step.sharding, step.job
    choice = replace(choice, cycle=step.cycle, batch=job.batch, accumulate=job.accumulate)
    if method in ("", DDP) or sharding is None:
        return choice
    if not isinstance(question.strategy.packer, NoPacking):
        raise StrategyError(
            f"{method} reduces a unit at a time; leave out +{question.strategy.packing}"
        )
    return replace(
        choice, method=method, shards=sharding, unit=largest_unit(job.model, sharding.units)
    )


def _hosts(setup: Setup) -> tuple[tuple[Name, ...], tuple[int, ...]]:
    """The nodes of ranks in their order, and the number of the switches that each is below."""
    machine = setup.machine
    if not isinstance(machine, Topology):
        return (), ()
    names = node_names(setup.layout, machine)
    if not all(names):
        return (), ()
    leaves = enumerate(switch_groups(machine).leaves) if len(names) > 1 else ()
    group = {name: i for i, leaf in leaves for name in leaf.machines}
    return tuple(Name(label(name)) for name in names), tuple(
        group[name] for name in names if name in group
    )
