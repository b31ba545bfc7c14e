"""Medians with intervals, and what disturbs them. Pure: equal samples and seeds give equal numbers.

Times of a busy machine have a long tail, so medians stand for them. Nothing is dropped: outliers
are counted and shown, and are in every number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from simreduce.computing.arrays import Floats, Ints

RESAMPLES = 2000
LEVEL = 0.95
NORMAL = 1.4826
"""The median absolute deviation of normal samples, times this, is their standard deviation: 1 /
Phi^-1(3/4).
"""

FAR = 5.0
"""Standard deviations, so estimated, from which a sample is an outlier: of normal ones, about one
in a million.
"""

FEW = 9
"""Samples up to which a bootstrap promises too much: of seven, what it calls 95 % holds the median
88 times in 100. Their whole range is given instead, which holds it with 1 - 2 x 0.5^n. Of 10 to 20
samples the bootstrap's 95 % are 92 to 95.
"""


_IN_TAILS = 20
"""Resamples beyond the bounds, at least: where the level is high, more are drawn."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A number, and the bounds that hold it with a given probability."""

    value: float
    low: float
    high: float

    @property
    def bounded(self) -> bool:
        """Whether there were samples enough for bounds."""
        return math.isfinite(self.high)

    def holds(self, value: float) -> bool:
        """Whether a number is one of those that the samples allow."""
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Noise:
    """How noisy the samples of one candidate are. `spread` is their deviation (`NORMAL` times
    the median absolute one) as a part of the median, `outliers` the places of those that are `FAR`
    from it, and `drift` the median of the second half over that of the first, less 1.
    """

    spread: float
    outliers: tuple[int, ...]
    drift: Interval

    @property
    def drifts(self) -> bool:
        """Whether the halves differ by more than chance: the interval leaves out 0."""
        return not self.drift.holds(0.0)


def median_interval(
    samples: Floats, *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """The median, and its percentile bootstrap interval (Efron 1979); up to `FEW` samples, their
    range.
    """
    _some(samples)
    value = float(np.median(samples))
    if len(samples) <= FEW:
        return Interval(value, float(samples.min()), float(samples.max()))
    drawn = np.median(samples[_draw(len(samples), resamples, seed)], axis=-1)
    low, high = np.quantile(drawn, _edges(level))
    return Interval(value, float(low), float(high))


def ratio_interval(
    ours: Floats, theirs: Floats, *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Median of `ours` over median of `theirs`, taken in the same rounds: rounds are drawn, with
    both samples of each, so that what disturbed a whole round cancels. Bounds are 0 and infinity
    where there are too few rounds for `level`: 95 % need six.
    """
    low, high = ratio_bounds([ours, theirs], level=level, resamples=resamples, seed=seed)
    return Interval(float(np.median(ours) / np.median(theirs)), float(low[0, 1]), float(high[0, 1]))


def ratio_bounds(
    samples: Sequence[Floats], *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[Floats, Floats]:
    """Between which bounds, low and high, the median of candidate i lies over that of candidate j,
    at [i, j]: `ratio_interval` of all candidates that were timed in the same rounds. Each holds by
    itself with `level`.
    """
    return _bounds(_together(samples), range(len(samples)), level, resamples, seed)


def over_fastest(
    samples: Sequence[Floats], one: int, *, comparisons: int, level: float = LEVEL, seed: int = 0
) -> Interval:
    """Median of candidate `one` over the least median of all that were timed in the same rounds.
    Which is the fastest is found in the same samples, so that `one` is compared with every other:
    of so many `comparisons`, these and those of others, all bounds hold together with `level`
    (Bonferroni). Never below 1, as it is one of them.
    """
    each = _together(samples)
    medians = np.median(each, axis=-1)
    apart = (1 - level) / max(comparisons, 1)
    low, high = _bounds(each, [one], 1 - apart, max(RESAMPLES, math.ceil(_IN_TAILS / apart)), seed)
    return Interval(float(medians[one] / medians.min()), float(low.max()), float(high.max()))


def common_factor(
    samples: Sequence[Floats],
    then: Sequence[float],
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """By what factor candidates that were timed in the same rounds take longer than they took
    `then`: of their medians over these, the geometric mean. What they took then is not doubted.
    Rounds are drawn, with the samples of all; up to `FEW` rounds, the bounds are those of all
    samples. Bounds are 0 and infinity where there are too few rounds for `level`.
    """
    each = _together(samples) / np.array(then)[:, None]
    count, value = each.shape[1], _mean(np.median(each, axis=-1))
    if range_level(count) < level:
        return Interval(value, 0.0, np.inf)
    if count <= FEW:
        low, high = _mean(each.min(axis=-1)), _mean(each.max(axis=-1))
    else:
        medians = np.median(each[:, _draw(count, resamples, seed)], axis=-1)
        low, high = np.exp(np.quantile(np.log(medians).mean(axis=0), _edges(level))).tolist()
    return Interval(value, low, high)


def _mean(factors: Floats) -> float:
    """Geometric."""
    return float(np.exp(np.log(factors).mean()))


def _together(samples: Sequence[Floats]) -> Floats:
    """Samples of the same rounds, by candidate and round."""
    for ours, theirs in pairwise(samples):
        if len(ours) != len(theirs):
            raise ValueError(f"{len(ours)} and {len(theirs)} samples are not of the same rounds")
    each = np.stack(samples)
    _some(each.ravel())
    return each


def _bounds(
    each: Floats, ours: Sequence[int], level: float, resamples: int, seed: int
) -> tuple[Floats, Floats]:
    """`ratio_bounds` of some over all. Where there are too few rounds for `level` there are none: 0
    and infinity.
    """
    count = each.shape[1]
    if range_level(count) < level:
        itself = np.equal.outer(np.asarray(ours), np.arange(len(each)))
        return np.where(itself, 1.0, 0.0), np.where(itself, 1.0, np.inf)
    if count <= FEW:
        by_round = each[list(ours)][:, None, :] / each[None, :, :]
        return by_round.min(axis=-1), by_round.max(axis=-1)
    drawn = _draw(count, resamples, seed)
    medians = np.stack([np.median(candidate[drawn], axis=-1) for candidate in each])
    rows = [np.quantile(medians[one] / medians, _edges(level), axis=-1) for one in ours]
    low, high = np.stack(rows, axis=1)
    return low, high


def range_level(count: int) -> float:
    """With what probability the range of so many samples holds their median: no interval of them
    holds it with more.
    """
    return 1.0 - 2.0 * 0.5**count


def noise(
    samples: Floats, *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> Noise:
    """Spread, outliers and drift of samples in the order in which they were taken. Halves of `FEW`
    samples or fewer show no drift: their interval is without bounds.
    """
    _some(samples)
    median = float(np.median(samples))
    return Noise(
        spread=_deviation(samples) / median,
        outliers=tuple(outliers(samples)),
        drift=_drift(samples, level, resamples, seed),
    )


def outliers(samples: Floats) -> list[int]:
    """The places of samples more than `FAR` deviations from the median. None if half of the samples
    or more are equal.
    """
    deviation = _deviation(samples)
    if deviation == 0.0:
        return []
    far: list[int] = np.flatnonzero(np.abs(samples - np.median(samples)) > FAR * deviation).tolist()
    return far


def _drift(samples: Floats, level: float, resamples: int, seed: int) -> Interval:
    half = len(samples) // 2
    first, second = samples[: max(half, 1)], samples[-max(half, 1) :]
    value = float(np.median(second) / np.median(first)) - 1
    if half <= FEW:
        return Interval(value, -np.inf, np.inf)
    rows_first, rows_second = _draw(half, 2 * resamples, seed).reshape(2, resamples, half)
    found = np.median(second[rows_second], axis=-1) / np.median(first[rows_first], axis=-1) - 1
    low, high = np.quantile(found, _edges(level))
    return Interval(value, float(low), float(high))


def _edges(level: float) -> tuple[float, float]:
    """Between which quantiles a number lies with a probability."""
    return (1 - level) / 2, (1 + level) / 2


def _draw(count: int, resamples: int, seed: int) -> Ints:
    return np.random.default_rng(seed).integers(0, count, (resamples, count))


def _deviation(samples: Floats) -> float:
    return NORMAL * float(np.median(np.abs(samples - np.median(samples))))


def _some(samples: Floats) -> None:
    if not len(samples) or not np.isfinite(samples).all() or not (samples > 0).all():
        raise ValueError("needs times above 0, one at least")
