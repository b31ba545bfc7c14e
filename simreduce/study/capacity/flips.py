"""At which value of an assumption the answer changes.

A choice changes only where two candidates tie or one meets or misses a target. For whatever enters
cost and time linearly (prices, errors of predictions) these values have closed forms: all of them
are collected, and the answer between two neighbours is constant. Walking outwards from today's
value finds the first one at which the answer is another. For figures that enter by a formula
(failures) or by a simulation (rates) the same walk goes over a grid, and bisection narrows the step
in which the answer changed.

At which rates of computing and of links the choice changes: bisection over simulations.

Of a step that computes for C seconds and moves something for M seconds, a rate times x changes C or
M by a factor of 1/x, and the step by no more than that: what is overlapped can only hide a
difference, not add to it. So most values of x need no simulation. One is done only where the choice
is open, of the candidate that would win at best.

These bounds leave `SLACK`, as a faster link can make a step a little longer: transfers then queue
in another order, or NCCL chooses another algorithm.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from simreduce.study.capacity import CapacityQuestion
from simreduce.study.capacity.choose import (
    CapacityCandidate,
    CapacityTarget,
    Configuration,
    Offer,
    choice,
    choose,
    offer,
)
from simreduce.study.capacity.options import CapacityOption
from simreduce.study.capacity.price_list import HOUR, PriceList
from simreduce.study.sweep import MESH

T = TypeVar("T")

Answer = Callable[[float], Configuration | None]
"""The choice where an assumption has some value; None where no candidate meets the target."""

EXACT = 1e-12
"""Relative width of the interval to which bisection narrows a formula."""
GRID = (1.01, 1.02, 1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)
"""Factors by which formulas are tried, up and down."""


@dataclass(frozen=True, slots=True)
class Flip:
    """The answer is `becomes` beyond the value `at`; None if then nothing meets the target."""

    at: float
    becomes: Configuration | None


@dataclass(frozen=True, slots=True)
class Assumption:
    """An assumption and the nearest values at which the answer changes.

    Its `value` is in `unit`. The nearest values are below and above; None where it does not change
    `within` a factor, or at all if that is None. `tolerance` is the relative width of the interval
    that holds a flip, 0 where it is exact. `holds` are the values down and up to which a search has
    found the same answer; a search that was stopped is not `complete`, and its intervals may be
    wider.
    """

    name: str
    value: float
    unit: str
    down: Flip | None
    up: Flip | None
    within: float | None = None
    tolerance: float = 0.0
    holds: tuple[float, float] | None = None
    complete: bool = True


Flips = tuple[Flip | None, Flip | None]
"""The nearest below and above."""


def walk(value: float, answer: Answer, breakpoints: Iterable[float]) -> Flips:
    """The nearest flips of an answer below and above `value`.

    The answer changes at `breakpoints` only and is defined from 0 on.
    """
    now = answer(value)
    points = sorted({each for each in breakpoints if 0.0 <= each < math.inf})
    above = [value, *(each for each in points if each > value)]
    below = [value, *[each for each in points if each < value][::-1]]
    up = next(
        (
            Flip(at, becomes)
            for at, beyond in zip(above, [*above[1:], 2.0 * above[-1] + 1.0], strict=True)
            if (becomes := answer((at + beyond) / 2.0)) != now
        ),
        None,
    )
    down = next(
        (
            Flip(at, becomes)
            for at, beyond in zip(below, [*below[1:], 0.0], strict=True)
            if at > 0.0 and (becomes := answer((at + beyond) / 2.0)) != now
        ),
        None,
    )
    return down, up


Asking = Generator[CapacityOption, CapacityCandidate | None, T]
"""Finds something and yields what it must know first."""


class FlipSearch:
    """A walk over factors of `value`, up (`sign` 1) or down (-1), to the nearest flip.

    Bisection then narrows the flip to a relative width of `tolerance`. A choice that changes and
    changes back between two neighbours of the walk is not seen.

    At any moment the choice is known to hold up to the factor `inner`, and to be `becomes` at
    `outer`, if that is not None.
    """

    def __init__(self, value: float, sign: int, factors: Sequence[float], tolerance: float) -> None:
        self.value, self.sign, self.tolerance = value, sign, tolerance
        self.factors = sorted(factors)
        self.inner = 1.0
        self.outer: float | None = None
        self.becomes: Configuration | None = None
        self.complete = False

    def walk(
        self,
        now: Configuration | None,
        choice: Callable[[float], Asking[Configuration | None]],
    ) -> Asking[None]:
        """Look for the flip of a choice that is `now` today."""
        for factor in self.factors:
            found = yield from choice(self._at(factor))
            if found != now:
                self.outer, self.becomes = factor, found
                break
            self.inner = factor
        while self.outer is not None and self.outer > self.inner * (1.0 + self.tolerance):
            middle = math.sqrt(self.inner * self.outer)
            if not self.inner < middle < self.outer:
                break
            found = yield from choice(self._at(middle))
            if found == now:
                self.inner = middle
            else:
                self.outer, self.becomes = middle, found
        self.complete = True

    def _at(self, factor: float) -> float:
        return self.value * factor**self.sign

    @property
    def flip(self) -> Flip | None:
        """The nearest flip that is known."""
        return None if self.outer is None else Flip(self._at(self.outer), self.becomes)

    @property
    def holds_to(self) -> float:
        """The value up to which the choice is known to hold."""
        return self._at(self.inner)


def search(value: float, answer: Answer, factors: Sequence[float], tolerance: float) -> Flips:
    """The nearest flips below and above `value` of an answer that is there at once."""
    now = answer(value)

    def at_once(at: float) -> Asking[Configuration | None]:
        yield from ()
        return answer(at)

    down, up = (FlipSearch(value, sign, factors, tolerance) for sign in (-1, 1))
    for each in (down, up):
        for _ in each.walk(now, at_once):
            pass
    return down.flip, up.flip


def price_flips(
    candidates: Sequence[CapacityCandidate], prices: PriceList, target: CapacityTarget
) -> list[Assumption]:
    """Every price that a candidate pays, with the exact values at which the answer changes."""
    used = [name for name in prices.items if any(name in c.quantities for c in candidates)]
    return [_price_flip(name, candidates, prices, target) for name in used]


def _price_flip(
    name: str, candidates: Sequence[CapacityCandidate], prices: PriceList, target: CapacityTarget
) -> Assumption:
    item, free = prices.items[name], prices.but(name, 0.0)

    def answer(value: float) -> Configuration | None:
        return choice(candidates, prices.but(name, value), target)

    def lines(each: CapacityCandidate) -> tuple[Line, Line]:
        """Money of the run and money per hour: base and slope over the price."""
        base, slope = free.per_hour(each.quantities), each.quantities.get(name, 0.0) * item.hourly
        hours = each.time(target.run) / HOUR
        return (base * hours, slope * hours), (base, slope)

    able = [c for c in candidates if c.time(target.run) < math.inf]
    now = choose(able, prices, target)
    points = []
    for each in able:
        run, hour = lines(each)
        limits = ((run, target.budget), (run, target.token_budget), (hour, target.hourly))
        points += [point for line, limit in limits for point in _meets(line, (limit, 0.0))]
        if now is not None:
            points += [a for mine, its in zip(lines(now.candidate), (run, hour), strict=True)
                       for a in _meets(mine, its)]  # fmt: skip
    return Assumption(name, item.value, item.unit, *walk(item.value, answer, points))


Line = tuple[float, float]
"""Base and slope."""


def _meets(line: Line, other: tuple[float | None, float]) -> list[float]:
    """Where two lines meet, if above 0; nowhere if the other has no base."""
    (a, m), (b, n) = line, other
    return [] if b is None or m == n or (b - a) / (m - n) <= 0.0 else [(b - a) / (m - n)]


def error_flips(
    candidates: Sequence[CapacityCandidate],
    prices: PriceList,
    target: CapacityTarget,
    chosen: Offer,
) -> list[Assumption]:
    """Errors of the predicted step: of the chosen candidate alone, and common to all.

    The value is the true time of a step over the predicted one.
    """
    own = chosen.candidate

    def answer(late: Collection[Configuration], factor: float) -> Configuration | None:
        some = [c.slower(factor) if c.key in late else c for c in candidates]
        return choice(some, prices, target)

    offers = [offer(c, prices, target) for c in candidates]
    ties = [
        each / mine
        for other in offers
        for each, mine in ((other.cost, chosen.cost), (other.time, chosen.time))
        if other.candidate is not own and mine > 0.0 and each < math.inf
    ]
    return [
        Assumption(name, 1.0, "times the prediction", *walk(1.0, partial(answer, late), points))
        for name, late, points in (
            ("step time of this choice", {own.key}, [*ties, *_limits(chosen, target)]),
            (
                "step time of all",
                {c.key for c in candidates},
                [at for each in offers for at in _limits(each, target)],
            ),
        )
    ]


def _limits(each: Offer, target: CapacityTarget) -> list[float]:
    """Factors of the step at which a candidate meets a target exactly."""
    c = each.candidate
    pairs = (
        (target.step_time, c.step),
        (target.time, each.time),
        (target.budget, each.cost),
        (target.token_budget, each.cost),
        (c.efficiency, target.efficiency),
        (c.rate, target.samples_per_second),
        (c.rate, target.token_rate),
    )
    return [high / low for high, low in pairs if high is not None and low and low < math.inf]


def formula_flip(name: str, value: float, unit: str, answer: Answer) -> Assumption:
    """An assumption that enters by a formula, tried up to the last factor of `GRID`."""
    return Assumption(name, value, unit, *search(value, answer, GRID, EXACT), GRID[-1])


SLACK = 0.005
"""Part of a step by which a change of rates may make it shorter than bounds say."""
_STEPS = 3
"""Factors of the walk, up to the largest and as many down."""

Simulate = Callable[[Sequence[CapacityOption]], Sequence[CapacityCandidate | str | None]]
"""The candidates of options; why a step cannot be simulated; None for what was stopped."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate that options have in common: of `machine`'s GPUs, or of links of a class."""

    name: str
    options: tuple[CapacityOption, ...]
    link: str = ""

    def changed(self, option: CapacityOption, factor: float) -> CapacityOption:
        """An option with the rate times a factor."""
        scenario = dict(option.scenario)
        if self.link:
            scenario["link_factors"] = {self.link: factor}
        else:
            step = scenario["step"]
            scenario["step"] = {**step, "speed": factor * step.get("speed", 1.0)}
        return replace(option, scenario=scenario)


def rate_flips(
    question: CapacityQuestion,
    candidates: Sequence[CapacityCandidate],
    rates: Sequence[Rate],
    simulate: Simulate,
) -> list[Assumption]:
    """For each rate, the nearest factors below and above 1 at which the choice changes.

    All rates are searched side by side, so that several simulations run at once. No round of them
    begins after `question.patience` seconds; what is known then is the answer.
    """
    factors = [question.within ** (i / _STEPS) for i in range(1, _STEPS + 1)]
    now = choice(candidates, question.prices, question.target)
    pairs = [
        (rate, [FlipSearch(1.0, sign, factors, question.tolerance) for sign in (-1, 1)])
        for rate in rates
    ]
    walks = [
        each.walk(now, partial(_choice_at, question, candidates, rate))
        for rate, pair in pairs
        for each in pair
    ]
    _drive(walks, simulate, question.patience)
    return [
        Assumption(
            rate.name, 1.0, "times the assumed", down.flip, up.flip, question.within,
            question.tolerance, (down.holds_to, up.holds_to), down.complete and up.complete,
        )
        for rate, (down, up) in pairs
    ]  # fmt: skip


def _drive(
    walks: Iterable[Asking[None]],
    simulate: Simulate,
    patience: float,
) -> None:
    """Answer what walks ask for, in rounds, until they end, time is over, or work was stopped."""
    until = time.monotonic() + patience
    asked = [(walk, option) for walk in walks if (option := next(walk, None)) is not None]
    while asked and time.monotonic() < until:
        replies = simulate([option for _, option in asked])
        following = []
        for (walk, _), reply in zip(asked, replies, strict=True):
            if reply is None:
                return
            with contextlib.suppress(StopIteration):
                following.append((walk, walk.send(None if isinstance(reply, str) else reply)))
        asked = following


def _choice_at(
    question: CapacityQuestion, candidates: Sequence[CapacityCandidate], rate: Rate, factor: float
) -> Asking[Configuration | None]:
    """The choice with a rate times a factor; asks for those options whose step it hangs on."""
    options = {option.key: option for option in rate.options}
    bound = bound_links if rate.link else bound_compute
    exact = {each.key for each in candidates if each.key not in options}

    def bounds(*, best: bool) -> dict[Configuration, CapacityCandidate]:
        return {
            each.key: each if each.key in exact else bound(each, factor, best=best)
            for each in candidates
        }

    pool, worst = bounds(best=True), bounds(best=False)
    while True:
        found = choice([*pool.values()], question.prices, question.target)
        if found is None or found in exact:
            return found
        hopeful = [*(pool | {found: worst[found]}).values()]
        if choice(hopeful, question.prices, question.target) == found:
            return found
        simulated = yield rate.changed(options[found], factor)
        exact.add(found)
        if simulated is None:
            del pool[found]
        else:
            pool[found] = simulated


def _bound_meshes(candidate: CapacityCandidate, factor: float, *, best: bool) -> CapacityCandidate:
    """As `bound_links` and `bound_compute` where another mesh may be the fastest at other rates: no
    mesh changes by more than in proportion.
    """
    near, far = sorted((1.0, 1.0 / factor))
    scale = near * (1.0 - SLACK) if best else far * (1.0 + SLACK)
    return replace(candidate, step=candidate.step * scale)


def bound_links(candidate: CapacityCandidate, factor: float, *, best: bool) -> CapacityCandidate:
    """The shortest or the longest step that links `factor` times as fast could give."""
    if candidate.row.method == MESH:
        return _bound_meshes(candidate, factor, best=best)
    c, change = candidate, candidate.communication * (1.0 / factor - 1.0)
    # Of communication, no more than what is exposed can go.
    shortest = max(c.step + min(change, 0.0), c.step - c.exposed) * (1.0 - SLACK)
    return replace(c, step=shortest if best else (c.step + max(change, 0.0)) * (1.0 + SLACK))


def bound_compute(candidate: CapacityCandidate, factor: float, *, best: bool) -> CapacityCandidate:
    """The shortest or the longest step that computing `factor` times as fast could give.

    It comes with the highest or the lowest efficiency.
    """
    if candidate.row.method == MESH:
        found = _bound_meshes(candidate, factor, best=best)
        return replace(found, unmoved=found.step if best else candidate.unmoved / factor)
    c, change = candidate, candidate.compute * (1.0 / factor - 1.0)
    slow = c.step - c.simulated  # stragglers, in proportion to compute
    change += slow * (1.0 / factor - 1.0)
    step = c.step + (min(change, 0.0) if best else max(change, 0.0))
    # What compute needs by itself, and what devices take that are alone.
    step = max(step, (c.compute + slow) / factor) if best else step
    return replace(
        c,
        step=step * (1.0 - SLACK if best else 1.0 + SLACK),
        unmoved=max(c.unmoved + candidate.compute * (1.0 / factor - 1.0), 0.0),
    )
