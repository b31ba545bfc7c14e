"""The search of sharded methods and their settings.

A point is a method with units, prefetching, limits, groups and dtypes.
`training.sharded.simulation` gives its time from the times of its collectives, and a bound from
their bounds:

- the first all-gathers, the compute, the last reduce-scatter and the update follow each other, and
  so does all else that has to, with collectives as fast as the links of one GPU and of one machine
  allow: shards of other machines come in, and sums go out;
- where one stream carries all, a step is no faster than with everything gathered ahead: a property
  test says so, and one such point represents all with the same units;
- collectives that share links only delay each other.

The collectives of the most promising point are simulated, once for each size. Points that do not
fit the memory of a GPU are left out before.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from math import inf

from simreduce import dtypes
from simreduce.computing import group_by, grouped
from simreduce.engine import NCCL
from simreduce.engine.setup import Setup
from simreduce.errors import Deadlock, InputError
from simreduce.export.frameworks import FRAMEWORKS
from simreduce.planners.nccl.constants import Rule
from simreduce.planners.strategy import parse_strategy
from simreduce.study.ranking import merge_equal
from simreduce.study.scenario import StepScenario
from simreduce.study.tune.rank import sharing_candidates
from simreduce.study.tune.search.packings import choice_of_nccl, text_of
from simreduce.study.tune.search.search import WIDTH, Aim, Search, Tuned
from simreduce.study.tune.search.setting import (
    SAME,
    Setting,
    Simulated,
    Tried,
    Working,
    least_fit,
    method_of_setting,
    search,
    shared_by,
    simulate_whole,
)
from simreduce.study.tune.search.step_calls import decisions, make_rules, needed_channels
from simreduce.study.tune.search.targets import points_of
from simreduce.study.tune.steps import first_fit
from simreduce.training.calls import CallCost, across, slowest_gpu
from simreduce.training.passes import least_losses, slowest
from simreduce.training.sharded import PRE, ZERO1, ZERO2, segments, wrap
from simreduce.training.sharded.collectives import ALL_REDUCE, PlanKey, key_cost
from simreduce.training.sharded.simulation import compose, running_sharded
from simreduce.training.simulation import MemoryFit

Do = Working[StepScenario]

_RATE = 0.97
"""The factor of bounds of collectives, for rates that are rounded."""

_REFUSED = CallCost(inf, 0)

_WORTH = 1.002
"""Times the floor of a step from which NCCL's choices are looked at."""

_WHOLE, _COLLECTIVES, _RANKS = 24, 480, 64
"""Whole steps and collectives that are simulated at most, and the ranks from which there are fewer,
as each takes longer.
"""


class ShardedSearch(Search[StepScenario]):
    """The search of the points of sharded methods.

    `unfit` need more memory than a GPU has; `ruled` counts simulations of collectives by other
    choices than NCCL's own.
    """

    def __init__(
        self,
        aim: Aim[StepScenario],
        before: Tuned | None = None,
        points: Sequence[Setting] = (),
    ) -> None:
        scenario = aim.scenario
        super().__init__(aim, before, scenario.but(runtime=NCCL))
        self._setup = running_sharded(self.scenario.setup, "sharded methods")
        self._rate, self._across = _RATE / slowest_gpu(self._setup), _RATE * across(self._setup)
        more = sharing_candidates(scenario.setup.layout) if FRAMEWORKS[aim.target].by_plans else []
        texts = list(dict.fromkeys(["nccl", *(strategy.text for strategy in more)]))
        points = points or points_of(aim.target, aim.methods, scenario, texts, half=aim.half)
        fits = {each: least_fit(scenario.step, scenario.setup, each) for each in points}
        self.unfit = [setting for setting, fit in fits.items() if fit.fits is False]
        self.settings = [setting for setting, fit in fits.items() if fit.fits is not False]
        self.simulated: dict[Setting, Simulated] = {}
        if not self.settings and before is None:
            raise self._none_fits()
        self.limit = before.best.seconds if before and not before.best.misfit else inf
        self.ruled = 0
        self.collectives: dict[tuple[str, int, PlanKey], CallCost] = {}
        self._method = cache(partial(method_of_setting, self.scenario))
        self._coarse = cache(self._find_coarse)
        self._wrapped = cache(self._wrap)

    @property
    def seconds(self) -> Mapping[Setting, float]:
        """Seconds by setting; of one method's settings as fast, the one with fewest words."""
        order = sorted(self.outcome.seconds.items(), key=lambda each: (each[1], each[0].tie_break))

        def same(each: tuple[Setting, float]) -> Hashable:
            return each[0].method, each[0].strategy, f"{each[1]:.9g}"

        return dict(merge_equal(order, same, lambda first, _: first))

    @property
    def floors(self) -> tuple[float, float]:
        """Seconds of a step that no setting changes, twice.

        Each rank updates its shards, and all collectives may be hidden.
        """
        least = self.aim.overlap.compute + self.aim.overlap.update / self.scenario.setup.layout.n
        return least, least

    def fit(self, setting: Setting) -> MemoryFit:
        """The memory of a simulated step, or else the least."""
        known = self.simulated.get(setting)
        fit = least_fit(self.scenario.step, self.scenario.setup, setting)
        return fit._replace(needed=known.needed) if known else fit

    def answer(self, *, stopped: bool = False) -> Tuned:
        """The answer, whose default is that of the first method that has one which fits."""
        found, scenario = super().answer(stopped=stopped), self.aim.scenario
        return replace(
            found,
            scenario=self.before.scenario if self.before else scenario,
            default=min(
                found.rows,
                key=lambda row: (
                    row.misfit,
                    self.aim.methods.index(row.setting.method),
                    row.setting.tie_break,
                ),
                default=found.default,
            ),
            points=self.ruled + len({*self.settings, *self.unfit}),
            calls=len(self.collectives) + self.ruled,
            unfit=len(self.unfit),
            spent=self.spent,
        )

    def run(self, do: Do) -> None:
        """Simulate the default of each method; search the others; simulate the best as a whole."""
        self.aim.progress(0, len(self.settings))
        self._settle(
            list({(s.method, s.strategy): s for s in reversed(self.settings)}.values()), do
        )
        seed, seconds = Setting(""), self.outcome.seconds
        seconds[seed] = self.limit
        try:
            search(
                [(self._floor(s), s) for s in self.settings if s not in seconds],
                partial(self._sharpen, do),
                partial(self._simulate, do),
                self.outcome,
                WIDTH,
                lambda: self.spent,
                self.aim.progress,
            )
        finally:
            del seconds[seed]
        self._finish(do)
        if self.unfit and self.outcome.best == inf and self.before is None:
            raise self._none_fits()

    def _none_fits(self) -> InputError:
        """What each method needs, and the first change with which one fits."""
        scenario, name = self.aim.scenario, self.aim.target
        last = {each.method: each for each in reversed(self.unfit)}
        pair = next(iter(last)), parse_strategy("nccl")
        more = first_fit(scenario, pair, name if name != "any" else "")
        lines = [f"{method} {self.fit(each).words}" for method, each in last.items()]
        lines += [f"it would fit with {more}"] * bool(more)
        return InputError([f"{scenario.name}: {line}" for line in lines])

    @property
    def spent(self) -> bool:
        """Whether the search has simulated as much as it may."""
        fewer = max(self._setup.layout.n / _RANKS, 1.0)
        return len(self.simulated) * fewer > _WHOLE or len(self.collectives) * fewer > _COLLECTIVES

    def _finish(self, do: Do) -> None:
        """Simulate the best as a whole, the simplest of equals, until one holds.

        Then simulate it with NCCL's best choice for each of its collectives, if that is worth it.
        """
        while (best := self.outcome.best * (1 + 1e-6)) < inf:
            same = [s for s, time in self.outcome.seconds.items() if time <= best]
            if any(s in self.simulated for s in same):
                break
            same += [
                other
                for other in self._simpler(min(same, key=lambda s: s.tie_break))
                if not self._overlaps(other) and self._exact(other, do) <= best
            ]
            self._settle([min(same, key=lambda s: s.tie_break)], do)
        if self.outcome.best == inf:
            return
        found = min(self.outcome.seconds, key=self.outcome.seconds.__getitem__)
        method, near = self._method(found), self._floor(found) * _WORTH >= self.outcome.best
        if method is None or near or found.strategy != "nccl" or self._overlaps(found):
            return
        ruled = choose_per_collective(found, method.distinct, self._setup, do)
        if ruled.rules:
            self.ruled += len(method.distinct) * len(decisions(self._setup, "all_gather"))
            self._settle([ruled], do)

    def _simpler(self, setting: Setting) -> list[Setting]:
        """The points of the space with fewer settings that are not the default's.

        Those that were simulated have their times, or do not fit.
        """
        return [
            each
            for each in self.settings
            if (each.method, each.strategy) == (setting.method, setting.strategy)
            and each not in self.simulated
            and set(each.knobs.items()) < set(setting.knobs.items())
        ]

    def _settle(self, settings: Sequence[Setting], do: Do) -> None:
        """Simulate whole steps, and note their times."""
        self.outcome.seconds |= zip(settings, self._whole(settings, do), strict=True)
        for setting in settings:
            self.outcome.excluded.pop(setting, None)

    def _whole(self, settings: Sequence[Setting], do: Do) -> list[float]:
        """Seconds of whole steps; infinite for what is wrong, refused, or does not fit."""
        new = [s for s in settings if s not in self.simulated]
        self.simulated |= zip(new, do(simulate_whole, new), strict=True)
        self.unfit += [setting for setting in new if self.fit(setting).fits is False]
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
        """Whether collectives of a point may be in flight at once."""
        streams = setting.sharding.streams if setting.sharding else 1
        return streams > 1 or shared_by(setting, self._setup) < self._setup.layout.n

    def _ahead(self, setting: Setting) -> Setting:
        """The point that no other of the same units is faster than, where one is known."""
        sharding = setting.sharding
        if sharding is None or self._overlaps(setting):
            return setting
        most = max((s.sharding.forward_prefetch for s in self.settings if s.sharding), default=0)
        ahead = replace(sharding, forward_prefetch=most, backward_prefetch=PRE, limit_all_gathers=0)
        return replace(setting, sharding=ahead)

    def _floor(self, setting: Setting) -> float:
        """Seconds that a point takes at least.

        They are its compute with the first all-gather and the last reduce-scatter, or all
        collectives of its units once.
        """
        step, sharding = self.scenario.step, setting.sharding
        assert sharding is not None  # noqa: S101 - all here are sharded
        group, factor = shared_by(setting, self._setup), slowest(step.job, self._setup)
        units, first = self._wrapped(sharding.units)
        listed = step.job.model.workload.gradients[0].dtype
        widths = [dtypes.SIZES[dtype] for dtype in sharding.wire(listed)]
        rate = self._per_byte(group)
        gathers, scatters = ([size * width * rate for size in units] for width in widths)
        ends = scatters[first] + (gathers[first] if setting.method not in (ZERO1, ZERO2) else 0.0)
        stream = sum(scatters) if sharding.streams > 1 else sum(gathers) + sum(scatters)
        return max(factor * step.job.compute + ends, stream) + factor * step.job.update / group

    def _per_byte(self, group: int) -> float:
        """Seconds for each byte of an all-gather or reduce-scatter among so many ranks, at least.

        That is for a GPU to get what the others have, and for a machine to get what other machines
        have.
        """
        here = max(len(task) for task in self._setup.layout.tasks)
        gpu = self._rate * (group - 1) / group
        return gpu if group < self._setup.layout.n else max(gpu, self._across * (1 - here / group))

    def _wrap(self, rule: str | int) -> tuple[list[int], int]:
        """Elements of the units by a rule, and which of them computes first."""
        units = wrap(self.scenario.step.job.model, rule)
        return [unit.elements for unit in units], segments(units)[0].unit

    def _find_coarse(self, setting: Setting) -> float:
        """Seconds that a point takes at least with collectives as fast as a GPU's links allow."""
        each = self._per_byte(shared_by(setting, self._setup))

        def price(key: PlanKey) -> CallCost:
            # A GPU lacks the sum of the others.
            rate = self._rate if key.collective == ALL_REDUCE else each
            return CallCost(key.nbytes * rate, self._channels(setting, key))

        return self._bound(setting, price)

    def _channels(self, setting: Setting, key: PlanKey) -> int:
        """Channels of a collective of all ranks by NCCL's own choice; 0 where that is not known."""
        if shared_by(setting, self._setup) < self._setup.layout.n or setting.strategy != "nccl":
            return 0
        return choice_of_nccl(self._setup, key.collective, key.nbytes).channels

    def _bound(self, setting: Setting, cost: Callable[[PlanKey], CallCost]) -> float:
        """Seconds of a point at least, where collectives have this cost at least.

        While one is in flight, kernels lose a part of its time, or all of it before the parameters
        of the first of them are there, and after the last.
        """
        method, job = self._method(setting), self.scenario.step.job
        if method is None:
            return inf

        def without_losses() -> float:
            return self._compose(setting, lambda key: cost(key)._replace(channels=0))

        if self._overlaps(setting):
            return without_losses()
        loses, factor = least_losses(job, self._setup), slowest(job, self._setup)
        listed = method.instructions
        computes = [i for i, each in enumerate(listed) if each.layers]
        needed = [i for i in range(computes[0]) if listed[i].unit == listed[computes[0]].unit]
        spent = factor * (job.compute + job.update / method.group)
        for i, each in enumerate(listed):
            exposed = i > computes[-1] or i <= max(needed, default=-1)
            for call in map(cost, method.keys(each)):
                spent += call.seconds * (1.0 if exposed else loses(call.channels))
        return spent if spent >= self.outcome.best else max(without_losses(), spent)

    def _sharpen(self, do: Do, setting: Setting) -> float | None:
        """The time of a point, or what it takes at least.

        As few collectives are simulated as that needs. Where collectives share links, it is tried
        on random steps, not proven, that a composed step takes no longer than the simulated one: a
        call that takes longer may slow fewer kernels down.
        """
        enough, ahead = self.outcome.best * (1.0 - SAME), self._ahead(setting)
        found = self._coarse(ahead)
        if self.spent:
            return found
        if found < enough:
            found = self._exact(ahead, do, bound=True)
        return found if found >= enough else self._exact(setting, do)

    def _exact(self, setting: Setting, do: Do, *, bound: bool = False) -> float:
        """Return the seconds of a point by its collectives, and simulate each of these once.

        As a `bound`, what it takes at least whenever kernels are slowed down.
        """
        method, known = self._method(setting), self.collectives
        if method is None:
            return inf
        text, group = setting.strategy, method.group
        asked = [key for key in method.distinct if (text, group, key) not in known]
        known |= zip(
            [(text, group, key) for key in asked],
            do(_simulate_collective, [(setting, key) for key in asked]),
            strict=True,
        )

        compose = self._bound if bound else self._compose
        return compose(setting, lambda key: known[text, group, key])

    def _compose(self, setting: Setting, cost: Callable[[PlanKey], CallCost]) -> float:
        method = self._method(setting)
        return compose(self.scenario.step.job, method, self._setup, cost) if method else inf


def choose_per_collective(
    setting: Setting, keys: Sequence[PlanKey], setup: Setup, do: Do
) -> Setting:
    """The setting with NCCL's fastest choice for each collective of a step.

    Each is simulated by every choice.
    """
    asked = [(key, how) for key in keys for how in decisions(setup, key.collective)]
    texts = [replace(setting, strategy=text_of(how)) for _, how in asked]
    items = [(each, key) for each, (key, _) in zip(texts, asked, strict=True)]
    costs = zip(asked, do(_simulate_collective, items), strict=True)
    took = grouped((key, (cost.seconds, how)) for (key, how), cost in costs)
    rules = list[Rule]()
    ordered = sorted(took, key=lambda key: (key.collective, key.nbytes))
    for collective, mine in group_by(ordered, lambda key: key.collective).items():
        sizes, chosen = [key.nbytes for key in mine], [min(took[key])[1] for key in mine]
        rules += make_rules(setup, collective, sizes, chosen)
    return replace(setting, rules=tuple(rules), channels=needed_channels(setup, rules))


def _simulate_collective(scenario: StepScenario, asked: tuple[Setting, PlanKey]) -> CallCost:
    """One collective of a step alone; of infinite time if the machine refuses it."""
    setting, key = asked
    method = method_of_setting(scenario, setting)
    setup = running_sharded(setting.setup(scenario.setup), setting.label)
    try:
        return _REFUSED if method is None else key_cost(method, key, setup)
    except (Deadlock, InputError):
        return _REFUSED
