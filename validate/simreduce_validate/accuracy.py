"""What predictions were worth: errors, order, and what following them would have cost. Functions of
rows only.

Candidates of one size were timed in the same rounds, and what two of them differ by is taken round
by round. So it is told what is certain (the 95 % interval of the ratio of medians says so) and what
another run might show otherwise. A pair is certain by itself; regrets hold all together, as the
fastest is found in the same samples, and the worst of all sizes is asked for.

Controls, in the same rounds too, are plans that the calibration was learnt from. What these now
take over what they took then is in the error of every candidate, and no constant of then can have
it: it is told beside the error, which stays what it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.stats import spearmanr

from simreduce import units
from simreduce.arrays import Bools
from simreduce_validate.campaign import Timing
from simreduce_validate.measuring import (
    Interval,
    common_factor,
    over_fastest,
    ratio_bounds,
    ratio_interval,
)

APART = 0.05
"""Candidates whose measured times differ by less are not told apart."""


@dataclass(frozen=True, slots=True)
class Order:
    """Of `pairs` pairs of candidates, `kept` are in the order in which they were predicted."""

    kept: int
    pairs: int


@dataclass(frozen=True, slots=True)
class Drift:
    """What controls now take over what they took when the calibration was made, less 1: `since`,
    the geometric mean, and `each`, once for each time that one was timed. `median_error` is that of
    |error| of the candidates beside them, and `median_rest` and `p90_rest` are of what remains of
    their errors if predictions are as much longer.
    """

    since: Interval
    controls: tuple[str, ...]
    each: tuple[float, ...]
    median_error: float
    median_rest: float
    p90_rest: float

    @property
    def repeat_errors(self) -> list[float]:
        """|error| of what each control took then as a prediction of what it takes now: a yardstick,
        no bound, as a change since then may also make up for an error of the constants.
        """
        return [abs(1 / (1 + change) - 1) for change in self.each]

    @property
    def median_repeat(self) -> float:
        """Of `repeat_errors`."""
        return float(np.median(self.repeat_errors))

    @property
    def p90_repeat(self) -> float:
        """Of `repeat_errors`, the 90th percentile."""
        return float(np.quantile(self.repeat_errors, 0.9))


@dataclass(frozen=True, slots=True)
class Size:
    """The candidates of one size. `regret` is what the one predicted to be fastest takes over what
    the fastest measured one takes, less 1: at least `regret.low`, for certain; `rank` Spearman's
    correlation of the two orders. `certain` counts the pairs that are certainly more than `APART`
    apart, `order` those whose medians are. `floor` is what the same candidate, measured twice,
    takes over itself, less 1; None if none was. `default` is the regret of TensorFlow's own choice,
    NaN if it was not measured. `drift` is what controls show; None without any.
    """

    nbytes: int
    chosen: str
    best: str
    regret: Interval
    floor: Interval | None
    rank: float
    certain: Order
    order: Order
    default: float
    drift: Drift | None = None


@dataclass(frozen=True, slots=True)
class _Beside:
    """Candidates of one size, the controls in their rounds, and by what factor these take longer
    than then.
    """

    rows: Sequence[Timing]
    controls: Sequence[Timing]
    factor: Interval


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Over all rows whose results are right: the median and the 90th percentile of |error|, and
    what is true by size. `wrong` rows are left out. `drift` is over all sizes that have controls.
    """

    median_error: float
    p90_error: float
    sizes: tuple[Size, ...]
    wrong: int = 0
    drift: Drift | None = None

    @property
    def median_regret(self) -> float:
        """Over sizes."""
        return float(np.median([size.regret.value for size in self.sizes]))

    @property
    def worst_regret(self) -> float:
        """Over sizes."""
        return max(size.regret.value for size in self.sizes)

    @property
    def worst_cost(self) -> float:
        """Over sizes: the largest regret that is certain."""
        return max(size.regret.low for size in self.sizes)


def assess(rows: Sequence[Timing], default: str = "") -> Accuracy | None:
    """What the predictions were worth, of candidates that have one; TensorFlow's own choice is the
    one named `default`. None if none has.
    """
    timed = [row for row in rows if row.case.control is None]
    controls = [row for row in rows if row.case.control is not None and not row.faults]
    right = [row for row in timed if not row.faults]
    own = [row for row in right if row.case.repeats is None]
    known = [row for row in own if math.isfinite(row.predicted)]
    if not known:
        return None
    errors = [abs(row.error) for row in known]
    by_size = {
        nbytes: [row for row in known if row.case.nbytes == nbytes]
        for nbytes in dict.fromkeys(row.case.nbytes for row in known)
    }
    ours = {
        n: [r for r in here if r.case.algorithm != default] or here for n, here in by_size.items()
    }
    comparisons = sum(len(here) - 1 for here in ours.values())
    sizes, drifted = list[Size](), list[_Beside]()
    for nbytes, here in ours.items():
        theirs = [
            r.measured.median
            for r in own
            if r.case.nbytes == nbytes and r.case.algorithm == default
        ]
        floor = _floor([row for row in right if row.case.nbytes == nbytes])
        found = _beside(by_size[nbytes], controls)
        drifted += [found] if found else []
        drift = _drift([found]) if found else None
        sizes.append(_size(nbytes, here, theirs, floor, comparisons, drift))
    return Accuracy(
        float(np.median(errors)),
        float(np.quantile(errors, 0.9)),
        tuple(sizes),
        sum(bool(row.faults) for row in timed),
        _drift(drifted),
    )


def _size(
    nbytes: int, rows: Sequence[Timing], default: Sequence[float], floor: Interval | None, comparisons: int, drift: Drift | None
) -> Size:  # fmt: skip
    # Of equal ones, the first is then the same whatever the order of rows.
    rows = sorted(rows, key=lambda row: row.case.algorithm)
    measured = np.array([row.measured.median for row in rows])
    predicted = np.array([row.predicted for row in rows])
    samples = [row.measured.seconds for row in rows]
    low, _ = ratio_bounds(samples)
    chosen, best = int(np.argmin(predicted)), int(np.argmin(measured))
    several = len(set(measured.tolist())) > 1 and len(set(predicted.tolist())) > 1
    fastest = min([measured[best], *default])
    regret = over_fastest(samples, chosen, comparisons=comparisons)

    def order(differ: Bools) -> Order:
        """`differ` at [i, j]: i takes longer than j by more than `APART`. Those predicted to be
        alike are in no order.
        """
        pairs = [
            (i, j) for i, j in combinations(range(len(rows)), 2) if differ[i, j] or differ[j, i]
        ]
        kept = sum(
            (measured[i] - measured[j]) * (predicted[i] - predicted[j]) > 0 for i, j in pairs
        )
        return Order(int(kept), len(pairs))

    return Size(
        nbytes=nbytes,
        chosen=rows[chosen].case.algorithm,
        best=rows[best].case.algorithm,
        regret=_less_one(regret),
        floor=floor,
        rank=float(spearmanr(measured, predicted).statistic) if several else math.nan,
        certain=order(low > 1 + APART),
        order=order(np.divide.outer(measured, measured) > 1 + APART),
        default=float(default[0] / fastest - 1) if default else math.nan,
        drift=drift,
    )


def _floor(rows: Sequence[Timing]) -> Interval | None:
    """What a candidate that was measured twice takes over itself, less 1."""
    again = next((row for row in rows if row.case.repeats is not None), None)
    if again is None:
        return None
    first = [r for r in rows if r.case.repeats is None and r.case.algorithm == again.case.algorithm]
    return (
        _less_one(ratio_interval(again.measured.seconds, first[0].measured.seconds))
        if first
        else None
    )


def _beside(rows: Sequence[Timing], controls: Sequence[Timing]) -> _Beside | None:
    """Candidates of one size, and the controls in their rounds; None without any."""
    nbytes = rows[0].case.nbytes
    there = [row for row in controls if row.case.control and nbytes in row.case.control.beside]
    return _Beside(rows, there, _factor(there)) if there else None


def _then(control: Timing) -> float:
    return control.case.control.then if control.case.control else math.nan


def _factor(controls: Sequence[Timing]) -> Interval:
    """By what factor controls in the same rounds take longer than then."""
    return common_factor(
        [row.measured.seconds for row in controls], [_then(row) for row in controls]
    )


def _drift(parts: Sequence[_Beside]) -> Drift | None:
    """What controls show over sizes. One in the rounds of several sizes counts once: with those of
    the first.
    """
    if not parts:
        return None
    own, seen = list[list[Timing]](), set[int]()
    for part in parts:
        own.append([row for row in part.controls if id(row) not in seen])
        seen |= {id(row) for row in part.controls}
    controls = [row for mine in own for row in mine]
    plain = [abs(row.error) for part in parts for row in part.rows]
    rest = [
        abs(row.predicted * part.factor.value / row.measured.median - 1)
        for part in parts
        for row in part.rows
    ]
    return Drift(
        since=_less_one(_mean_factor([mine for mine in own if mine])),
        controls=tuple(
            dict.fromkeys(
                f"{row.case.algorithm} of {units.exact_size(row.case.nbytes)}" for row in controls
            )
        ),
        each=tuple(row.measured.median / _then(row) - 1 for row in controls),
        median_error=float(np.median(plain)),
        median_rest=float(np.median(rest)),
        p90_rest=float(np.quantile(rest, 0.9)),
    )


def _mean_factor(parts: Sequence[Sequence[Timing]]) -> Interval:
    """The geometric mean over controls, of which those of one part were in the same rounds. Bounds
    are as if all parts erred the same way: they may have rounds in common.
    """
    weights = np.array([len(mine) for mine in parts]) / sum(len(mine) for mine in parts)
    factors = [_factor(mine) for mine in parts]
    bounds = np.array([(each.value, each.low, each.high) for each in factors])
    return Interval(*np.prod(bounds ** weights[:, None], axis=0).tolist())


def _less_one(ratio: Interval) -> Interval:
    return Interval(ratio.value - 1, ratio.low - 1, ratio.high - 1)
