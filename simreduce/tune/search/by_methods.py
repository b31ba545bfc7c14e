"""The best of sharded methods and their settings.

A point is a method with units, prefetching, limits, groups and dtypes.
`training.sharded.recurrence` gives its time from those of its collectives, and a bound from bounds:

- the first all-gathers, the compute, the last reduce-scatter and the update follow each other, and
  so does all else that has to, with collectives as fast as the links of one GPU allow, and those
  of one machine: what other machines hold comes in, and what they sum goes out;
- where one stream carries all, a step is no faster than with everything gathered ahead: so says a
  property test, and one such point stands for all with the same units;
- collectives that share links only delay each other.

The collectives of the most promising point are simulated, once for each size. What does not fit the
memory of a GPU is left out before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any, NamedTuple

from simreduce import dtypes
from simreduce.errors import Deadlock, InputError
from simreduce.scenario import Scenario
from simreduce.setup import Setup
from simreduce.strategy import parse_strategy
from simreduce.training.memory import Fit, device_memory, least_memory
from simreduce.training.sharded import (
    DDP,
    ShardedMethod,
    Sharding,
    running_sharded,
    segments,
    sharded_method,
    simulate_sharded_step,
    wrap,
)
from simreduce.training.sharded.collectives import ALL_REDUCE, Key
from simreduce.training.sharded.costs import key_seconds
from simreduce.training.sharded.recurrence import compose, slowest
from simreduce.training.sharded.settings import HSDP, PRE, ZERO1, ZERO2
from simreduce.tune.search.best_first import Outcome, Tried, search
from simreduce.tune.search.methods import shardings_of
from simreduce.tune.search.setting import Setting
from simreduce.tune.search.telling import choices, tell
from simreduce.workers import rounds

_WIDTH = 4
"""Points that are looked at together, as in `by_nccl`."""

_RATE = 0.97
"""The factor of bounds of collectives, for rates that are rounded."""

_SAME = 1e-9

_WORTH = 1.002
"""Times the floor of a step from which NCCL's choices are looked at."""

_WHOLE, _COLLECTIVES, _RANKS = 24, 480, 64
"""Whole steps and collectives that are simulated at most, and the ranks from which there are fewer,
as each takes longer.
"""

Do = Callable[[Sequence[Any]], list[Any]]


class Simulated(NamedTuple):
    """A whole step: its seconds, infinite if the machine refuses it, the bytes that a GPU holds at
    most, and wrong elements of its plans.
    """

    seconds: float
    peak: int = 0
    wrong: int = 0


def points_of(
    target: str,
    methods: Iterable[str],
    scenario: Scenario,
    strategies: Sequence[str],
    *,
    half: bool,
) -> list[Setting]:
    """Every point of the sharded ones of these methods, the default of each first."""
    layout = scenario.setup.layout
    return [
        Setting(strategy, method=method, sharding=sharding)
        for method in methods
        if method != DDP
        for strategy in strategies
        for sharding in shardings_of(target, method, scenario, layout, half=half)
    ]


def least_fit(scenario: Scenario, setting: Setting) -> Fit:
    """What a GPU holds at least by a setting, and has."""
    step, setup = scenario.step, scenario.setup
    assert step is not None  # noqa: S101 - the caller has looked
    sharding = setting.sharding or step.sharding or Sharding()
    ranks = shared_by(setting, setup)
    memory = least_memory(setting.method, step.job.model, sharding, ranks, step.activations)
    return Fit(memory.peak, device_memory(setup.topology, setup.layout.ranks))


def shared_by(setting: Setting, setup: Setup) -> int:
    """The ranks that hold one copy of the shards."""
    if setting.method != HSDP or setting.sharding is None:
        return setup.layout.n
    return setting.sharding.group or min(len(task) for task in setup.layout.tasks)


@dataclass(slots=True)
class ShardedSearch:
    """The state of a search. `limit` is a time that is known to be reached. `unfit` are the points
    that need more memory than a GPU has; `told` counts choices of NCCL that were tried.
    """

    scenario: Scenario
    settings: list[Setting]
    limit: float = inf
    outcome: Outcome[Setting] = field(default_factory=Outcome)
    simulated: dict[Setting, Simulated] = field(default_factory=dict)
    unfit: list[Setting] = field(default_factory=list)
    told: int = 0
    collectives: dict[tuple[str, int, Key], float] = field(default_factory=dict)
    _methods: dict[Setting, ShardedMethod | None] = field(default_factory=dict)
    _least: dict[Setting, float] = field(default_factory=dict)
    _units: dict[str | int, tuple[list[int], int]] = field(default_factory=dict)
    _rate: float = 0.0
    _across: float = 0.0
    _setup: Setup = field(init=False)

    def __post_init__(self) -> None:
        self._setup = running_sharded(self.scenario.setup, "sharded methods")
        self._rate, self._across = _RATE / _slowest_gpu(self._setup), _RATE * _across(self._setup)
        fits = [least_fit(self.scenario, setting).fits is not False for setting in self.settings]
        pairs = list(zip(self.settings, fits, strict=True))
        self.unfit = [setting for setting, good in pairs if not good]
        self.settings = [setting for setting, good in pairs if good]

    def run(
        self, workers: int, progress: Callable[[int, int], None] = lambda _done, _all: None
    ) -> None:
        """Simulate the default of each method; search the others; simulate the best as a whole."""
        with rounds(partial(_work, self.scenario), workers) as do:
            progress(0, len(self.settings))
            defaults = {(s.method, s.strategy): s for s in reversed(self.settings)}
            self._settle(list(defaults.values()), do)
            seed = Setting("")
            self.outcome.seconds[seed] = self.limit
            try:
                search(
                    [(self._floor(s), s) for s in self.settings if s not in self.outcome.seconds],
                    partial(self._sharpen, do),
                    partial(self._simulate, do),
                    self.outcome,
                    _WIDTH,
                    lambda: self.spent,
                    progress,
                )
            finally:
                del self.outcome.seconds[seed]
            self._finish(do)

    @property
    def spent(self) -> bool:
        """Whether the search has simulated as much as it may."""
        fewer = max(self._setup.layout.n / _RANKS, 1.0)
        return len(self.simulated) * fewer > _WHOLE or len(self.collectives) * fewer > _COLLECTIVES

    def _finish(self, do: Do) -> None:
        """Simulate the best as a whole, the simplest of those as fast, until one holds."""
        while (best := self.outcome.best * (1 + 1e-6)) < inf:
            same = [s for s, time in self.outcome.seconds.items() if time <= best]
            if any(s in self.simulated for s in same):
                break
            same += [
                other
                for other in self._simpler(min(same, key=lambda s: s.simplicity))
                if not self._overlaps(other) and self._exact(other, do) <= best
            ]
            self._settle([min(same, key=lambda s: s.simplicity)], do)
        self._tell(do)

    def _tell(self, do: Do) -> None:
        """The best with what NCCL is best told for its collectives, if that is worth it."""
        if self.outcome.best == inf:
            return
        best = min(self.outcome.seconds, key=self.outcome.seconds.__getitem__)
        method = self._method(best)
        near = self._floor(best) * _WORTH >= self.outcome.best
        if method is None or near or best.strategy != "nccl" or self._overlaps(best):
            return

        def nbytes(key: Key) -> int:
            return key.elements * dtypes.SIZES[key.dtype]

        told = tell(best, method.distinct, nbytes, self._setup, do)
        if told.rules:
            self.told += len(method.distinct) * len(choices(self._setup, "all_gather"))
            self._settle([told], do)

    def _simpler(self, setting: Setting) -> list[Setting]:
        """The points of the space with fewer settings that are not the default's."""
        return [
            each
            for each in self.settings
            if (each.method, each.strategy) == (setting.method, setting.strategy)
            and set(each.knobs.items()) < set(setting.knobs.items())
        ]

    def _settle(self, settings: Sequence[Setting], do: Do) -> None:
        """Simulate whole steps, and note what they take."""
        for setting, seconds in zip(settings, self._whole(settings, do), strict=True):
            self.outcome.seconds[setting] = seconds
            self.outcome.excluded.pop(setting, None)

    def _whole(self, settings: Sequence[Setting], do: Do) -> list[float]:
        """Seconds of whole steps; infinite for what is wrong, refused, or does not fit."""
        new = [s for s in settings if s not in self.simulated]
        found = do([(s, None) for s in new]) if new else []
        self.simulated |= dict(zip(new, found, strict=True))
        has = device_memory(self._setup.topology, self._setup.layout.ranks)
        unfit = [s for s in new if Fit(self.simulated[s].peak, has).fits is False]
        self.unfit += unfit
        return [
            inf if self.simulated[s].wrong or s in self.unfit else self.simulated[s].seconds
            for s in settings
        ]

    def _simulate(self, do: Do, settings: Sequence[Setting]) -> list[Tried]:
        """Times of points whose collectives are known; whole steps where these may overlap."""
        whole = [s for s in settings if self._overlaps(s)]
        times = dict(zip(whole, self._whole(whole, do), strict=True))
        return [Tried(times[s] if s in times else self._exact(s, do)) for s in settings]

    def _overlaps(self, setting: Setting) -> bool:
        assert setting.sharding is not None  # noqa: S101 - all here are sharded
        return (
            setting.sharding.streams > 1 or shared_by(setting, self._setup) < self._setup.layout.n
        )

    def _ahead(self, setting: Setting) -> Setting:
        """The point that no other of the same units is faster than, where one is known."""
        sharding = setting.sharding
        if sharding is None or self._overlaps(setting):
            return setting
        most = max((s.sharding.forward_prefetch for s in self.settings if s.sharding), default=0)
        ahead = replace(sharding, forward_prefetch=most, backward_prefetch=PRE, limit_all_gathers=0)
        return replace(setting, sharding=ahead)

    def _floor(self, setting: Setting) -> float:
        """Seconds that a point takes at least: its compute with the first all-gather and the last
        reduce-scatter, or all collectives of its units once.
        """
        step, sharding = self.scenario.step, setting.sharding
        assert step is not None and sharding is not None  # noqa: S101, PT018 - as all here
        group, factor = shared_by(setting, self._setup), slowest(step.job, self._setup)
        units, first = self._wrapped(sharding.units)
        listed = step.job.model.workload.gradients[0].dtype
        widths = [dtypes.SIZES[dtype] for dtype in sharding.wire(listed)]
        rate = self._per_byte(group)
        gathers, scatters = ([size * width * rate for size in units] for width in widths)
        ends = scatters[first] + (gathers[first] if setting.method not in (ZERO1, ZERO2) else 0.0)
        compute = factor * step.job.compute + ends
        stream = sum(scatters) if sharding.streams > 1 else sum(gathers) + sum(scatters)
        return max(compute, stream) + factor * step.job.update / group

    def _per_byte(self, group: int) -> float:
        """Seconds for each byte of an all-gather or reduce-scatter among so many ranks, at least:
        for a GPU to get what the others have, and for a machine to get what other machines have.
        """
        here = max(len(task) for task in self._setup.layout.tasks)
        gpu = self._rate * (group - 1) / group
        return gpu if group < self._setup.layout.n else max(gpu, self._across * (1 - here / group))

    def _wrapped(self, rule: str | int) -> tuple[list[int], int]:
        """Elements of the units by a rule, and which of them computes first."""
        if rule not in self._units:
            assert self.scenario.step is not None  # noqa: S101 - the caller has looked
            units = wrap(self.scenario.step.job.model, rule)
            sizes = [unit.elements for unit in units]
            self._units[rule] = sizes, segments(units)[0].unit
        return self._units[rule]

    def _coarse(self, setting: Setting) -> float:
        """Seconds that a point takes at least with collectives as fast as a GPU's links allow."""
        if setting not in self._least:
            ranks = shared_by(setting, self._setup)

            each = self._per_byte(ranks)

            def price(key: Key) -> float:
                # A GPU lacks the sum of the others.
                rate = self._rate if key.collective == ALL_REDUCE else each
                return key.elements * dtypes.SIZES[key.dtype] * rate

            self._least[setting] = self._compose(setting, price)
        return self._least[setting]

    def _sharpen(self, do: Do, setting: Setting) -> float | None:
        """The time of a point, or what it takes at least, with as few collectives simulated as
        that needs.
        """
        enough, ahead = self.outcome.best * (1.0 - _SAME), self._ahead(setting)
        found = self._coarse(ahead)
        if self.spent:
            return found
        if found < enough:
            found = self._exact(ahead, do)
        return found if found >= enough else self._exact(setting, do)

    def _exact(self, setting: Setting, do: Do) -> float:
        """Seconds from those of the collectives, each of which is simulated once."""
        method = self._method(setting)
        if method is None:
            return inf
        text, group = setting.strategy, method.group
        asked = [key for key in method.distinct if (text, group, key) not in self.collectives]
        found = do([(setting, key) for key in asked]) if asked else []
        for key, seconds in zip(asked, found, strict=True):
            self.collectives[text, group, key] = seconds
        return self._compose(setting, lambda key: self.collectives[text, group, key])

    def _method(self, setting: Setting) -> ShardedMethod | None:
        if setting not in self._methods:
            self._methods[setting] = _method(self.scenario, setting)
        return self._methods[setting]

    def _compose(self, setting: Setting, seconds: Callable[[Key], float]) -> float:
        method, step = self._method(setting), self.scenario.step
        if method is None or step is None:
            return inf
        return compose(step.job, method, slowest(step.job, self._setup), seconds)


def _slowest_gpu(setup: Setup) -> float:
    """Bytes/s that reach the GPU with the least: all its links together."""
    into = dict.fromkeys(setup.layout.ranks, 0.0)
    for link in setup.topology.links:
        if link.target in into and not link.is_toll:
            into[link.target] += link.bandwidth
    return min(into.values())


def _across(setup: Setup) -> float:
    """Seconds for each byte that the machine with the narrowest links gets, or sends, from and to
    other machines, whichever takes less; 0 of one machine.
    """
    nodes = setup.topology.nodes
    used = {nodes[name].machine for name in setup.layout.ranks}
    into, out = dict.fromkeys(used, 0.0), dict.fromkeys(used, 0.0)
    for link in setup.topology.links:
        source, target = nodes[link.source].machine, nodes[link.target].machine
        if source != target and not link.is_toll:
            into[target] = into.get(target, 0.0) + link.bandwidth
            out[source] = out.get(source, 0.0) + link.bandwidth
    widest = [max(into[each], out[each]) for each in used]
    return 1 / min(widest) if len(used) > 1 and min(widest) > 0 else 0.0


def _method(scenario: Scenario, setting: Setting) -> ShardedMethod | None:
    """The method of a setting; None if the machine refuses it."""
    own = setting.scenario(scenario)
    assert own.step is not None and setting.sharding is not None  # noqa: S101, PT018 - as all here
    layout, strategy = own.setup.layout, parse_strategy(setting.strategy)
    try:
        return sharded_method(setting.method, strategy, own.step.job, layout, setting.sharding)
    except InputError:
        return None


def _work(scenario: Scenario, item: tuple[Setting, Key | None]) -> float | Simulated:
    """One simulation: of a collective, or of a whole step."""
    setting, key = item
    own = setting.scenario(scenario)
    method = _method(scenario, setting)
    assert own.step is not None  # noqa: S101 - the caller has looked
    if method is None:
        return inf if key else Simulated(inf)
    setup = running_sharded(own.setup, setting.label)
    try:
        if key is not None:
            return key_seconds(method, key, setup)
        found = simulate_sharded_step(own.step.job, method, setup)
    except (Deadlock, InputError):
        return inf if key else Simulated(inf)
    memory = found.step.memory
    peak = memory.peak if memory is not None else 0
    return Simulated(found.step.seconds, peak + own.step.activations, found.wrong)
