"""One point of the space: a strategy, and what NCCL, the ranks and Horovod are told with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from simreduce.engine import AtLeast
from simreduce.errors import Deadlock, InputError
from simreduce.nccl.tuner import Rule
from simreduce.scenario import Scenario
from simreduce.setup import Setup
from simreduce.strategy import parse_strategy
from simreduce.training import simulate_step
from simreduce.tune.bounds import simulate_up_to
from simreduce.tune.search.best_first import Tried


@dataclass(frozen=True, slots=True)
class Setting:
    """A strategy; `rules` by which NCCL chooses for each size, empty for its own choice; an `order`
    of the GPUs of each machine in rings, empty for theirs; Horovod's `cycle` in seconds.
    """

    strategy: str
    rules: tuple[Rule, ...] = ()
    order: tuple[int, ...] = ()
    cycle: float | None = None

    @property
    def label(self) -> str:
        """The setting in one line."""
        parts = [self.strategy]
        if self.rules:
            parts.append(f"[{rules_text(self.rules)}]")
        if self.order:
            parts.append(f"gpu_indices {','.join(map(str, self.order))}")
        if self.cycle is not None:
            parts.append(f"cycle {self.cycle * 1e3:g} ms")
        return " ".join(parts)

    @property
    def simplicity(self) -> tuple[int, int, int, str]:
        """A key that sorts what is less to say first."""
        return len(self.rules), len(self.order), len(self.strategy), self.strategy

    def setup(self, base: Setup) -> Setup:
        """The setup of `base` that is told this."""
        found = base
        if self.rules:
            found = found.but(nccl=replace(found.nccl, tuner=self.rules))
        if self.order:
            found = found.but(part=found.layout.with_order(list(self.order)))
        return found

    def scenario(self, base: Scenario) -> Scenario:
        """The scenario with this setting as its only strategy."""
        step = base.step
        if step is not None and self.cycle is not None:
            step = replace(step, cycle=self.cycle)
        return replace(
            base,
            setup=self.setup(base.setup),
            strategies=(parse_strategy(self.strategy),),
            step=step,
        )


def rules_text(rules: Sequence[Rule]) -> str:
    """Rules as one line: `up to 65536 B ring+ll+8, then nvls+simple+16`."""
    words = [
        f"{r.algorithm}+{r.protocol}" + (f"+{r.channels}" if r.channels > 0 else "") for r in rules
    ]
    limits = [f"to {r.most} B " if r.most is not None else "" for r in rules]
    return ", ".join(limit + word for limit, word in zip(limits, words, strict=True))


def evaluate(scenario: Scenario, objective: str, setting: Setting, limit: float = inf) -> Tried:
    """Seconds of one all-reduce or step by this setting; of one that takes longer than `limit`, at
    least that. Infinite for what the machine refuses or never finishes.
    """
    own = setting.scenario(scenario)
    strategy = parse_strategy(setting.strategy)
    setup = own.setup.running(strategy)
    try:
        if objective == "step":
            assert own.step is not None  # noqa: S101 - the caller has looked
            method = own.step.method(strategy, setup.layout, faithful=own.faithful)
            return Tried(simulate_step(own.step.job, method, setup).seconds, len(method.plan))
        found = simulate_up_to(
            limit, setup, strategy, own.workload, faithful=own.faithful, times=own.repeat
        )
    except (Deadlock, InputError):
        return Tried(inf)
    if isinstance(found, AtLeast):
        return Tried(found.seconds, exact=False)
    return Tried(found.result.seconds / own.repeat, own.repeat * len(found.plan))
