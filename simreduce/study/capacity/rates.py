"""At which rates of computing and of links the choice changes: bisection over simulations.

Of a step that computes for C seconds and moves something for M seconds, a rate times x changes C or
M by a factor of 1/x, and the step by no more than that: what is overlapped can only hide a
difference, not add to it. So most values of x need no simulation. One is done only where the choice
is open, of the candidate that would win at best.

These bounds leave `SLACK`, as a faster link can make a step a little longer: transfers then queue
in another order, or NCCL chooses another algorithm.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from simreduce.study.capacity.choose import CapacityCandidate, Configuration, choice
from simreduce.study.capacity.flips import Asking, Assumption, FlipSearch
from simreduce.study.capacity.options import CapacityOption, with_rates
from simreduce.study.capacity.question import CapacityQuestion
from simreduce.study.sweep.columns import MESH

SLACK = 0.005
"""Part of a step by which a change of rates may make it shorter than bounds say."""
_STEPS = 3
"""Factors of the walk, up to the largest and as many down."""

Simulate = Callable[[Sequence[CapacityOption]], Sequence[CapacityCandidate | str | None]]
"""The candidates of options; why a step cannot be simulated; None for what was stopped."""
Looking = Asking[CapacityOption, CapacityCandidate | None, Configuration | None]


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate that options have in common: of `machine`'s GPUs, or of links of a class."""

    name: str
    options: tuple[CapacityOption, ...]
    link: str = ""

    def changed(self, option: CapacityOption, factor: float) -> CapacityOption:
        """An option with the rate times a factor."""
        return (
            with_rates(option, 1.0, {self.link: factor})
            if self.link
            else with_rates(option, factor)
        )


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
    pairs = []
    for rate in rates:
        look = _Look(question, candidates, rate)
        pair = [FlipSearch(1.0, sign, factors, question.tolerance) for sign in (-1, 1)]
        pairs.append((rate, pair, [each.walk(now, look.choice) for each in pair]))
    _drive([walk for _, _, walks in pairs for walk in walks], simulate, question.patience)
    return [
        Assumption(
            rate.name, 1.0, "times the assumed", down.flip, up.flip, question.within,
            question.tolerance, (down.holds_to, up.holds_to), down.complete and up.complete,
        )
        for rate, (down, up), _ in pairs
    ]  # fmt: skip


def _drive(
    walks: Iterable[Asking[CapacityOption, CapacityCandidate | None, None]],
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


class _Look:
    """The choice with a rate times a factor."""

    def __init__(
        self, question: CapacityQuestion, candidates: Sequence[CapacityCandidate], rate: Rate
    ) -> None:
        self.question, self.candidates, self.rate = question, candidates, rate
        self.options = {option.key: option for option in rate.options}
        self._bound = bound_links if rate.link else bound_compute

    def choice(self, factor: float) -> Looking:
        """Asks for those options whose step the choice hangs on."""
        pool, exact = dict[Configuration, CapacityCandidate](), set[Configuration]()
        for each in self.candidates:
            touched = each.key in self.options
            pool[each.key] = self._bound(each, factor, best=True) if touched else each
            if not touched:
                exact.add(each.key)
        worst = {
            each.key: self._bound(each, factor, best=False)
            for each in self.candidates
            if each.key not in exact
        }
        while True:
            found = self._choose(pool.values())
            if found is None or found in exact:
                return found
            if self._choose((pool | {found: worst[found]}).values()) == found:
                return found
            simulated = yield self.rate.changed(self.options[found], factor)
            exact.add(found)
            if simulated is None:
                del pool[found]
            else:
                pool[found] = simulated

    def _choose(self, candidates: Iterable[CapacityCandidate]) -> Configuration | None:
        return choice([*candidates], self.question.prices, self.question.target)


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
    shortest = c.step + min(change, 0.0)
    # Of communication, no more than what is exposed can go.
    shortest = max(shortest, c.step - c.exposed) * (1.0 - SLACK)
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
    unmoved = max(c.unmoved + candidate.compute * (1.0 / factor - 1.0), 0.0)
    return replace(c, step=step * (1.0 - SLACK if best else 1.0 + SLACK), unmoved=unmoved)
