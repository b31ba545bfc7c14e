"""What predictions were worth: errors, order, and what following them would have cost. Functions of rows only.

Candidates of one size were timed in the same rounds, and what two of them differ by is taken round by round. So it is told what
is certain (the 95 % interval of the ratio of medians says so) and what another run might show otherwise.
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
from simreduce_validate.measuring import Interval, ratio_bounds, ratio_interval

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
    less 1; `rank` Spearman's correlation of the two orders. `certain` counts the pairs that are certainly more than `APART` apart,
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

    @property
    def cost(self) -> float:
        """The regret that is certain: at least so much longer does what was predicted to be fastest take."""
        return max(self.regret.low, 0.0)


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
        return max(size.cost for size in self.sizes)


def judged(rows: Sequence[Row], default: str = "") -> Judgement | None:
    """What the predictions were worth, of candidates that have one; TensorFlow's own choice is the one named `default`. None if none has."""
    right = [row for row in rows if not row.faults]
    own = [row for row in right if row.case.repeats is None]
    known = [row for row in own if math.isfinite(row.predicted)]
    if not known:
        return None
    errors = [abs(row.error) for row in known]
    sizes = []
    for nbytes in dict.fromkeys(row.case.nbytes for row in known):
        here = [row for row in known if row.case.nbytes == nbytes]
        theirs = [r.measured.median for r in own if r.case.nbytes == nbytes and r.case.algorithm == default]
        floor = _floor([row for row in right if row.case.nbytes == nbytes])
        sizes.append(_size(nbytes, [r for r in here if r.case.algorithm != default] or here, theirs, floor))
    return Judgement(
        float(np.median(errors)),
        float(np.quantile(errors, 0.9)),
        tuple(sizes),
        sum(bool(row.faults) for row in rows),
    )


def _size(nbytes: int, rows: Sequence[Row], default: Sequence[float], floor: Interval | None) -> Size:
    measured = np.array([row.measured.median for row in rows])
    predicted = np.array([row.predicted for row in rows])
    low, high = ratio_bounds([row.measured.seconds for row in rows])
    chosen, best = int(np.argmin(predicted)), int(np.argmin(measured))
    several = len(set(measured.tolist())) > 1 and len(set(predicted.tolist())) > 1
    fastest = min([measured[best], *default])
    bounds = (measured[chosen] / measured[best], low[chosen, best], high[chosen, best])

    def order(differ: npt.NDArray[np.bool_]) -> Order:
        """`differ` at [i, j]: i takes longer than j by more than `APART`."""
        pairs = [(i, j) for i, j in combinations(range(len(rows)), 2) if differ[i, j] or differ[j, i]]
        kept = sum((measured[i] < measured[j]) == (predicted[i] < predicted[j]) for i, j in pairs)
        return Order(int(kept), len(pairs))

    return Size(
        nbytes=nbytes,
        chosen=rows[chosen].case.algorithm,
        best=rows[best].case.algorithm,
        regret=Interval(*(float(bound) - 1 for bound in bounds)),
        floor=floor,
        rank=float(spearmanr(measured, predicted).statistic) if several else math.nan,
        certain=order(low > 1 + APART),
        order=order(np.divide.outer(measured, measured) > 1 + APART),
        default=float(default[0] / fastest - 1) if default else math.nan,
    )


def _floor(rows: Sequence[Row]) -> Interval | None:
    """What a candidate that was measured twice takes over itself, less 1. It is the first of its size."""
    first, *others = rows
    again = [r for r in others if r.case.repeats is not None and r.case.algorithm == first.case.algorithm]
    if not again:
        return None
    found = ratio_interval(again[0].measured.seconds, first.measured.seconds)
    return Interval(found.value - 1, found.low - 1, found.high - 1)
