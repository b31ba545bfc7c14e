"""How good predictions were: errors, order, and the cost of following them. Pure functions.

Candidates of one size were timed in the same rounds, so they are compared round by round. That
shows which differences are certain (the 95 % interval of the ratio of medians) and which another
run might not show. Each pair is tested by itself. The bounds of all regrets hold together, since
the fastest candidate is found in the same samples and the worst regret of all sizes counts.

Controls are plans of the calibration, timed again in the same rounds. Their change since then is in
the error of every candidate, and no constant can predict it. It stands beside the error, which
stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.stats import spearmanr

from simreduce import units
from simreduce.computing.arrays import Bools
from simreduce_validate.cases import Timing
from simreduce_validate.measuring import (
    Interval,
    common_factor,
    over_fastest,
    ratio_bounds,
    ratio_interval,
)

APART = 0.05
"""Candidates whose measured times differ by less count as equally fast."""


@dataclass(frozen=True, slots=True)
class CandidateOrder:
    """Of `pairs` pairs of candidates, `kept` are in the predicted order."""

    kept: int
    pairs: int


@dataclass(frozen=True, slots=True)
class Drift:
    """How much longer controls take than when the calibration was made, less 1.

    `since` is the geometric mean, `each` has one value per timing. `median_error` is of the
    candidates in the same rounds. `median_rest` and `p90_rest` are of what remains of their errors
    if predictions are made longer by the drift.
    """

    since: Interval
    controls: tuple[str, ...]
    each: tuple[float, ...]
    median_error: float
    median_rest: float
    p90_rest: float

    @property
    def repeat_errors(self) -> list[float]:
        """|error| of each control's old time as a prediction of its new one.

        A yardstick and no bound: a change may also cancel an error of the constants.
        """
        return [abs(1 / (1 + change) - 1) for change in self.each]

    @property
    def median_repeat(self) -> float:
        """The median of `repeat_errors`."""
        return float(np.median(self.repeat_errors))

    @property
    def p90_repeat(self) -> float:
        """The 90th percentile of `repeat_errors`."""
        return float(np.quantile(self.repeat_errors, 0.9))


@dataclass(frozen=True, slots=True)
class SizeAccuracy:
    """The candidates of one size.

    `chosen` is predicted to be the fastest, `best` is the fastest measured one. `regret` is the
    time of `chosen` over that of `best`, less 1, and certainly at least `regret.low`. `rank` is
    Spearman's correlation of the two orders. `certain` counts the pairs that are certainly more
    than `APART` apart, `order` those whose medians are. `floor` is one candidate measured twice
    over itself, less 1. `default` is the regret of TensorFlow's own choice, NaN if not measured.
    """

    nbytes: int
    chosen: str
    best: str
    regret: Interval
    floor: Interval | None
    rank: float
    certain: CandidateOrder
    order: CandidateOrder
    default: float
    drift: Drift | None = None


@dataclass(frozen=True, slots=True)
class _Rounds:
    """Candidates of one size, the controls in their rounds, and the drift of these as a factor."""

    timings: Sequence[Timing]
    controls: Sequence[Timing]
    factor: Interval


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Median and 90th percentile of |error|, and the accuracy at each size.

    The `wrong` timings with faults are left out. `drift` is over all sizes that have controls.
    """

    median_error: float
    p90_error: float
    sizes: tuple[SizeAccuracy, ...]
    wrong: int = 0
    drift: Drift | None = None

    @property
    def median_regret(self) -> float:
        """The median over sizes."""
        return float(np.median([size.regret.value for size in self.sizes]))

    @property
    def worst_regret(self) -> float:
        """The largest over sizes."""
        return max(size.regret.value for size in self.sizes)

    @property
    def worst_cost(self) -> float:
        """The largest certain regret over sizes."""
        return max(size.regret.low for size in self.sizes)


def assess(timings: Sequence[Timing], default: str = "") -> Accuracy | None:
    """The accuracy of all predictions, None without any.

    TensorFlow's own choice is the algorithm named `default`.
    """
    timed = [timing for timing in timings if timing.case.control is None]
    controls = [
        timing for timing in timings if timing.case.control is not None and not timing.faults
    ]
    right = [timing for timing in timed if not timing.faults]
    own = [timing for timing in right if timing.case.repeats is None]
    known = [timing for timing in own if math.isfinite(timing.predicted)]
    if not known:
        return None
    errors = [abs(timing.error) for timing in known]
    by_size = {
        nbytes: [timing for timing in known if timing.case.nbytes == nbytes]
        for nbytes in dict.fromkeys(timing.case.nbytes for timing in known)
    }
    ours = {
        n: [t for t in here if t.case.algorithm != default] or here for n, here in by_size.items()
    }
    comparisons = sum(len(here) - 1 for here in ours.values())
    sizes, parts = list[SizeAccuracy](), list[_Rounds]()
    for nbytes, here in ours.items():
        theirs = [
            t.measured.median
            for t in own
            if t.case.nbytes == nbytes and t.case.algorithm == default
        ]
        floor = _floor([timing for timing in right if timing.case.nbytes == nbytes])
        found = _rounds(by_size[nbytes], controls)
        parts += [found] if found else []
        drift = _drift([found]) if found else None
        sizes.append(_size(nbytes, here, theirs, floor, comparisons, drift))
    return Accuracy(
        float(np.median(errors)),
        float(np.quantile(errors, 0.9)),
        tuple(sizes),
        sum(bool(timing.faults) for timing in timed),
        _drift(parts),
    )


def _size(
    nbytes: int,
    timings: Sequence[Timing],
    default: Sequence[float],
    floor: Interval | None,
    comparisons: int,
    drift: Drift | None,
) -> SizeAccuracy:
    # The first of equal ones must not depend on the order of timings.
    timings = sorted(timings, key=lambda timing: timing.case.algorithm)
    measured = np.array([timing.measured.median for timing in timings])
    predicted = np.array([timing.predicted for timing in timings])
    samples = [timing.measured.seconds for timing in timings]
    low, _ = ratio_bounds(samples)
    chosen, best = int(np.argmin(predicted)), int(np.argmin(measured))
    several = len(set(measured.tolist())) > 1 and len(set(predicted.tolist())) > 1
    fastest = min([measured[best], *default])
    regret = over_fastest(samples, chosen, comparisons=comparisons)

    def order(differ: Bools) -> CandidateOrder:
        """The pairs of which one takes longer, `differ[i, j]`: i longer than j.

        Equal predictions put a pair in no order.
        """
        pairs = [
            (i, j) for i, j in combinations(range(len(timings)), 2) if differ[i, j] or differ[j, i]
        ]
        kept = sum(
            (measured[i] - measured[j]) * (predicted[i] - predicted[j]) > 0 for i, j in pairs
        )
        return CandidateOrder(int(kept), len(pairs))

    return SizeAccuracy(
        nbytes=nbytes,
        chosen=timings[chosen].case.algorithm,
        best=timings[best].case.algorithm,
        regret=_less_one(regret),
        floor=floor,
        rank=float(spearmanr(measured, predicted).statistic) if several else math.nan,
        certain=order(low > 1 + APART),
        order=order(np.divide.outer(measured, measured) > 1 + APART),
        default=float(default[0] / fastest - 1) if default else math.nan,
        drift=drift,
    )


def _floor(timings: Sequence[Timing]) -> Interval | None:
    """A candidate that was measured twice, over itself, less 1."""
    again = next((timing for timing in timings if timing.case.repeats is not None), None)
    if again is None:
        return None
    first = [
        t for t in timings if t.case.repeats is None and t.case.algorithm == again.case.algorithm
    ]
    return (
        _less_one(ratio_interval(again.measured.seconds, first[0].measured.seconds))
        if first
        else None
    )


def _rounds(timings: Sequence[Timing], controls: Sequence[Timing]) -> _Rounds | None:
    """Candidates of one size with the controls in their rounds; None without controls."""
    nbytes = timings[0].case.nbytes
    there = [
        timing
        for timing in controls
        if timing.case.control and nbytes in timing.case.control.beside
    ]
    return _Rounds(timings, there, _factor(there)) if there else None


def _then(control: Timing) -> float:
    return control.case.control.then if control.case.control else math.nan


def _factor(controls: Sequence[Timing]) -> Interval:
    """The drift of controls in the same rounds, as a factor."""
    return common_factor(
        [timing.measured.seconds for timing in controls], [_then(timing) for timing in controls]
    )


def _drift(parts: Sequence[_Rounds]) -> Drift | None:
    """The drift over sizes. A control in the rounds of several sizes counts once."""
    if not parts:
        return None
    own, seen = list[list[Timing]](), set[int]()
    for part in parts:
        own.append([timing for timing in part.controls if id(timing) not in seen])
        seen |= {id(timing) for timing in part.controls}
    controls = [timing for mine in own for timing in mine]
    plain = [abs(timing.error) for part in parts for timing in part.timings]
    rest = [
        abs(timing.predicted * part.factor.value / timing.measured.median - 1)
        for part in parts
        for timing in part.timings
    ]
    return Drift(
        since=_less_one(_mean_factor([mine for mine in own if mine])),
        controls=tuple(
            dict.fromkeys(
                f"{timing.case.algorithm} of {units.exact_size(timing.case.nbytes)}"
                for timing in controls
            )
        ),
        each=tuple(timing.measured.median / _then(timing) - 1 for timing in controls),
        median_error=float(np.median(plain)),
        median_rest=float(np.median(rest)),
        p90_rest=float(np.quantile(rest, 0.9)),
    )


def _mean_factor(parts: Sequence[Sequence[Timing]]) -> Interval:
    """The geometric mean over controls; those of one part were in the same rounds.

    Parts may have rounds in common, so the bounds assume that all of them err the same way.
    """
    weights = np.array([len(mine) for mine in parts]) / sum(len(mine) for mine in parts)
    factors = [_factor(mine) for mine in parts]
    bounds = np.array([(each.value, each.low, each.high) for each in factors])
    return Interval(*np.prod(bounds ** weights[:, None], axis=0).tolist())


def _less_one(ratio: Interval) -> Interval:
    return Interval(ratio.value - 1, ratio.low - 1, ratio.high - 1)
