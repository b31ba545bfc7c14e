"""The common part of all searches: the aim, the default, the floors and the answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any, Generic

from simreduce.computing.workers import Progress
from simreduce.engine import NCCL
from simreduce.export.frameworks import FRAMEWORKS, USUAL
from simreduce.study.ranking import in_order
from simreduce.study.tune.search.packings import OverlapEstimate, estimate_overlap
from simreduce.study.tune.search.setting import (
    S,
    S_co,
    SearchOutcome,
    Setting,
    Working,
    evaluate,
    least_fit,
    reducing_scenario,
)
from simreduce.study.tune.search.targets import STEP, TIME, methods_of
from simreduce.study.tune.search.tuned import BucketTime, SettingRow, Tuned
from simreduce.training.calls import FIXED
from simreduce.training.memory import MemoryFit
from simreduce.training.sharded import DDP
from simreduce.workload import Workload

EFFORT = 40_000_000
"""Ops of whole plans that are simulated before a search settles for what it has."""

WIDTH = 4
"""Settings that are simulated at a time, however many processes there are: so that the answer is
the same everywhere.
"""


@dataclass(frozen=True)
class Aim(Generic[S_co]):
    """A scenario, and the target whose settings are tried.

    If the scenario has a step, it is shortened; with `half`, half precision on the wire is tried
    too.
    """

    scenario: S_co
    target: str = USUAL
    half: bool = False
    workers: int = 1
    effort: int = EFFORT
    progress: Progress = lambda _done, _all: None

    @cached_property
    def methods(self) -> tuple[str, ...]:
        """The methods that are tried."""
        return methods_of(self.target, self.scenario) if self.scenario.step else (DDP,)

    @cached_property
    def misfit(self) -> bool:
        """Whether only methods that shard may fit the memory of a GPU."""
        if self.scenario.step is None or len(self.methods) == 1:
            return False
        return least_fit(self.scenario.step, self.scenario.setup, Setting("nccl")).fits is False

    @cached_property
    def reducing(self) -> S_co:
        """The scenario for DDP, where buffers may be settled before the step."""
        scenario = reducing_scenario(self.scenario)
        if not FRAMEWORKS[self.target].settled or scenario.step is None:
            return scenario
        return replace(scenario, step=replace(scenario.step, cycle=FIXED))

    @cached_property
    def overlap(self) -> OverlapEstimate:
        """Bounds of DDP by the times of its calls."""
        return estimate_overlap(self.reducing.but(runtime=NCCL))


class Search(ABC, Generic[S]):
    """A search of some settings for an aim, in the way of one system.

    It simulates `scenario`, that of the aim unless another is given, after the answer of other
    searches, `before`; `outcome` has what it found.
    """

    def __init__(
        self,
        aim: Aim[S],
        before: Tuned | None = None,
        scenario: S | None = None,
        default: Setting | None = None,
    ) -> None:
        self.aim, self.scenario = aim, aim.scenario if scenario is None else scenario
        self.before, self.default = before, default
        self.outcome: SearchOutcome[Any] = SearchOutcome()

    def first(self, do: Working[S]) -> None:
        """Simulate the default, if the search has one."""
        if self.default is not None:
            [tried] = do(evaluate, [self.default])
            self.outcome.seconds[self.default] = tried.seconds

    @abstractmethod
    def run(self, do: Working[S]) -> None:
        """Search, until an interrupt at most."""

    def curve(self, best: Setting, do: Working[S]) -> tuple[BucketTime, ...]:  # noqa: ARG002 - few have one
        """Times of other sizes of buckets than the best setting's; empty if there are none."""
        return ()

    @property
    def seconds(self) -> Mapping[Setting, float]:
        """Seconds by setting."""
        return self.outcome.seconds

    @property
    def floors(self) -> tuple[float, float]:
        """Two bounds in seconds.

        No algorithm takes less than the bytes, or half as many, need to cross the narrowest cut; no
        setting changes the compute of a step.
        """
        workload, setup, overlap = (
            self.scenario.workload,
            self.scenario.setup,
            self.aim.overlap,
        )
        small = Workload("one", (replace(workload.gradients[0], elements=setup.layout.n),))
        cut = setup.simulate(setup.compile("nccl", small)).floors.cut
        least = cut * workload.nbytes / small.nbytes / (2 if self.aim.half else 1)
        return max(least, overlap.compute) + overlap.update, overlap.alone

    def fit(self, setting: Setting) -> MemoryFit | None:
        """The memory that a setting needs at least; None of an all-reduce and of modes."""
        known = self.aim.scenario
        if known.step is None or setting.mode:
            return None
        return least_fit(known.step, known.setup, setting)

    def answer(self, *, stopped: bool = False) -> Tuned:
        """The answer of this search alone."""
        seconds, (floor, base) = self.seconds, self.floors
        found = [SettingRow(s, t, self.fit(s)) for s, t in seconds.items() if t < inf]
        rows = in_order(sorted(found, key=lambda row: row.setting.tie_break))
        last = rows[-1] if rows else SettingRow(Setting(""), inf)
        listed = self.outcome.excluded or not stopped  # else it was stopped before that
        bound = self.outcome.bound if listed else min(floor, self.outcome.best)
        return Tuned(
            scenario=self.scenario,
            target=self.aim.target,
            objective=STEP if self.aim.scenario.step else TIME,
            rows=tuple(rows),
            default=next((row for row in rows if row.setting == self.default), last),
            points=len(seconds),
            calls=0,
            bound=min([max(bound, floor) if stopped else bound, *(r.seconds for r in rows)]),
            floor=floor,
            base=base,
            stopped=stopped,
        )
