"""Candidates, the choice among them, the frontier of cost against time, and where targets end."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from simreduce.computing import group_by
from simreduce.study.capacity.price_list import HOUR, PriceList
from simreduce.study.sweep import Figures

MILLION = 1e6
COST, HOURLY, TIME = OBJECTIVES = ("cost", "hourly", "time")
"""Objectives to minimise: the cost of the run or of a token, the price per hour, the time."""
COPY = "hourly_per_copy"
"""What is minimised of jobs unless it is said how many copies must fit."""


class Configuration(NamedTuple):
    """The settings of an option, in the words of the file; "" for settings it does not have."""

    name: str
    machine: str
    nodes: str
    network: str
    method: str
    strategy: str
    batch: str

    @property
    def label(self) -> str:
        """The configuration in words: `8 x p4d, switch, ddp, nccl, batch 32`."""
        nodes = f"{self.nodes} x {self.machine}"
        batch = self.batch and f"batch {self.batch}"
        parts = (self.name, nodes, self.network, self.method, self.strategy, batch)
        return ", ".join(part for part in parts if part)

    def without(self, names: Iterable[str]) -> Configuration:
        """The configuration with these parts blank."""
        return self._replace(**dict.fromkeys(names, ""))


@dataclass(frozen=True, slots=True)
class CapacityTarget:
    """Limits that a configuration must meet; None where there is no limit.

    The run has `samples` samples, and its cost and time count; None where nobody names a run.
    A sample has `tokens` tokens, 0 if that is not known. `budget` is money for the run, `hourly`
    money per hour.

    Of jobs, `copies` must fit, none of which takes more than `slowdown` times as long as alone, for
    `hourly_per_copy` at most; other targets are None.
    """

    samples: float | None = None
    step_time: float | None = None
    efficiency: float | None = None
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    cost_per_million_tokens: float | None = None
    time: float | None = None
    budget: float | None = None
    hourly: float | None = None
    slowdown: float | None = None
    copies: int | None = None
    hourly_per_copy: float | None = None
    minimise: str = COST
    tokens: int = 0

    @property
    def run(self) -> float:
        """Samples of the run, or a million, over which costs and times compare as over any."""
        return MILLION if self.samples is None else self.samples

    @property
    def units(self) -> float:
        """Tokens of a sample, or 1 where samples are what is counted."""
        return float(self.tokens or 1)

    @property
    def token_rate(self) -> float | None:
        """The least samples a second by `tokens_per_second`."""
        return None if self.tokens_per_second is None else self.tokens_per_second / self.units

    @property
    def token_budget(self) -> float | None:
        """The highest cost of the run by `cost_per_million_tokens`."""
        price = self.cost_per_million_tokens
        return None if price is None else price * self.units * self.run / MILLION


RATES = (0.75, 1.25)
"""Factors of an assumed rate of computing for which the choice is shown, too. They illustrate: no
error is known of a rate that nobody measured.
"""


@dataclass(frozen=True, slots=True)
class EvaluatedCluster:
    """A configuration that was evaluated.

    `quantities` counts the price list's items, `row` has all figures of its cell.
    """

    key: Configuration
    nodes: int
    devices: int
    quantities: Mapping[str, float]
    row: Figures

    @property
    def copies(self) -> int:
        """How many copies of jobs fit."""
        return self.row.fit or 0


@dataclass(frozen=True, slots=True)
class CapacityCandidate(EvaluatedCluster):
    """A configuration whose step was simulated.

    `step` is the seconds of a step with its stragglers; `compute`, `exposed` and the rest are its
    parts. `simulated` is the seconds without stragglers.
    Something moves for `communication` seconds, hidden or not. `unmoved` is the seconds that the
    samples of a step take if nothing moves. `goodput` is the part of the time that makes progress.
    `assumed` is the rate of computing that nobody measured, "" for a measured time.
    Of the `first` mesh of many, the step takes at most as long.
    """

    samples: int
    step: float
    simulated: float
    compute: float
    exposed: float
    communication: float
    unmoved: float
    goodput: float
    assumed: str = ""
    first: bool = False

    @property
    def rate(self) -> float:
        """Samples a second, failures included."""
        return self.samples / self.step * self.goodput if self.step else math.inf

    @property
    def efficiency(self) -> float:
        """The rate over that if nothing moved, stragglers and failures included."""
        return self.unmoved / self.step * self.goodput if self.step else 1.0

    @property
    def basis(self) -> tuple[str, str]:
        """What the seconds of its kernels rest on besides its own measurements."""
        return self.row.constants or "", self.assumed

    @property
    def borrowed(self) -> tuple[float, float] | None:
        """The ends of its step's 80 % interval, as parts of the step, where its GPUs' kernels have
        constants of others; the step at other `RATES` where one is assumed; None elsewhere.
        """
        row = self.row
        if self.assumed and self.step:
            parts = [1.0 + self.compute / self.step * (1.0 / each - 1.0) for each in RATES]
            return parts[1], parts[0]
        if not row.constants or not row.seconds or row.low is None or row.high is None:
            return None
        return row.low / row.seconds, row.high / row.seconds

    def time(self, samples: float) -> float:
        """Seconds of a run of so many samples; infinite where there is no progress."""
        return samples / self.rate if self.rate else math.inf

    def slower(self, factor: float) -> CapacityCandidate:
        """The candidate with steps that take `factor` times as long as predicted."""
        extra = (factor - 1.0) * self.step
        return replace(self, step=self.step + extra, exposed=self.exposed + extra)


@dataclass(frozen=True, slots=True)
class PricedOffer:
    """A cluster at prices: money per hour. It `misses` targets."""

    hourly: float
    misses: tuple[str, ...]

    @property
    def meets(self) -> bool:
        """Whether it meets the target."""
        return not self.misses


@dataclass(frozen=True, slots=True)
class Offer(PricedOffer):
    """A candidate at prices: also seconds and money of the run, and money for a million tokens, or
    samples where tokens are not known.

    Of the target that it is farthest from, it is off by a part `short`.
    """

    candidate: CapacityCandidate
    time: float
    cost: float
    per_million: float
    short: float

    def values(self, minimise: str) -> tuple[float, ...]:
        """What is minimised, and what decides ties: the cheaper, then the faster one."""
        return {
            COST: (self.cost, self.time, self.hourly),
            HOURLY: (self.hourly, self.time, self.cost),
            TIME: (self.time, self.cost, self.hourly),
        }[minimise]


@dataclass(frozen=True, slots=True)
class CopiesOffer(PricedOffer):
    """A cluster at prices: also money per hour and copy, infinite where none fits."""

    candidate: EvaluatedCluster
    per_copy: float

    def values(self, minimise: str) -> tuple[float, ...]:
        """What is minimised, the hour (`HOURLY`) or the hour and copy (`COPY`), and the other."""
        found = self.hourly, self.per_copy
        return found if minimise == HOURLY else found[::-1]


def offer_copies(
    cluster: EvaluatedCluster, prices: PriceList, target: CapacityTarget
) -> CopiesOffer:
    """A cluster at these prices, with the names of the targets that it misses."""
    hourly = prices.per_hour(cluster.quantities)
    per_copy = hourly / cluster.copies if cluster.copies else math.inf
    off = {
        "copies": cluster.copies < (target.copies or 1),
        "hourly": target.hourly is not None and hourly > target.hourly,
        COPY: target.hourly_per_copy is not None and per_copy > target.hourly_per_copy,
    }
    return CopiesOffer(hourly, tuple(name for name in off if off[name]), cluster, per_copy)


def offer(candidate: CapacityCandidate, prices: PriceList, target: CapacityTarget) -> Offer:
    """A candidate at these prices, with the names of the targets that it misses."""
    hourly = prices.per_hour(candidate.quantities)
    time = candidate.time(target.run)
    cost = hourly * time / HOUR
    per_million = cost / (target.run * target.units) * MILLION
    most, least = 1.0, -1.0  # signs of limits from above and from below
    wanted = (
        ("step_time", candidate.step, target.step_time, most),
        ("efficiency", candidate.efficiency, target.efficiency, least),
        ("samples_per_second", candidate.rate, target.samples_per_second, least),
        ("tokens_per_second", candidate.rate, target.token_rate, least),
        ("cost_per_million_tokens", cost, target.token_budget, most),
        ("time", time, target.time, most),
        ("budget", cost, target.budget, most),
        ("hourly", hourly, target.hourly, most),
    )
    off = {
        name: abs(value / limit - 1.0) if limit else math.inf
        for name, value, limit, sign in wanted
        if limit is not None and (value - limit) * sign > 0.0
    }
    off |= {"progress": math.inf} if math.isinf(time) else {}
    return Offer(
        hourly, tuple(off), candidate, time, cost, per_million, max(off.values(), default=0.0)
    )


_BY_STEPS = {
    "step_time", "samples_per_second", "tokens_per_second", "cost_per_million_tokens", "time",
    "budget",
}  # fmt: skip
"""Targets that shorter steps may meet."""

NEAR = 0.1
"""By how much an option may miss a target, to be named beside the choice. It decides nothing: the
table has all options, and the reader says whether that much may be missed.
"""
_LESS = 0.01
"""The least part by which it is better, as what a change has to save."""


def near_miss(offers: Sequence[Offer], chosen: Offer | None, minimise: str) -> Offer | None:
    """The best offer that nearly meets the target, if it is better than the chosen one.

    Where none is chosen, the nearest of those.
    """
    near = [each for each in offers if each.misses and each.short <= NEAR]
    if chosen is None:
        return min(near, key=lambda each: each.short, default=None)
    limit = chosen.values(minimise)[0] * (1 - _LESS)
    return min(
        [each for each in near if each.values(minimise)[0] <= limit],
        key=lambda each: each.values(minimise)[0],
        default=None,
    )


_AS_GOOD = 1.001
"""How much more what is as good as something may cost."""


def rivals(offers: Sequence[Offer], chosen: Offer, minimise: str) -> list[Offer]:
    """The best offer of each other machine that may meet the target and be better than the chosen
    one: GPUs of one of both have kernels by constants of others, or another rate that is assumed.

    Costs and times are in proportion to steps. Errors of machines with constants of their own are
    taken as common to both, so that only what is as good as the chosen one is not told apart.
    """

    def end(each: Offer, side: int) -> float:
        return each.values(minimise)[0] * _ends(each)[side]

    def may_meet(each: Offer) -> bool:
        return not set(each.misses) - _BY_STEPS and (1 + each.short) * _ends(each)[0] <= 1

    found = [
        each
        for each in sorted(offers, key=lambda each: each.values(minimise))
        if each.candidate.key.machine != chosen.candidate.key.machine
        and (
            end(each, 0) < end(chosen, 1)
            if each.candidate.basis != chosen.candidate.basis
            else each.values(minimise)[0] <= _AS_GOOD * chosen.values(minimise)[0]
        )
        and may_meet(each)
    ]
    return [mine[0] for mine in group_by(found, lambda o: o.candidate.key.machine).values()]


def _ends(each: Offer) -> tuple[float, float]:
    """The factors between which its steps are, as far as its constants are those of others."""
    return each.candidate.borrowed or (1.0, 1.0)


P = TypeVar("P", Offer, CopiesOffer)


def rank_offers(offers: Sequence[P], minimise: str) -> list[P]:
    """Offers that meet the target, best first.

    Ties go to the next of their values, then the smaller one, then the one that the file names
    first.
    """
    return sorted(
        (each for each in offers if each.meets),
        key=lambda o: (*o.values(minimise), o.candidate.nodes),
    )


def choose(
    candidates: Sequence[CapacityCandidate], prices: PriceList, target: CapacityTarget
) -> Offer | None:
    """The best offer that meets the target; None if none does."""
    ranked = rank_offers([offer(c, prices, target) for c in candidates], target.minimise)
    return ranked[0] if ranked else None


def choice(
    candidates: Sequence[CapacityCandidate], prices: PriceList, target: CapacityTarget
) -> Configuration | None:
    """The configuration of the best offer that meets the target; None if none does."""
    found = choose(candidates, prices, target)
    return None if found is None else found.candidate.key


def frontier(offers: Sequence[Offer]) -> list[Offer]:
    """Offers that no other beats in both cost and time, fastest first.

    Of equal ones the first counts.
    """
    found: list[Offer] = []
    for each in sorted(offers, key=lambda o: (o.time, o.cost)):
        if math.isfinite(each.time) and (not found or each.cost < found[-1].cost):
            found.append(each)
    return found


@dataclass(frozen=True, slots=True)
class WithinTarget:
    """How far a series of configurations with more and more nodes holds an efficiency.

    It holds up to `last`, and no longer at `first_below`; None where there is none. Numbers between
    these two were not evaluated. `series` is their key, "" where they differ.
    """

    series: Configuration
    last: CapacityCandidate | None
    first_below: CapacityCandidate | None


def within_target(
    candidates: Sequence[CapacityCandidate], efficiency: float, differ: Collection[str] = ("nodes",)
) -> Iterator[WithinTarget]:
    """For each series, the largest number of nodes up to which all have at least that efficiency.

    Members of a series `differ` in parts of their keys. One node has no network and belongs to the
    series of every network.
    """
    series = group_by(candidates, lambda each: each.key.without(differ))
    joined = {key.without(["network"]) for key in series if key.network}
    for key, members in series.items():
        if key in joined:
            continue
        alone = series.get(key.without(["network"]), []) if key.network else []
        ordered = sorted([*alone, *members], key=lambda c: c.nodes)
        below = next((c for c in ordered if c.efficiency < efficiency), None)
        above = [c for c in ordered if below is None or c.nodes < below.nodes]
        yield WithinTarget(key, above[-1] if above else None, below)
