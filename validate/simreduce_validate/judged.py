"""What predictions were worth: errors, order, and what following them would have cost. Functions of rows only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.stats import spearmanr

from simreduce_validate.cases import Row

APART = 0.05
"""Candidates whose measured times differ by less are not told apart."""


@dataclass(frozen=True, slots=True)
class Size:
    """The candidates of one size. `regret` is what the one predicted to be fastest takes over what the fastest measured one takes,
    less 1; `rank` Spearman's correlation of the two orders; `ordered` of `pairs` pairs that are more than `APART` apart
    are in the order in which they were predicted. `default` is the regret of TensorFlow's own choice, NaN if it was not measured.
    """

    nbytes: int
    chosen: str
    best: str
    regret: float
    rank: float
    ordered: int
    pairs: int
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
        return float(np.median([size.regret for size in self.sizes]))

    @property
    def worst_regret(self) -> float:
        """Over sizes."""
        return max(size.regret for size in self.sizes)


def judged(rows: Sequence[Row], default: str = "") -> Judgement | None:
    """What the predictions were worth, of candidates that have one; TensorFlow's own choice is the one named `default`. None if none has."""
    own = [row for row in rows if row.case.repeats is None and not row.faults]
    known = [row for row in own if math.isfinite(row.predicted)]
    if not known:
        return None
    errors = [abs(row.error) for row in known]
    sizes = []
    for nbytes in dict.fromkeys(row.case.nbytes for row in known):
        here = [row for row in known if row.case.nbytes == nbytes]
        theirs = [r.measured.median for r in own if r.case.nbytes == nbytes and r.case.algorithm == default]
        sizes.append(_size(nbytes, [r for r in here if r.case.algorithm != default] or here, theirs))
    return Judgement(
        float(np.median(errors)),
        float(np.quantile(errors, 0.9)),
        tuple(sizes),
        sum(bool(row.faults) for row in rows),
    )


def _size(nbytes: int, rows: Sequence[Row], default: Sequence[float]) -> Size:
    measured = np.array([row.measured.median for row in rows])
    predicted = np.array([row.predicted for row in rows])
    chosen, best = int(np.argmin(predicted)), int(np.argmin(measured))
    apart = [
        (i, j)
        for i, j in combinations(range(len(rows)), 2)
        if abs(math.log(measured[i] / measured[j])) > math.log1p(APART)
    ]
    ordered = sum((measured[i] < measured[j]) == (predicted[i] < predicted[j]) for i, j in apart)
    several = len(set(measured.tolist())) > 1 and len(set(predicted.tolist())) > 1
    rank = float(spearmanr(measured, predicted).statistic) if several else math.nan
    fastest = min([measured[best], *default])
    return Size(
        nbytes=nbytes,
        chosen=rows[chosen].case.algorithm,
        best=rows[best].case.algorithm,
        regret=float(measured[chosen] / measured[best] - 1),
        rank=rank,
        ordered=int(ordered),
        pairs=len(apart),
        default=float(default[0] / fastest - 1) if default else math.nan,
    )
