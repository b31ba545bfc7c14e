"""What a validation or a calibration says in five lines: how far off predictions are, what to take,
how sure that is, what drifted, and where it is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from simreduce import units
from simreduce_validate.accuracy import Accuracy
from simreduce_validate.cases import Timing
from simreduce_validate.measuring import noise
from simreduce_validate.report.accuracy import format_change, format_quantiles


def answer_lines(timings: Sequence[Timing], accuracy: Accuracy | None, kept: str) -> list[str]:
    """The five lines on candidates; `kept` says where the samples or the constants are."""
    lines = {
        "off by": _error(timings, accuracy),
        "take": _fastest(timings, accuracy),
        "sure": _order(timings, accuracy),
        "drifted": _drift(timings, accuracy),
        "kept": kept,
    }
    return [f"{name:<8} {text}" for name, text in lines.items()]


def _error(timings: Sequence[Timing], accuracy: Accuracy | None) -> str:
    if accuracy is None:
        return "unknown, as nothing is predicted"
    known = [t for t in _right(timings) if math.isfinite(t.predicted)]
    count = units.plural(len(known), "prediction")
    return f"{format_quantiles(accuracy.median_error, accuracy.p90_error)}, of {count}"


def _fastest(timings: Sequence[Timing], accuracy: Accuracy | None) -> str:
    """The fastest measured candidate of each range of sizes, and what predictions cost."""
    best = dict[int, Timing]()
    for timing in _right(timings):
        other = best.setdefault(timing.case.nbytes, timing)
        if timing.measured.median < other.measured.median:
            best[timing.case.nbytes] = timing
    if not best:
        return "none, as no measured step was right"
    found = []
    for name, run in groupby(best.items(), key=lambda item: item[1].case.algorithm):
        sizes = [units.format_size(nbytes) for nbytes, _ in run]
        found.append(f"{name} ({' to '.join(dict.fromkeys((sizes[0], sizes[-1])))})")
    cost = ""
    if accuracy is not None:
        cost = (
            f"; what is predicted fastest takes {accuracy.median_regret:.1%} longer in the median, "
            f"{accuracy.worst_regret:.1%} at worst"
        )
    return ", ".join(found) + cost


def _order(timings: Sequence[Timing], accuracy: Accuracy | None) -> str:
    """The pairs in order and the regret that are certain, or how far medians can be trusted."""
    if accuracy is None:
        right = [t for t in timings if not t.faults]
        widths = [(t.interval.high - t.interval.low) / 2 / t.measured.median for t in right]
        return f"medians +-{np.median(widths):.1%}" if widths else "nothing"
    pairs = sum(size.certain.pairs for size in accuracy.sizes)
    kept = sum(size.certain.kept for size in accuracy.sizes)
    order = f"in order {kept} of {units.plural(pairs, 'pair')} certainly more than 5 % apart"
    return f"{order}; a choice by predictions certainly costs {accuracy.worst_cost:.1%} at worst"


def _drift(timings: Sequence[Timing], accuracy: Accuracy | None) -> str:
    """How the machine changed since the calibration, and what changed within this run."""
    since = "no plan of a calibration was timed again"
    if accuracy is not None and accuracy.drift:
        since = f"since the calibration {format_change(accuracy.drift)}"
    return "; ".join([since, *_drifting(timings)])


def _drifting(timings: Sequence[Timing]) -> Iterator[str]:
    """The candidate that changed most within the run, and how many did."""
    found = [(noise(timing.measured.seconds), timing.case) for timing in timings]
    drifts = [(each.drift.value, case) for each, case in found if each.drifts]
    if drifts:
        value, case = max(drifts, key=lambda item: abs(item[0]))
        most = f"{case.algorithm} of {units.format_size(case.nbytes)} {value:+.1%}"
        yield f"in this run {len(drifts)} of {len(found)}, most of all {most}"


def _right(timings: Sequence[Timing]) -> list[Timing]:
    """The candidates without faults, each once."""
    return [t for t in timings if t.case.repeats is None and not t.faults]
