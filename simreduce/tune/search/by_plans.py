"""The best of whole plans, of every algorithm: each is bounded by the floors of its plan, and
simulated only if these are below the best time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

from simreduce.algorithms import ALGORITHMS, TWO_LEVEL
from simreduce.errors import Deadlock, InputError
from simreduce.export import Choice, why_not
from simreduce.nccl import facts
from simreduce.nccl.choice import plan as nccl_plan
from simreduce.plan import verify, wrong_elements
from simreduce.scenario import Scenario
from simreduce.strategy import parse_strategy
from simreduce.tune.bounds import lower_bound
from simreduce.tune.candidates import candidates
from simreduce.tune.search.best_first import Outcome, Tried, search
from simreduce.tune.search.packings import bucket_sizes
from simreduce.tune.search.setting import Setting, evaluate
from simreduce.workers import rounds

_WIDTH = 4
"""Plans that are simulated at a time, as in `by_nccl`."""

_FINALISTS = 5
"""Algorithms of which pairs are tried, one for small gradients and one for large ones."""

_LIMITS = 5
"""Limits between them that are tried."""

_COARSER = 2
"""Of the sizes of buckets, one in so many is tried."""

_SMALL = ("small=4096,10", "small=16384,10", "small=65536,10", "small=65536,40", "small=262144,40")

_ORDERED = ("xring", "ring", "collective")
"""Algorithms whose rings take the order of the GPUs."""


def settings_of(scenario: Scenario, target: str, *, half: bool) -> list[Setting]:
    """What is tried for a target of `BY_PLANS`: what `run` ranks, more packings of each kind, and
    other orders of rings.
    """
    layout, gradients = scenario.setup.layout, scenario.workload.gradients
    texts = [s.text for s in candidates(layout)]
    specs = list(dict.fromkeys(parse_strategy(text).spec for text in texts))
    sizes = bucket_sizes(gradients)[::-_COARSER]
    for spec in ("nccl", "collective"):
        texts += [f"{spec}+bucket={size}" for size in sizes]
    texts += [f"{spec}+{small}" for spec in specs for small in _SMALL]
    texts += [f"{spec}+packs={n}" for spec in specs for n in (2, 3, 4, 6, 8, 12, 16)]
    texts += [f"{spec}+repack={n},fp16" for spec in specs for n in (1, 2, 4, 8) if half]
    if not half:
        texts = [text for text in texts if "fp16" not in text]
    settings = [Setting(text) for text in dict.fromkeys(texts)]
    settings += [
        Setting(setting.strategy, order=order)
        for order in _orders(scenario)
        for setting in settings
        if parse_strategy(setting.strategy).spec.partition("#")[0] in _ORDERED
    ]
    return [setting for setting in settings if can_be_told(target, scenario, setting)]


def can_be_told(target: str, scenario: Scenario, setting: Setting) -> bool:
    """Whether a target has a setting for it; `any` has for all that a plan can be made of."""
    if target == "any":
        return True
    choice = Choice(
        setting.setup(scenario.setup), scenario.workload, parse_strategy(setting.strategy)
    )
    return not why_not(target, choice)


def _orders(scenario: Scenario) -> list[tuple[int, ...]]:
    """The orders of GPUs of NCCL's rings, on one machine."""
    setup = scenario.setup
    if len(setup.layout.tasks) > 1 or setup.layout.n < 3 or setup.layout.order:
        return []
    try:
        known = facts(setup.machine, setup.layout.ranks, setup.nccl)
        channels = nccl_plan(known, setup.nccl).graphs.ring.channels
    except InputError:
        return []
    own = tuple(range(setup.layout.n))
    found = [tuple(channel.gpus) for channel in channels]
    return [order for order in dict.fromkeys(found) if order != own and sorted(order) == list(own)]


@dataclass(slots=True)
class PlanSearch:
    """The state of a search, as of `NcclSearch`. `floor` is what every plan takes besides."""

    scenario: Scenario
    objective: str
    target: str
    settings: list[Setting]
    limit: float = inf
    outcome: Outcome[Setting] = field(default_factory=Outcome)
    tried: int = 0

    def run(
        self, workers: int, progress: Callable[[int, int], None] = lambda _done, _all: None
    ) -> None:
        """Search the settings, then pairs of the best algorithms by size."""
        with rounds(partial(_work, self.scenario, self.objective), workers) as do:
            self._search(self.settings, do, progress)
            pairs = [s for s in self._pairs() if can_be_told(self.target, self.scenario, s)]
            self.settings += pairs
            self._search(pairs, do, progress)

    def _search(
        self, settings: Sequence[Setting], do: Callable[[Sequence[Any]], list[Any]],
        progress: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        new = [s for s in settings if s not in self.outcome.seconds]
        bounds: list[float] = do([(setting, None) for setting in new]) if new else []
        found = Outcome[Setting]()
        if self.outcome.seconds:
            best = min(self.outcome.seconds, key=self.outcome.seconds.__getitem__)
            found.seconds[best] = self.outcome.best
        try:
            search(
                zip(bounds, new, strict=True),
                lambda _: None,
                partial(self._simulate, do, found),
                found,
                _WIDTH,
                progress=progress,
            )
        finally:
            self.outcome.seconds.update(found.seconds)
            self.outcome.excluded.update(found.excluded)

    def _simulate(
        self,
        do: Callable[[Sequence[Any]], list[Any]],
        found: Outcome[Setting],
        settings: Sequence[Setting],
    ) -> list[Tried]:
        self.tried += len(settings)
        limit = min(self.limit, found.best)
        tried: list[Tried] = do([(setting, limit) for setting in settings])
        return tried

    def _pairs(self) -> Iterator[Setting]:
        """Of the fastest algorithms without a packer, one for gradients up to a limit and another
        for the rest.
        """
        sizes = sorted({g.elements for g in self.scenario.workload.gradients})
        known = {**self.outcome.excluded, **self.outcome.seconds}
        alone = [s for s in known if s.strategy in ALGORITHMS or s.strategy in TWO_LEVEL]
        alone = sorted((s for s in alone if not s.order), key=lambda s: (known[s], s.strategy))
        names = [s.strategy for s in alone[:_FINALISTS]]
        step = max(len(sizes) // (_LIMITS + 1), 1)
        for limit in sizes[step - 1 : -1 : step]:
            for small in names:
                for large in names:
                    if small != large:
                        yield Setting(f"{small}:{limit}:{large}")


def _work(scenario: Scenario, objective: str, item: tuple[Setting, float | None]) -> float | Tried:
    """The bound of a setting, or with a limit its simulation."""
    setting, limit = item
    if limit is not None:
        return evaluate(scenario, objective, setting, limit)
    own = setting.scenario(scenario)
    strategy = parse_strategy(setting.strategy)
    try:
        setup = own.setup.running(strategy)
        floor = lower_bound(setup, strategy, own.workload, faithful=own.faithful).seconds
    except (Deadlock, InputError):
        return inf
    if objective != "step":
        return floor
    assert own.step is not None  # noqa: S101 - the caller has looked
    job = own.step.job
    compute = job.profile.seconds if job.barrier else 0.0
    return max(floor if job.barrier else 0.0, compute) + job.update


def is_right(scenario: Scenario, setting: Setting) -> bool:
    """Whether the plan of a setting is proven to sum right."""
    own, strategy = setting.scenario(scenario), parse_strategy(setting.strategy)
    setup = own.setup.running(strategy)
    return not wrong_elements(verify(setup.compile(strategy, own.workload, faithful=own.faithful)))
