"""The search of packings and NCCL's choices by size, where NCCL carries every byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import inf

from simreduce.engine import NCCL
from simreduce.planners.layouts import Decision
from simreduce.study.advice import sureness_of
from simreduce.study.scenario import Scenario, with_step
from simreduce.study.tune.composed import is_composed
from simreduce.study.tune.search.packings import (
    MANY,
    CallSetting,
    CallSize,
    GradientPacking,
)
from simreduce.study.tune.search.search import WIDTH, Aim, BucketTime, Search, Tuned
from simreduce.study.tune.search.setting import (
    SAME,
    Do,
    Setting,
    Tried,
    evaluate,
    search,
)
from simreduce.study.tune.search.step_calls import (
    StepCalls,
    decisions,
    more_channels,
    needed_channels,
)
from simreduce.study.tune.search.targets import nccl_packings
from simreduce.training.calls import CallCost

_GAP = 0.005
"""The part of its time by which another setting may be faster where plans are huge."""

_HUGE = 4_000_000
"""Ops from which the time of a plan is composed of its calls' times."""

_CURVE_EFFORT = 4_000_000
"""Ops after which no other call is simulated for times of sizes of buckets near the best."""

_CURVE = 13
"""Sizes of buckets around the best that are simulated to show how flat the best is."""


@dataclass(frozen=True, slots=True)
class PackingPoint:
    """A packing, with the fastest decisions for its sizes (`ruled`), or with NCCL's own, which may
    have NCCL_MIN_NCHANNELS, so many `channels`.
    """

    packing: GradientPacking
    ruled: bool
    channels: int = 0


class NcclSearch(Search[Scenario]):
    """The search of each packing with NCCL's decisions.

    It tries NCCL's own choice, the same with more channels where the library takes few rings, every
    decision for all sizes, and the fastest ranges, unless NCCL always chooses by itself (not
    `ruled`).

    `pieced`: times of some settings are composed of calls; `spent` counts the ops of the others.
    """

    def __init__(
        self,
        aim: Aim[Scenario],
        before: Tuned | None = None,
        packings: Sequence[GradientPacking] = (),
        *,
        ruled: bool = True,
    ) -> None:
        scenario = aim.reducing.but(runtime=NCCL)
        self.packings = packings or nccl_packings(aim.target, scenario, half=aim.half)
        super().__init__(aim, before, scenario, Setting(f"nccl{self.packings[0].text}"))
        # All plans are that large, so their times are composed of their calls' times.
        self.composed = len(scenario.setup.layout.tasks) >= MANY
        self.gap = _GAP if self.composed else 0.0
        choices = decisions(scenario.setup) if ruled else []
        self.more = more_channels(scenario.setup) if ruled else 0
        self.calls = StepCalls(scenario.setup, choices, aim.effort / 2, self.gap)
        self.settings: dict[PackingPoint, Setting] = {}
        self.spent, self.pieced = 0, False

    @property
    def seconds(self) -> Mapping[Setting, float]:
        """Seconds by setting."""
        return {self.settings[point]: took for point, took in self.outcome.seconds.items()}

    def answer(self, *, stopped: bool = False) -> Tuned:
        """The answer, with the number of points, ranges of sizes counted as one of each packing."""
        found, choices = super().answer(stopped=stopped), len(self.calls.choices)
        points = len(self.packings) * (1 + choices + bool(choices) + bool(self.more))
        near = self.outcome.best * (1.0 - max(self.gap, SAME))
        return replace(
            found,
            points=points,
            calls=self.calls.counted,
            sureness=sureness_of(self.scenario, [size.nbytes for size in self.packings[0].calls]),
            composed=self.pieced,
            unfit=points if self.aim.misfit else 0,
            spent=not stopped and self.outcome.bound < near,
        )

    def first(self, do: Do) -> None:
        """Simulate the default, without and with more channels."""
        for channels in sorted({0, self.more}):
            point = PackingPoint(self.packings[0], ruled=False, channels=channels)
            [tried] = self._simulate(do, [point])
            self.outcome.seconds[point] = tried.seconds

    def run(self, do: Do) -> None:
        """Search until every point is simulated or excluded, or the effort is spent.

        Ends at once if none fits the memory of a GPU.
        """
        if self.aim.misfit:
            return
        ways = [
            *((False, n) for n in sorted({0, self.more})),
            *[(True, 0)] * bool(self.calls.choices),
        ]
        points = [PackingPoint(packing, *way) for packing in self.packings for way in ways]
        # An interrupt before the first bounds leaves that nothing is known.
        self.outcome.excluded.update(dict.fromkeys(points, 0.0))
        self.aim.progress(0, len(points))
        sizes = sorted({s for p in self.packings for s in p.calls}, key=lambda s: s.nbytes)
        self.calls.rate(do, [self.calls.own(s, c) for s in sizes for c in {0, self.more}])
        search(
            [(self._bound(point), point) for point in points],
            partial(self._sharpen, do),
            partial(self._simulate, do),
            self.outcome,
            WIDTH,
            lambda: self.spent > self.aim.effort,
            self.aim.progress,
            max(self.gap, SAME),
        )

    def _bound(self, point: PackingPoint) -> float:
        """Seconds that a point takes at least, by what is known of its calls."""
        calls, overlap = self.calls, self.aim.overlap

        @cache
        def least(size: CallSize) -> tuple[float, float]:
            """Seconds of a call, and those that kernels lose beside it."""
            chosen = calls.choices if point.ruled else [calls.own(size, point.channels)]
            found = [(calls.bound(how, size), overlap.loses(how.channels)) for how in chosen]
            seconds = min((each for each, _ in found), default=0.0)
            return seconds, min((each * part for each, part in found), default=0.0)

        return overlap.bound(point.packing, lambda s: least(s)[0], lambda s: least(s)[1])

    def _sharpen(self, do: Do, point: PackingPoint) -> float | None:
        """The bound from the fastest decisions for the sizes of a point.

        Or it is from calls by NCCL's own that were simulated since.
        """
        calls, sizes = self.calls, point.packing.calls
        if point.ruled:
            calls.settle(sizes, do, lambda: self._bound(point) > self.outcome.best)
        elif not calls.choices:
            calls.ask([CallSetting(calls.own(size), size) for size in sizes], do)
        return self._bound(point)

    def _simulate(self, do: Do, points: Sequence[PackingPoint]) -> list[Tried]:
        """Simulate the settings of points, each once.

        Where NCCL's own choice is the fastest, the settings are the same.
        """
        for point in points:
            rules = self.calls.rules(point.packing.calls, do) if point.ruled else ()
            self.settings[point] = Setting(
                f"nccl{point.packing.text}",
                rules,
                point.channels or needed_channels(self.scenario.setup, rules),
            )
        found = {p: self._compose(p, do) for p in points if self._is_huge(p)}
        composed = {self.settings[point]: tried for point, tried in found.items()}
        known = {s: Tried(seconds) for s, seconds in self.seconds.items()} | composed
        mine = [self.settings[point] for point in points]
        asked = [setting for setting in dict.fromkeys(mine) if setting not in known]
        tried = do(partial(evaluate, limit=self.outcome.best), asked)
        self.spent += sum(each.ops for each in tried)
        known |= zip(asked, tried, strict=True)
        return [known[setting] for setting in mine]

    def _chosen(self, setting: Setting, size: CallSize) -> Decision:
        """NCCL's choice for a call by a setting."""
        return self.calls.chosen(setting.rules, size, setting.channels)

    def _is_huge(self, point: PackingPoint) -> bool:
        """Whether the time of a plan is composed of its calls' times.

        A simulation of it would take long. Composing is exact but for copies into and out of
        buckets, which take longer where they meet.
        """
        calls, setting, step = self.calls, self.settings[point], self.scenario.step
        if self.composed or (step and is_composed(with_step(self.scenario), setting.parsed)):
            return True
        ops = (calls.ops(self._chosen(setting, size), size) for size in point.packing.calls)
        return bool(calls.choices) and sum(ops) > _HUGE

    def _compose(self, point: PackingPoint, do: Do) -> Tried:
        """The time of a point by the times of its calls.

        The largest says whether the others are worth it.
        """
        calls, setting = self.calls, self.settings[point]
        chosen = {size: self._chosen(setting, size) for size in point.packing.calls}
        for sizes in ([max(chosen, key=lambda size: size.nbytes)], chosen):
            calls.ask([CallSetting(chosen[size], size) for size in sizes], do)
            took = self.aim.overlap.compose(
                point.packing,
                lambda size: CallCost(calls.bound(chosen[size], size), chosen[size].channels),
            )
            if took > self.outcome.best and len(sizes) < len(chosen):
                return Tried(took, exact=False)
        self.pieced = True
        return Tried(took)

    def curve(self, best: Setting, do: Do) -> tuple[BucketTime, ...]:
        """Times of other sizes of buckets, all else as in the best setting.

        They are simulated, or composed of calls where plans are huge. Sizes that the effort does
        not reach have bounds.
        """
        own = next((p for p, setting in self.settings.items() if setting == best), None)
        if own is None or self.aim.misfit:
            return ()
        words = own.packing.text.partition(",")[2]
        alike = sorted(
            (p for p in self.packings if p.knob and p.text.partition(",")[2] == words),
            key=lambda packing: packing.knob,
        )
        if own.packing not in alike:
            return ()
        first = max(min(alike.index(own.packing) - _CURVE // 2, len(alike) - _CURVE), 0)
        settings = {
            p: replace(best, strategy=f"nccl{p.text}") for p in alike[first : first + _CURVE]
        }
        seconds = self.seconds
        known = {p: Tried(seconds[s]) for p, s in settings.items() if s in seconds}
        unknown = [p for p in settings if p not in known]
        if self.pieced:
            known |= zip(unknown, self._between(unknown, best, do), strict=True)
        elif self.spent <= self.aim.effort / 2:
            known |= zip(
                unknown, do(evaluate, [settings[packing] for packing in unknown]), strict=True
            )
        return tuple(
            BucketTime(p.knob, took.seconds, took.exact, estimated=not took.exact)
            if (took := known.get(p, Tried(inf))).seconds < inf
            else BucketTime(p.knob, self.aim.overlap.bound(p, self.calls.least), exact=False)
            for p in settings
        )

    def _between(
        self, packings: Sequence[GradientPacking], setting: Setting, do: Do
    ) -> list[Tried]:
        """Seconds of packings by the rules of a setting, composed of calls.

        Some calls are simulated, and others lie between two such (`StepCalls.between`): those times
        are not exact. Where too many would be simulated, they are infinite.
        """
        calls = self.calls
        chosen = {size: self._chosen(setting, size) for p in packings for size in p.calls}
        calls.surround([(how, size) for size, how in chosen.items()], do, _CURVE_EFFORT)

        def cost(size: CallSize) -> CallCost:
            found = calls.between(chosen[size], size)
            return CallCost(inf if found is None else found, chosen[size].channels)

        return [
            Tried(
                self.aim.overlap.compose(packing, cost),
                exact=all(calls.known(chosen[s], s) is not None for s in packing.calls),
            )
            for packing in packings
        ]
