"""The best packing and choice of NCCL by size, where NCCL carries every byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

import numpy as np

from simreduce.engine import Rates
from simreduce.layouts import Decision
from simreduce.nccl import facts
from simreduce.nccl.tuner import Rule
from simreduce.scenario import Scenario
from simreduce.tune.search.best_first import SAME, Outcome, Tried, search
from simreduce.tune.search.calls import Calls, decisions
from simreduce.tune.search.one_call import MANY, Asked, Known, Rated, Size, answer, machines
from simreduce.tune.search.packings import Packing
from simreduce.tune.search.ranges import Segment, boundaries, partition
from simreduce.tune.search.setting import Setting, evaluate
from simreduce.tune.search.timeline import Clock, read_clock
from simreduce.workers import rounds

Do = Callable[[Sequence[Any]], list[Any]]
"""Simulates calls or settings, several at a time."""

_WIDTH = 4
"""Settings that are simulated at a time, however many processes there are: so that the answer is
the same everywhere.
"""

_GAP = 0.005
"""The part of its time by which another setting may be faster where plans are huge."""

_HUGE = 4_000_000
"""Ops of a plan whose time is composed of those of its calls."""

EFFORT = 40_000_000
"""Ops of whole plans that are simulated before the search settles for what it has."""

_CURVE = 4_000_000
"""Ops after which no other call is simulated for times of sizes of buckets near the best."""


@dataclass(frozen=True, slots=True)
class Point:
    """A packing, with the fastest decisions for its sizes (`told`), or with NCCL's own."""

    packing: Packing
    told: bool


@dataclass(slots=True)
class NcclSearch:
    """The state of a search: what is known, and the outcome so far.

    `points` counts the points of the space: each packing with NCCL's own choice, with every
    decision for all sizes, and with the fastest ranges. `tried` counts settings, of which `pieced`
    have times that are composed of calls.
    """

    scenario: Scenario
    objective: str
    packings: Sequence[Packing]
    told: bool = True
    effort: int = EFFORT
    calls: Calls = field(init=False)
    clock: Clock = field(init=False)
    outcome: Outcome[Point] = field(default_factory=Outcome)
    settings: dict[Point, Setting] = field(default_factory=dict)
    spent: int = 0
    tried: int = 0
    pieced: int = 0

    def __post_init__(self) -> None:
        setup = self.scenario.setup
        choices = decisions(setup) if self.told else []
        self.calls = Calls(setup, choices, self.effort / 2, self.gap)
        self.clock = read_clock(self.scenario, self.objective)

    @property
    def gap(self) -> float:
        """The part of its time by which another setting may be faster where the search ends."""
        return _GAP if self.composed else 0.0

    @property
    def points(self) -> int:
        """How many points the space has, ranges of sizes counted as one for each packing."""
        choices = len(self.calls.choices)
        return len(self.packings) * (1 + choices + bool(choices))

    @property
    def simulated(self) -> int:
        """How many simulations were made, of calls and of settings."""
        return self.calls.counted + self.tried

    def run(
        self, workers: int, progress: Callable[[int, int], None] = lambda _done, _all: None
    ) -> None:
        """Search until every point is simulated or excluded, or the effort is spent."""
        work = partial(_work, self.scenario, self.objective)
        both = (False, True) if self.calls.choices else (False,)
        points = [Point(packing, told) for packing in self.packings for told in both]
        # An interrupt before the first bounds leaves that nothing is known.
        self.outcome.excluded.update(dict.fromkeys(points, 0.0))
        progress(0, len(points))
        with rounds(work, workers) as do:
            self._look(do)
            bounds = [self.clock.bound(p.packing, self._price(told=p.told)) for p in points]
            search(
                zip(bounds, points, strict=True),
                partial(self._sharpen, do),
                partial(self._simulate, do),
                self.outcome,
                _WIDTH,
                lambda: self.spent > self.effort,
                progress,
                max(self.gap, SAME),
            )

    def _price(self, *, told: bool) -> Callable[[Size], float]:
        calls = self.calls
        if told:
            return calls.least
        return lambda size: calls.bound(calls.own(size), size)

    def _look(self, do: Do) -> None:
        """Learn enough of calls of all sizes for good bounds."""
        sizes = sorted({s for p in self.packings for s in p.calls}, key=lambda s: s.nbytes)
        self.calls.rate(do, map(self.calls.own, sizes))

    def _sharpen(self, do: Do, point: Point) -> float | None:
        """The bound from the fastest decisions for the sizes of a point, or from what has become
        known of NCCL's own since.
        """

        def bound() -> float:
            return self.clock.bound(point.packing, self._price(told=point.told))

        if point.told:
            self.calls.settle(point.packing.calls, do, lambda: bound() > self.outcome.best)
        elif not self.calls.choices:
            self.calls.ask([Asked(self.calls.own(size), size) for size in point.packing.calls], do)
        return bound()

    def _simulate(self, do: Do, points: Sequence[Point]) -> list[Tried]:
        """Simulate the settings of points, each once: where NCCL chooses as it would be told, the
        settings are the same.
        """
        for point in points:
            self.settings[point] = self._setting(point, do)
        found = {p: self._compose(p, do) for p in points if self._is_huge(p)}
        known = {self.settings[p]: Tried(seconds) for p, seconds in self.outcome.seconds.items()}
        known |= {self.settings[point]: tried for point, tried in found.items()}
        asked = [setting for p in points if (setting := self.settings[p]) not in known]
        asked = list(dict.fromkeys(asked))
        tried: list[Tried] = do([(setting, self.outcome.best) for setting in asked])
        self.spent += sum(each.ops for each in tried)
        self.tried += len(asked)
        known |= dict(zip(asked, tried, strict=True))
        return [known[self.settings[point]] for point in points]

    @property
    def composed(self) -> bool:
        """Whether all plans are so large that their times are composed of those of their calls."""
        return machines(self.scenario.setup) >= MANY

    def _is_huge(self, point: Point) -> bool:
        """Whether the time of a plan is composed of those of its calls, as it would take long to
        simulate. That is exact but for copies into and out of buckets, which take longer where they
        meet.
        """
        if self.composed:
            return True
        rules = self.settings[point].rules
        ops = (self.calls.ops(self._chosen(rules, size), size) for size in point.packing.calls)
        return bool(self.calls.choices) and sum(ops) > _HUGE

    def _compose(self, point: Point, do: Do) -> Tried:
        """The time of a point by the times of its calls; the largest says whether the others are
        worth it.
        """
        rules = self.settings[point].rules
        chosen = {size: self._chosen(rules, size) for size in point.packing.calls}
        first = max(chosen, key=lambda size: size.nbytes)
        for sizes in ([first], chosen):
            self.calls.ask([Asked(chosen[size], size) for size in sizes], do)
            took = self.clock.bound(
                point.packing, lambda size: self.calls.bound(chosen[size], size)
            )
            if took > self.outcome.best and len(sizes) < len(chosen):
                return Tried(took, exact=False)
        self.tried += 1
        self.pieced += 1
        return Tried(took)

    def times(
        self, packings: Sequence[Packing], rules: Sequence[Rule], workers: int
    ) -> list[Tried]:
        """Seconds of packings by these rules, composed of calls. Some calls are simulated, and
        others lie between two such (`Calls.between`): those times are not exact. Where too many
        would be simulated, they are infinite.
        """
        chosen = {size: self._chosen(rules, size) for p in packings for size in p.calls}
        with rounds(partial(_work, self.scenario, self.objective), workers) as do:
            self.calls.surround([(how, size) for size, how in chosen.items()], do, _CURVE)

        def price(size: Size) -> float:
            found = self.calls.between(chosen[size], size)
            return inf if found is None else found

        return [
            Tried(
                self.clock.bound(packing, price),
                exact=all(self.calls.known(chosen[s], s) is not None for s in packing.calls),
            )
            for packing in packings
        ]

    def _chosen(self, rules: Sequence[Rule], size: Size) -> Decision:
        """What NCCL does with a call: what it is told by rules, or what it chooses."""
        rule = next((r for r in rules if r.most is None or size.nbytes <= r.most), None)
        own = self.calls.own(size)
        if rule is None:
            return own
        return Decision(rule.algorithm, rule.protocol, rule.channels, own.step)

    def first(self, workers: int, point: Point) -> Setting:
        """Simulate a point before the search."""
        with rounds(partial(_work, self.scenario, self.objective), workers) as do:
            [tried] = self._simulate(do, [point])
        self.outcome.seconds[point] = tried.seconds
        return self.settings[point]

    def _setting(self, point: Point, do: Do) -> Setting:
        rules = self.rules(point.packing, do) if point.told else ()
        return Setting(f"nccl{point.packing.text}", rules)

    def rules(self, packing: Packing, do: Do) -> tuple[Rule, ...]:
        """The fastest choice by ranges of sizes for one packing, whose sizes are settled; none if
        it is what NCCL chooses by itself.
        """
        times = Counter(packing.calls)
        sizes = sorted(times, key=lambda size: (size.nbytes, size))
        cost, segments = partition(self._costs(sizes, times))
        if cost == inf:  # more ranges than there may be
            segments = self._fewer_ranges(sizes, times, do)
        ends = boundaries([size.nbytes for size in sizes], segments)
        known = facts(
            self.scenario.setup.machine, self.scenario.setup.layout.ranks, self.scenario.setup.nccl
        )
        chosen = [self.calls.choices[s.choice] for s in segments for _ in range(s.begin, s.end)]
        if all(how == self.calls.own(size) for how, size in zip(chosen, sizes, strict=True)):
            return ()
        found = []
        for segment, least, most in zip(
            segments, [0, *(e + 1 for e in ends)], [*ends, None], strict=True
        ):
            how = self.calls.choices[segment.choice]
            found.append(
                Rule(
                    "all_reduce",
                    least,
                    most,
                    how.algorithm,
                    how.protocol,
                    how.channels,
                    known.nodes,
                    known.n,
                )
            )
        return tuple(found)

    def _fewer_ranges(self, sizes: Sequence[Size], times: Counter[Size], do: Do) -> list[Segment]:
        """The best ranges with decisions that are the fastest for some size: what is not known of
        them is taken for its bound, and simulated where the best ranges then rest on it.
        """
        calls, choices = self.calls, self.calls.choices
        winners = {calls.best(size)[1] for size in sizes}
        while True:
            costs, asked = self._costs(sizes, times), list[Asked]()
            for column, how in enumerate(choices):
                if how in winners:
                    bounds = [times[size] * calls.bound(how, size) for size in sizes]
                    costs[:, column] = np.minimum(costs[:, column], bounds)
            _, segments = partition(costs)
            for segment in segments:
                how = choices[segment.choice]
                mine = sizes[segment.begin : segment.end]
                asked += [Asked(how, size) for size in mine if calls.known(how, size) is None]
            if not asked:
                return segments
            calls.ask(asked, do)

    def _costs(self, sizes: Sequence[Size], times: Counter[Size]) -> np.ndarray:
        choices = self.calls.choices
        costs = np.full((len(sizes), len(choices)), inf)
        for row, size in enumerate(sizes):
            for column, how in enumerate(choices):
                if (found := self.calls.known(how, size)) is not None:
                    costs[row, column] = times[size] * found
            if not np.isfinite(costs[row]).any():  # the effort was spent before
                how = self.calls.near_own(size)
                costs[row, choices.index(how)] = times[size] * self.calls.bound(how, size)
        return costs


def _work(
    scenario: Scenario, objective: str, item: Asked | Rated | tuple[Setting, float]
) -> Known | Rates | Tried:
    """One simulation: of a setting, or of a call; or the rates of a decision."""
    if isinstance(item, Asked | Rated):
        return answer(scenario.setup, item)
    setting, limit = item
    return evaluate(scenario, objective, setting, limit)
