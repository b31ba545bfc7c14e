"""The search of Horovod's fusion threshold and cycle for a step, with NCCL's choices by size.

Which gradients share a buffer depends on the cycle in which they become ready, so every threshold
goes with every cycle. Each such point is followed cycle by cycle (`compose_step`), with times of
buffers interpolated between simulated calls, four for each doubling of the size. Then the best few
are simulated with their own buffers, until no other is below the best by its estimate.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import numpy as np

from simreduce import dtypes
from simreduce.computing.arrays import Floats
from simreduce.engine import NCCL
from simreduce.planners.nccl.constants import Rule
from simreduce.planners.packing import Fusion
from simreduce.planners.strategy import parse_strategy
from simreduce.study.advice import sureness_of
from simreduce.study.scenario import StepScenario
from simreduce.study.tune.search.by_nccl import NcclSearch
from simreduce.study.tune.search.packings import CallSetting, CallSize, GradientPacking
from simreduce.study.tune.search.search import WIDTH, Aim, Search
from simreduce.study.tune.search.setting import Do, Setting, evaluate
from simreduce.study.tune.search.step_calls import needed_channels
from simreduce.study.tune.search.tuned import Tuned
from simreduce.training.calls import CallCost
from simreduce.training.reductions import Fused, Method
from simreduce.training.simulation import compose_step

_FINE = 2 ** (1 / 4)
"""From one size of a simulated call to the next."""

_MOST = 16
"""Settings that are simulated with their own buffers, at most."""

_LESS = 0.97
"""The factor of the bound, as a call may take less than a smaller one by a part of chunks."""

CYCLES = tuple(ms * 1e-3 for ms in (0.5, 0.75, 1, 1.5, 2.5, 3.5, 5, 7.5, 10))
"""Seconds of a cycle that are tried."""


class HorovodSearch(Search[StepScenario]):
    """The search of thresholds and cycles.

    `estimates` are times by interpolated calls. No point takes less than `least`.
    """

    def __init__(self, aim: Aim[StepScenario], before: Tuned | None = None) -> None:
        inner = NcclSearch(aim)
        super().__init__(aim, aim.reducing.but(runtime=NCCL), before, inner.default)
        self.packings, self.calls = inner.packings, inner.calls
        self.step = aim.reducing.step
        self.cycles = [None, *(c for c in CYCLES if abs(c - self.step.cycle) > c * 1e-6)]
        self.estimates: dict[Setting, float] = {}
        self.least = aim.overlap.alone
        self._curves: dict[tuple[bool, int], tuple[Floats, Floats]] = {}

    def answer(self, *, stopped: bool = False) -> Tuned:
        """The answer, with the number of points: each with NCCL's own choices, and with others."""
        return replace(
            super().answer(stopped=stopped),
            points=len(self.packings) * len(self.cycles) * (2 if self.calls.choices else 1),
            calls=self.calls.counted,
            bound=min(self.least, self.outcome.best),
            sureness=sureness_of(self.scenario, [size.nbytes for size in self.packings[0].calls]),
            estimated=True,
        )

    def run(self, do: Do) -> None:
        """Estimate every point, and simulate the best."""
        progress, seconds = self.aim.progress, self.outcome.seconds
        most = len(self.packings) * len(self.cycles)
        progress(0, most)
        rules = self._learn(do)
        for done, packing in enumerate(self.packings):
            progress(done * len(self.cycles), most)
            self.estimates |= self._estimate(packing, rules)
        order = sorted(self.estimates, key=lambda s: (self.estimates[s], s.tie_break))[:_MOST]
        for at in range(0, len(order), WIDTH):
            if self.estimates[order[at]] > self.outcome.best * (1 + 1e-9):
                break
            new = [s for s in order[at : at + WIDTH] if s not in seconds]
            seconds |= {s: each.seconds for s, each in zip(new, do(evaluate, new), strict=True)}
        progress(most, most)

    def _learn(self, do: Do) -> tuple[Rule, ...]:
        """Simulate calls of all sizes; returns the fastest choice by ranges of sizes."""
        calls, rules = self.calls, tuple[Rule, ...]()
        every = {size for packing in self.packings for size in packing.calls}
        smallest = max(min(size.nbytes for size in every if size.nbytes), 64)
        for dtype in sorted({size.dtype for size in every}):
            sizes = _knots(smallest, self.scenario.workload.elements, dtype)
            if calls.choices:
                calls.rate(do, map(calls.own, sizes))
                calls.settle(sizes, do)
                rules = rules or calls.rules(sizes, do)
            nbytes = np.array([size.nbytes for size in sizes], dtype=np.float64)
            for used in ((), rules)[: 1 + bool(rules)]:
                asked = [CallSetting(calls.chosen(used, size), size) for size in sizes]
                calls.ask(asked, do)
                times = np.array([calls.bound(each.how, each.size) for each in asked])
                self._curves[bool(used), dtype] = nbytes, times
        self.least = max(self.least, self._bound())
        return rules

    def _price(self, nbytes: int, dtype: int, *, ruled: bool) -> float:
        return float(np.interp(nbytes, *self._curves[ruled, dtype]))

    def _bound(self) -> float:
        """Seconds of every step at least: the gradients that are ready last are reduced then."""
        gradients, overlap = self.scenario.workload.gradients, self.aim.overlap
        last = max(overlap.ready, default=0.0)
        late = [g for g, t in zip(gradients, overlap.ready, strict=True) if t == last]
        if last < overlap.compute or not late:
            return overlap.alone
        least = min(
            self._price(g.elements * dtypes.SIZES[dtype], dtype, ruled=ruled)
            for g in late
            for ruled, dtype in self._curves
        )
        return overlap.compute + _LESS * least + overlap.update

    def _estimate(self, packing: GradientPacking, rules: tuple[Rule, ...]) -> dict[Setting, float]:
        """Seconds of steps with a packing by interpolated calls.

        Most buffers come again in the next steps, and with other cycles.
        """
        strategy = parse_strategy(f"nccl{packing.text}")
        workload, layout = self.scenario.workload, self.scenario.setup.layout
        assert isinstance(strategy.packer, Fusion)  # noqa: S101 - all packings here are
        fused = Fused(strategy.packer, strategy, workload, layout, faithful=False, planned=False)
        wire = {size.dtype for size in packing.calls}
        channels = needed_channels(self.scenario.setup, rules)

        @cache
        def price(buffer: tuple[int, ...], *, ruled: bool) -> CallCost:
            some = [workload.gradients[i] for i in buffer]
            dtype = some[0].dtype if some[0].dtype in wire else min(wire)
            copied = sum(g.nbytes for g in some) * (len(some) > 1 or dtype != some[0].dtype)
            size = CallSize(sum(g.elements for g in some), dtype)
            how = self.calls.chosen(rules if ruled else (), size)
            copying = self.aim.overlap.copying * copied
            return CallCost(self._price(size.nbytes, dtype, ruled=ruled) + copying, how.channels)

        def seconds(cycle: float, *, ruled: bool) -> float:
            method = Method("", None, (), streams=1, fusion=replace(fused, cycle=cycle))
            cost = partial(price, ruled=ruled)
            return compose_step(self.step.job, method, self.scenario.setup, cost).seconds

        return {
            Setting(f"nccl{packing.text}", used, channels * bool(used), cycle=cycle): seconds(
                self.step.cycle if cycle is None else cycle, ruled=bool(used)
            )
            for cycle in self.cycles
            for used in ((), rules)[: 1 + bool(rules)]
        }


def _knots(smallest: int, elements: int, dtype: int) -> list[CallSize]:
    """Sizes from a small call to that of all gradients together."""
    width, found = dtypes.SIZES[dtype], list[CallSize]()
    at = smallest / width
    while at < elements:
        found.append(CallSize(max(int(at), 1), dtype))
        at *= _FINE
    return list(dict.fromkeys([*found, CallSize(elements, dtype)]))
