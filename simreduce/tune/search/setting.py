"""One point of the space: a strategy, and what NCCL, the ranks, Horovod and shards are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import inf

from simreduce import dtypes
from simreduce.engine import AtLeast
from simreduce.errors import Deadlock, InputError
from simreduce.nccl.tuner import Rule
from simreduce.scenario import Scenario
from simreduce.setup import Setup
from simreduce.strategy import Strategy, parse_strategy
from simreduce.training import simulate_step
from simreduce.training.sharded import DDP, Sharding
from simreduce.training.ticks import takes_turns, tick_step
from simreduce.tune.bounds import simulate_up_to
from simreduce.tune.search.best_first import Tried
from simreduce.units import exact_size
from simreduce.variable_update import Flags


@dataclass(frozen=True, slots=True)
class Setting:
    """A strategy; `rules` by which NCCL chooses for each size, empty for its own choice; an `order`
    of the GPUs of each machine in rings, empty for theirs; Horovod's `cycle` in seconds.

    Of a step, a `method` other than `ddp` shards by `sharding`. A `mode` of tf_cnn_benchmarks, with
    variables on a `device`, stands instead of a strategy.
    """

    strategy: str
    rules: tuple[Rule, ...] = ()
    order: tuple[int, ...] = ()
    cycle: float | None = None
    method: str = DDP
    sharding: Sharding | None = None
    mode: str = ""
    device: str = ""

    @property
    def label(self) -> str:
        """The setting in one line."""
        parts = [self.strategy]
        if self.mode:
            parts = [f"{self.mode}, variables on each {self.device.upper()}"]
        if self.rules:
            parts.append(f"[{rules_text(self.rules)}]")
        if self.order:
            parts.append(f"gpu_indices {','.join(map(str, self.order))}")
        if self.cycle is not None:
            parts.append(f"cycle {self.cycle * 1e3:g} ms")
        if self.sharding is not None:
            parts = [self.method + ",", *parts, *(f"{k}={v}" for k, v in self.knobs.items())]
        return " ".join(parts)

    @property
    def knobs(self) -> dict[str, object]:
        """What differs from the defaults of a sharded method, as it stands in a scenario."""
        if self.sharding is None:
            return {}
        unset, found = Sharding(), dict[str, object]()
        for key in (each.name for each in fields(Sharding)):
            value = getattr(self.sharding, key)
            if value == getattr(unset, key):
                continue
            if key == "units" and isinstance(value, int):
                value = _size_text(value)
            if key.endswith("dtype"):
                value = dtypes.NAMES[value]
            found[key] = str(value).lower() if isinstance(value, bool) else value
        return found

    @property
    def simplicity(self) -> tuple[int, int, int, str]:
        """A key that sorts what is less to say first."""
        text = self.label if self.mode or self.sharding else self.strategy
        return len(self.rules), len(self.order) + len(self.knobs), len(text), text

    @property
    def parsed(self) -> Strategy | None:
        """The strategy; None of a mode."""
        return None if self.mode else parse_strategy(self.strategy)

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
        if step is not None and self.mode:
            flags = Flags(local_parameter_device=self.device)
            step = replace(step, mode=self.mode, flags=flags)
        if step is not None and self.sharding is not None:
            step = replace(step, methods=(self.method,), sharding=self.sharding)
        return replace(
            base,
            setup=self.setup(base.setup),
            strategies=() if self.parsed is None else (self.parsed,),
            step=step,
        )


def _size_text(nbytes: int) -> str:
    """As a scenario has it."""
    for unit, size in (("GB", 10**9), ("MB", 10**6)):
        if nbytes % size == 0:
            return f"{nbytes // size}{unit}"
    return exact_size(nbytes).replace(" ", "")


def rules_text(rules: Sequence[Rule]) -> str:
    """Rules as one line: `up to 65536 B ring+ll+8, then nvls+simple+16`."""
    words = [
        f"{r.algorithm}+{r.protocol}" + (f"+{r.channels}" if r.channels > 0 else "") for r in rules
    ]
    limits = [f"to {r.most} B " if r.most is not None else "" for r in rules]
    kinds = [
        f"{r.collective} " if r.collective != "all_reduce" and not r.least else "" for r in rules
    ]
    limits = [kind + limit for kind, limit in zip(kinds, limits, strict=True)]
    return ", ".join(limit + word for limit, word in zip(limits, words, strict=True))


def evaluate(scenario: Scenario, objective: str, setting: Setting, limit: float = inf) -> Tried:
    """Seconds of one all-reduce or step by this setting; of one that takes longer than `limit`, at
    least that. Infinite for what the machine refuses or never finishes.
    """
    own, strategy = setting.scenario(scenario), setting.parsed
    setup = own.setup.running(strategy)
    try:
        if objective == "step":
            assert own.step is not None  # noqa: S101 - the caller has looked
            method = own.step.method(strategy, setup.layout, faithful=own.faithful)
            if takes_turns(own.step.job, method, setup):
                return Tried(tick_step(own.step.job, method, setup), len(method.plan))
            return Tried(simulate_step(own.step.job, method, setup).seconds, len(method.plan))
        assert strategy is not None  # noqa: S101 - modes are for steps
        found = simulate_up_to(
            limit, setup, strategy, own.workload, faithful=own.faithful, times=own.repeat
        )
    except (Deadlock, InputError):
        return Tried(inf)
    if isinstance(found, AtLeast):
        return Tried(found.seconds, exact=False)
    return Tried(found.result.seconds / own.repeat, own.repeat * len(found.plan))
