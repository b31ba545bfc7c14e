"""The searches of whole plans.

One tries every algorithm, each bounded by the floors of its plan and simulated only if these are
below the best time; the other tries tf_cnn_benchmarks' modes.

The search of Horovod's fusion threshold and cycle for a step, with NCCL's choices by size.

Which gradients share a buffer depends on the cycle in which they become ready, so every threshold
goes with every cycle. Each such point is followed cycle by cycle (`compose_step`), with times of
buffers interpolated between simulated calls, four for each doubling of the size. Then the best few
are simulated with their own buffers, until no other is below the best by its estimate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import permutations
from math import inf

import numpy as np

from simreduce import dtypes
from simreduce.computing.arrays import Floats
from simreduce.engine import NCCL
from simreduce.errors import Deadlock, InputError
from simreduce.export.framework import Choice, bucket_sizes
from simreduce.export.frameworks import FRAMEWORKS
from simreduce.plan import verify, wrong_elements
from simreduce.planners.algorithms import ALGORITHMS, TWO_LEVEL
from simreduce.planners.nccl import facts
from simreduce.planners.nccl.choice import plan as nccl_plan
from simreduce.planners.nccl.constants import Rule
from simreduce.planners.packing import Fusion, why_too_fine
from simreduce.planners.strategy import parse_strategy
from simreduce.study.advice import sureness_of
from simreduce.study.frameworks import default_text
from simreduce.study.ranking import ask
from simreduce.study.scenario import Scenario, StepScenario
from simreduce.study.tune.rank import candidates
from simreduce.study.tune.search.by_nccl import NcclSearch
from simreduce.study.tune.search.packings import CallSetting, CallSize, GradientPacking
from simreduce.study.tune.search.search import WIDTH, Aim, Search, Tuned
from simreduce.study.tune.search.setting import Do, Setting, Tried, evaluate, search
from simreduce.study.tune.search.step_calls import needed_channels
from simreduce.study.tune.simulate import lower_bound
from simreduce.training.calls import CallCost, Fused, Method
from simreduce.training.simulation import compose_step

_FINALISTS = 5
"""Algorithms that are tried in pairs, one for small gradients and one for large ones."""

_LIMITS = 5
"""Limits between them that are tried."""

_COARSER = 2
"""Of the sizes of buckets, one in so many is tried."""

_SMALL = ("small=4096,10", "small=16384,10", "small=65536,10", "small=65536,40", "small=262144,40")

_ORDERED = ("xring", "ring", "collective")
"""Algorithms whose rings take the order of the GPUs."""

MODES = tuple(
    Setting("", mode=mode, device=device)
    for mode in ("parameter_server", "distributed_replicated")
    for device in ("cpu", "gpu")
)
"""tf_cnn_benchmarks' modes whose variables are on servers."""


def settings_of(scenario: Scenario, target: str, *, half: bool) -> list[Setting]:
    """The settings of a target that are tried.

    They are the strategies that `run` ranks, more packings of each kind, and other orders of rings.
    """
    if not FRAMEWORKS[target].trains:
        tried = [Setting(text) for text in FRAMEWORKS[target].tried]
        return [setting for setting in tried if _is_settable(target, scenario, setting)]
    texts = [s.text for s in candidates(scenario.setup.layout)]
    specs = list(dict.fromkeys(parse_strategy(text).spec for text in texts))
    sizes = bucket_sizes(scenario.workload)[::-_COARSER]
    texts += [
        *(f"{spec}+bucket={size}" for spec in ("nccl", "collective") for size in sizes),
        *(f"{spec}+{small}" for spec in specs for small in _SMALL),
        *(f"{spec}+packs={n}" for spec in specs for n in (2, 3, 4, 6, 8, 12, 16)),
        *(f"{spec}+repack={n},fp16" for spec in specs for n in (1, 2, 4, 8)),
    ]
    settings = [Setting(text) for text in dict.fromkeys(texts) if half or "fp16" not in text]
    settings += [
        Setting(setting.strategy, order=order)
        for order in _orders(scenario)
        for setting in settings
        if parse_strategy(setting.strategy).spec.partition("#")[0] in _ORDERED
    ]
    return [setting for setting in settings if _is_settable(target, scenario, setting)]


def _is_settable(target: str, scenario: Scenario, setting: Setting) -> bool:
    """Whether a target can be set to it; `any` can to all that have a plan."""
    strategy = parse_strategy(setting.strategy)
    if why_too_fine(strategy.packer, scenario.workload.finest):
        return False
    return not FRAMEWORKS[target].refusals(
        Choice(setting.setup(scenario.setup), scenario.workload, strategy)
    )


def _orders(scenario: Scenario) -> list[tuple[int, ...]]:
    """The orders of GPUs of NCCL's rings, on one machine."""
    setup = scenario.setup
    if len(setup.layout.tasks) > 1 or setup.layout.n < 3 or setup.layout.order:
        return []
    try:
        channels = nccl_plan(
            facts(setup.machine, setup.layout.ranks, setup.nccl), setup.nccl
        ).graphs.ring.channels
    except InputError:
        return []
    own = tuple(range(setup.layout.n))
    return [
        order
        for order in dict.fromkeys([tuple(channel.gpus) for channel in channels])
        if order != own and sorted(order) == list(own)
    ]


class PlanSearch(Search[Scenario]):
    """The search of all algorithms that the target has."""

    def __init__(self, aim: Aim[Scenario], before: Tuned | None = None) -> None:
        scenario, target = aim.reducing, aim.target
        self.settings = settings_of(scenario, target, half=aim.half)
        if not self.settings and before is None:
            raise InputError(
                f"{target} has no setting for any strategy on {scenario.setup.machine.name}"
            )
        # TensorFlow's own choice, or the copies of tf_cnn_benchmarks.
        default = Setting(default_text(target, scenario) or "copy_to_gpus")
        if before is None and not _is_settable(target, scenario, default):
            default = self.settings[0]
        super().__init__(aim, before, scenario, None if before else default)
        self.limit = before.best.seconds if before else inf

    @property
    def seconds(self) -> Mapping[Setting, float]:
        """Seconds by setting, but for those with a wrong plan that would be the best."""
        right = {s: took for s, took in self.outcome.seconds.items() if took < inf}
        while right and not _is_right(self.scenario, best := min(right, key=right.__getitem__)):
            del right[best]
        return right

    def answer(self, *, stopped: bool = False) -> Tuned:
        """The answer, with the number of settings."""
        return replace(super().answer(stopped=stopped), points=len(self.settings))

    def run(self, do: Do) -> None:
        """Search the settings, then pairs of the best algorithms by size."""
        self._search(self.settings, do)
        pairs = [s for s in self._pairs() if _is_settable(self.aim.target, self.scenario, s)]
        self.settings += pairs
        self._search(pairs, do)

    def _search(self, settings: Sequence[Setting], do: Do) -> None:
        new = [s for s in settings if s not in self.outcome.seconds]

        def simulate(some: Sequence[Setting]) -> list[Tried]:
            return do(partial(evaluate, limit=min(self.limit, self.outcome.best)), some)

        bounds, progress = zip(do(_bound, new), new, strict=True), self.aim.progress
        search(bounds, lambda _: None, simulate, self.outcome, WIDTH, progress=progress)

    def _pairs(self) -> Iterator[Setting]:
        """Pairs of the fastest algorithms without a packer.

        One is for gradients up to a limit, and one for the rest.
        """
        sizes = sorted({g.elements for g in self.scenario.workload.gradients})
        known = {**self.outcome.excluded, **self.outcome.seconds}
        alone = sorted(
            (s for s in known if not s.order and s.strategy in (*ALGORITHMS, *TWO_LEVEL)),
            key=lambda s: (known[s], s.strategy),
        )
        names = [s.strategy for s in alone[:_FINALISTS]]
        step = max(len(sizes) // (_LIMITS + 1), 1)
        yield from (
            Setting(f"{small}:{limit}:{large}")
            for limit in sizes[step - 1 : -1 : step]
            for small, large in permutations(names, 2)
        )


class ModeSearch(Search[Scenario]):
    """The search of `MODES`: every mode is simulated that a machine, or several, has."""

    floors = inf, inf

    def run(self, do: Do) -> None:
        """Simulate all; distributed_replicated is for several tasks."""
        several = self.scenario.setup.layout.task_count > 1
        modes = [each for each in MODES if several or each.mode != "distributed_replicated"]
        self.outcome.seconds |= {
            setting: each.seconds for setting, each in zip(modes, do(evaluate, modes), strict=True)
        }


def _bound(scenario: Scenario, setting: Setting) -> float:
    """Seconds that a setting takes at least, by its plan; infinite if it has none."""
    own = setting.scenario(scenario)
    strategy = parse_strategy(setting.strategy)
    try:
        floor = lower_bound(ask(own, strategy)).seconds
    except (Deadlock, InputError):
        return inf
    if own.step is None:
        return floor
    job = own.step.job
    return (max(floor, job.profile.seconds) if job.barrier else 0.0) + job.update


def _is_right(scenario: Scenario, setting: Setting) -> bool:
    """Whether the plan of a setting is proven to sum right."""
    own, strategy = setting.scenario(scenario), parse_strategy(setting.strategy)
    return not wrong_elements(verify(ask(own, strategy).compile()))


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
        super().__init__(aim, before, aim.reducing.but(runtime=NCCL), inner.default)
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
                self._curves[bool(used), dtype] = (
                    nbytes,
                    np.array([calls.bound(each.how, each.size) for each in asked]),
                )
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
            return compose_step(
                self.step.job,
                Method("", None, (), streams=1, fusion=replace(fused, cycle=cycle)),
                self.scenario.setup,
                partial(price, ruled=ruled),
            ).seconds

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
