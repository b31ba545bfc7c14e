"""The best fusion threshold and cycle of Horovod for a step, and what NCCL is told with them.

Which gradients share a buffer depends on the cycle in which they become ready, so every threshold
goes with every cycle. Each such point is followed cycle by cycle (`training.ticks`), with times of
buffers that lie between those of simulated calls, four for each doubling of the size. Then the best
few are simulated with their own buffers, until no other is below the best by its estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

import numpy as np

from simreduce import dtypes
from simreduce.arrays import Floats
from simreduce.nccl.tuner import Rule
from simreduce.packing import Fusion
from simreduce.scenario import Scenario
from simreduce.strategy import parse_strategy
from simreduce.training.reductions import Fused
from simreduce.training.sharded.recurrence import slowest
from simreduce.training.ticks import tick
from simreduce.tune.search.best_first import Tried
from simreduce.tune.search.by_nccl import NcclSearch
from simreduce.tune.search.one_call import Asked, Known, Rated, Size, answer
from simreduce.tune.search.packings import Packing
from simreduce.tune.search.setting import Setting, evaluate
from simreduce.workers import rounds

_FINE = 2 ** (1 / 4)
"""From one size of a simulated call to the next."""

_AT_ONCE = 4
"""Settings that are simulated together, as in `by_nccl`."""

_MOST = 16
"""Settings that are simulated with their own buffers, at most."""

_LESS = 0.97
"""The factor of the bound, as a call may take less than a smaller one by a part of chunks."""

CYCLES = tuple(ms * 1e-3 for ms in (0.5, 0.75, 1, 1.5, 2.5, 3.5, 5, 7.5, 10))
"""Seconds of a cycle that are tried."""

Do = Callable[[Sequence[Any]], list[Any]]


@dataclass(slots=True)
class HorovodSearch:
    """The state of a search. `estimates` are times by interpolated calls, `seconds` those that were
    simulated. No point takes less than `bound`.
    """

    scenario: Scenario
    packings: Sequence[Packing]
    effort: int
    inner: NcclSearch = field(init=False)
    estimates: dict[Setting, float] = field(default_factory=dict)
    seconds: dict[Setting, float] = field(default_factory=dict)
    bound: float = 0.0
    _curves: dict[tuple[bool, int], tuple[Floats, Floats]] = field(default_factory=dict)
    _buffers: _Buffers | None = None

    def __post_init__(self) -> None:
        self.inner = NcclSearch(self.scenario, "step", self.packings, effort=self.effort)
        self.bound = self.inner.clock.compute + self.inner.clock.update

    @property
    def default(self) -> Setting:
        """What Horovod does unless told."""
        return Setting(f"nccl{self.packings[0].text}")

    @property
    def points(self) -> int:
        """How many points the space has."""
        told = 2 if self.inner.calls.choices else 1
        return len(self.packings) * len(self._cycles) * told

    @property
    def _cycles(self) -> list[float | None]:
        step = self.scenario.step
        assert step is not None  # noqa: S101 - the caller has looked
        return [None, *(cycle for cycle in CYCLES if abs(cycle - step.cycle) > cycle * 1e-6)]

    def first(self, workers: int) -> None:
        """Simulate the default."""
        with rounds(partial(_work, self.scenario), workers) as do:
            self._settle([self.default], do)

    def run(self, workers: int, progress: Callable[[int, int], None]) -> None:
        """Estimate every point, and simulate the best."""
        with rounds(partial(_work, self.scenario), workers) as do:
            progress(0, self.points)
            rules = self._learn(do)
            points = [
                (packing, cycle, told)
                for packing in self.packings
                for cycle in self._cycles
                for told in ((), rules)[: 1 + bool(rules)]
            ]
            for done, (packing, cycle, told) in enumerate(points):
                progress(done, len(points))
                setting = Setting(f"nccl{packing.text}", told, cycle=cycle)
                self.estimates[setting] = self._estimate(packing, cycle, told=bool(told))
            order = sorted(self.estimates, key=lambda s: (self.estimates[s], s.simplicity))
            for at in range(0, _MOST, _AT_ONCE):
                some = order[at : at + _AT_ONCE]
                if not some or self.estimates[some[0]] > min(self.seconds.values()) * (1 + 1e-9):
                    break
                self._settle(some, do)
            progress(len(points), len(points))

    def _settle(self, settings: Sequence[Setting], do: Do) -> None:
        new = [s for s in settings if s not in self.seconds]
        found: list[Tried] = do(new) if new else []
        self.seconds |= {s: each.seconds for s, each in zip(new, found, strict=True)}

    def _learn(self, do: Do) -> tuple[Rule, ...]:
        """Simulate calls of all sizes; what NCCL is best told for each."""
        search, rules = self.inner, tuple[Rule, ...]()
        smallest = min(size.nbytes for p in self.packings for size in p.calls if size.nbytes)
        for dtype in sorted({size.dtype for p in self.packings for size in p.calls}):
            sizes = _knots(max(smallest, 64), self.scenario.workload.elements, dtype)
            every = Packing("", ((0,),), (tuple(sizes),), (0,))
            if search.calls.choices:
                search.calls.rate(do, map(search.calls.own, sizes))
                search.calls.settle(sizes, do)
                rules = rules or search.rules(every, do)
            for told in (False, True)[: 1 + bool(rules)]:
                hows = [_how(search, rules if told else (), size) for size in sizes]
                search.calls.ask([Asked(*pair) for pair in zip(hows, sizes, strict=True)], do)
                times = [search.calls.bound(*pair) for pair in zip(hows, sizes, strict=True)]
                nbytes = np.array([size.nbytes for size in sizes], dtype=np.float64)
                self._curves[told, dtype] = nbytes, np.array(times)
        self.bound = max(self.bound, self._bound())
        return rules

    def _price(self, nbytes: int, dtype: int, *, told: bool) -> float:
        sizes, times = self._curves[told, dtype]
        return float(np.interp(nbytes, sizes, times))

    def _bound(self) -> float:
        """Seconds of every step at least: the gradients that are ready last are reduced then."""
        model, clock = self.scenario.workload, self.inner.clock
        last = max(clock.ready, default=0.0)
        late = [g for g, t in zip(model.gradients, clock.ready, strict=True) if t == last]
        if last < clock.compute or not late:
            return clock.compute + clock.update
        least = min(
            self._price(g.elements * dtypes.SIZES[dtype], dtype, told=told)
            for g in late
            for told, dtype in self._curves
        )
        return clock.compute + _LESS * least + clock.update

    def _estimate(self, packing: Packing, cycle: float | None, *, told: bool) -> float:
        """Seconds of a step by interpolated calls."""
        step, setup, copying = self.scenario.step, self.scenario.setup, self.inner.clock.copying
        assert step is not None  # noqa: S101 - the caller has looked
        if self._buffers is None or self._buffers.packing is not packing:
            self._buffers = _Buffers(packing, self.scenario)
        known, seconds = self._buffers, self._buffers.seconds[told]
        every = cycle if cycle is not None else step.cycle

        def price(buffer: tuple[int, ...]) -> float:
            if buffer not in seconds:
                nbytes, dtype, copied = known.size(buffer)
                seconds[buffer] = self._price(nbytes, dtype, told=told) + copying * copied
            return seconds[buffer]

        return tick(step.job, slowest(step.job, setup), every, known.fuse, price)


class _Buffers:
    """The buffers of one packing, whatever the cycle: most come again in the next steps and with
    other cycles.
    """

    def __init__(self, packing: Packing, scenario: Scenario) -> None:
        strategy = parse_strategy(f"nccl{packing.text}")
        assert isinstance(strategy.packer, Fusion)  # noqa: S101 - all packings here are
        layout, self._gradients = scenario.setup.layout, scenario.workload.gradients
        self._fused = Fused(strategy.packer, strategy, scenario.workload, layout, faithful=False)
        self._wire = {size.dtype for size in packing.calls}
        self._made: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        self.packing = packing
        self.seconds: tuple[dict[tuple[int, ...], float], ...] = {}, {}

    def fuse(self, ready: Sequence[int]) -> list[tuple[int, ...]]:
        """The buffers of gradients that are ready, in the order in which they became ready."""
        key = tuple(ready)
        if key not in self._made:
            self._made[key] = self._fused.buffers(key)
        return self._made[key]

    def size(self, buffer: tuple[int, ...]) -> tuple[int, int, int]:
        """The bytes of the call of a buffer, its dtype, and the bytes that are copied for it."""
        some = [self._gradients[i] for i in buffer]
        listed = some[0].dtype
        dtype = listed if listed in self._wire else min(self._wire)
        copied = sum(each.nbytes for each in some) * (len(some) > 1 or dtype != listed)
        return sum(each.elements for each in some) * dtypes.SIZES[dtype], dtype, copied


def _knots(smallest: int, elements: int, dtype: int) -> list[Size]:
    """Sizes from a small call to that of all gradients together."""
    width, found = dtypes.SIZES[dtype], list[Size]()
    at = smallest / width
    while at < elements:
        found.append(Size(max(int(at), 1), dtype))
        at *= _FINE
    return list(dict.fromkeys([*found, Size(elements, dtype)]))


def _how(search: NcclSearch, rules: tuple[Rule, ...], size: Size) -> Any:
    """What NCCL does with a call by rules; by none, its own choice."""
    own = search.calls.own(size)
    rule = next((r for r in rules if r.most is None or size.nbytes <= r.most), None)
    if rule is None:
        return own
    return own._replace(algorithm=rule.algorithm, protocol=rule.protocol, channels=rule.channels)


def _work(scenario: Scenario, item: Asked | Rated | Setting) -> Known | Tried | Any:
    """One simulation: of a call, or of a step."""
    if isinstance(item, Setting):
        return evaluate(scenario, "step", item, inf)
    return answer(scenario.setup, item)
