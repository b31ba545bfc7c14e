"""What predictions were worth: errors, order, and what following them would have cost. Functions of rows only.

Candidates of one size were timed in the same rounds, and what two of them differ by is taken round by round. So it is told what
is certain (the 95 % interval of the ratio of medians says so) and what another run might show otherwise. A pair is certain by
itself; regrets hold all together, as the fastest is found in the same samples, and the worst of all sizes is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy.stats import spearmanr

from simreduce_validate.cases import Row
from simreduce_validate.measuring import Interval, over_fastest, ratio_bounds, ratio_interval

APART = 0.05
"""Candidates whose measured times differ by less are not told apart."""


@dataclass(frozen=True, slots=True)
class Order:
    """Of `pairs` pairs of candidates, `kept` are in the order in which they were predicted."""

    kept: int
    pairs: int


@dataclass(frozen=True, slots=True)
class Size:
    """The candidates of one size. `regret` is what the one predicted to be fastest takes over what the fastest measured one takes,
    less 1: at least `regret.low`, for certain; `rank` Spearman's correlation of the two orders. `certain` counts the pairs that are certainly more than `APART` apart,
    `order` those whose medians are. `floor` is what the same candidate, measured twice, takes over itself, less 1; None if none
    was. `default` is the regret of TensorFlow's own choice, NaN if it was not measured.
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


@dataclass(frozen=True, slots=True)
class Judgement:
    """Over all rows whose results are right: the median and the 90th percentile of |error|, and what is true by size. `wrong` rows are left
    out.
    """

    median_error: float
    p90_error: float
    sizes: tuple[Size, ...]
    wrong: int = 0

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


def judged(rows: Sequence[Row], default: str = "") -> Judgement | None:
    """What the predictions were worth, of candidates that have one; TensorFlow's own choice is the one named `default`. None if none has."""
    right = [row for row in rows if not row.faults]
    own = [row for row in right if row.case.repeats is None]
    known = [row for row in own if math.isfinite(row.predicted)]
    if not known:
        return None
    errors = [abs(row.error) for row in known]
    by_size = {
        nbytes: [row for row in known if row.case.nbytes == nbytes]
        for nbytes in dict.fromkeys(row.case.nbytes for row in known)
    }
    ours = {n: [r for r in here if r.case.algorithm != default] or here for n, here in by_size.items()}
    comparisons = sum(len(here) - 1 for here in ours.values())
    sizes = []
    for nbytes, here in ours.items():
        theirs = [r.measured.median for r in own if r.case.nbytes == nbytes and r.case.algorithm == default]
        floor = _floor([row for row in right if row.case.nbytes == nbytes])
        sizes.append(_size(nbytes, here, theirs, floor, comparisons))
    return Judgement(
        float(np.median(errors)),
        float(np.quantile(errors, 0.9)),
        tuple(sizes),
        sum(bool(row.faults) for row in rows),
    )


def _size(
    nbytes: int, rows: Sequence[Row], default: Sequence[float], floor: Interval | None, comparisons: int
) -> Size:
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

    def order(differ: npt.NDArray[np.bool_]) -> Order:
        """`differ` at [i, j]: i takes longer than j by more than `APART`. Those predicted to be alike are in no order."""
        pairs = [(i, j) for i, j in combinations(range(len(rows)), 2) if differ[i, j] or differ[j, i]]
        kept = sum((measured[i] - measured[j]) * (predicted[i] - predicted[j]) > 0 for i, j in pairs)
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
    )


def _floor(rows: Sequence[Row]) -> Interval | None:
    """What a candidate that was measured twice takes over itself, less 1."""
    again = next((row for row in rows if row.case.repeats is not None), None)
    if again is None:
        return None
    first = [r for r in rows if r.case.repeats is None and r.case.algorithm == again.case.algorithm]
    return _less_one(ratio_interval(again.measured.seconds, first[0].measured.seconds)) if first else None


def _less_one(ratio: Interval) -> Interval:
    return Interval(ratio.value - 1, ratio.low - 1, ratio.high - 1)
