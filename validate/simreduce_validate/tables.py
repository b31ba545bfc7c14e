"""Measured beside predicted times as they are printed: nccl-tests' columns, twice, and as a
document.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import simreduce as sr
from simreduce import dtypes, units
from simreduce.report.busbw import algbw, busbw
from simreduce_validate.accuracy import Accuracy, Drift, Size
from simreduce_validate.campaign import RUNTIME, Campaign, Timing
from simreduce_validate.measuring import Interval, noise
from simreduce_validate.measuring.statistics import FEW, LEVEL, range_level
from simreduce_validate.transfers import Transfer

_HEADER = (
    "#                                                 measured                  predicted",
    "#       size         count      type   redop     time   algbw   busbw     time   busbw   error #faults  transfers  algorithm",
    "#        (B)    (elements)                       (us)  (GB/s)  (GB/s)     (us)  (GB/s)",
)  # fmt: skip


def table(rows: Sequence[Timing], ranks: int, about: Sequence[str], accuracy: Sequence[str]) -> str:
    """nccl-tests' columns of what was measured, what was predicted, and how far off that is; faults
    below.
    """
    candidates = [row for row in rows if row.case.control is None]
    lines = [*(f"# {line}" for line in about), *_HEADER]
    lines += [
        f"{r.case.nbytes:12d}  {r.case.count:12d}  {dtypes.NAMES[r.case.dtype]:>8}  {r.case.redop:>6}  {r.measured.median * 1e6:7.1f}  "
        f"{algbw(r.case.nbytes, r.measured.median) / 1e9:6.2f}  {busbw(r.case.nbytes, r.measured.median, ranks) / 1e9:6.2f}  "
        + (
            f"{r.predicted * 1e6:7.1f}  {busbw(r.case.nbytes, r.predicted, ranks) / 1e9:6.2f}  {r.error:+6.0%}"
            if math.isfinite(r.predicted)
            else f"{'-':>7}  {'-':>6}  {'-':>6}"
        )
        + f"  {len(r.faults):6d}  {sum(r.measured.prepared.executed.transfers.values()):9d}  {r.case.algorithm}{' again' if r.case.repeats is not None else ''}"
        for r in candidates
    ]
    lines += [f"# {line}" for line in (*accuracy, *noise_lines(candidates))]
    faults = fault_lines(rows)
    lines.append(f"# Faults               : {len(faults)} {'FAILED' if faults else 'OK'}")
    lines += [f"#   {fault}" for fault in faults[:20]]
    return "\n".join(lines)


def samples_line(rows: Sequence[Timing], chained: int = 1) -> str:
    """What a time is the median of."""
    settled = [row.settled for row in rows]
    fewest, most = min(settled), max(settled)
    each = "one step" if most <= 1 else f"the median of {most} steps"
    if fewest < most:
        each = f"the median of {fewest} to {most} steps"
    after = " after as many that do not count" if most else ""
    reduced = f"; a step is {chained} all-reduces" if chained > 1 else ""
    return f"medians of {units.counted(len(rows[0].measured.seconds), 'sample')}, each {each}{after}{reduced}"


def fault_lines(rows: Sequence[Timing]) -> list[str]:
    """All that makes times of rows meaningless."""
    return [
        f"{'control: ' * bool(r.case.control)}{r.case.algorithm}, {r.case.nbytes} bytes: {fault}"
        for r in rows
        for fault in r.faults
    ]


def noise_lines(rows: Sequence[Timing]) -> list[str]:
    """What the medians are worth: their intervals, outliers and drift."""
    found = [noise(row.measured.seconds) for row in rows]
    widths = [(r.interval.high - r.interval.low) / 2 / r.measured.median for r in rows]
    samples, far = (
        sum(len(r.measured.seconds) for r in rows),
        sum(len(each.outliers) for each in found),
    )
    lines = [
        f"medians: +-{np.median(widths):.1%} (the worst +-{max(widths):.1%}) with {_level(rows):.3g} %",
        f"outliers: {far} of {units.counted(samples, 'sample')}; they count",
    ]
    lines += [
        f"drift: {r.case.algorithm}, {r.case.nbytes} bytes: the second half took {each.drift.value:+.1%} "
        f"({each.drift.low:+.1%} to {each.drift.high:+.1%})"
        for r, each in zip(rows, found, strict=True)
        if each.drifts
    ]
    return lines


def accuracy_lines(accuracy: Accuracy | None) -> list[str]:
    """What the predictions were worth, in words."""
    if accuracy is None:
        return []
    lines = [
        (
            f"predictions: |error| {accuracy.median_error:.1%} in the median, {accuracy.p90_error:.1%} at the 90th percentile; "
            f"regret {accuracy.median_regret:.1%} in the median, {accuracy.worst_regret:.1%} at worst, {accuracy.worst_cost:.1%} for certain"
        )
    ]
    if accuracy.wrong:
        lines.append(f"{accuracy.wrong} with wrong results are left out of this")
    lines += [
        _size_line(size)
        for size in accuracy.sizes
        if size.order.pairs
        or size.chosen != size.best
        or size.floor
        or not math.isnan(size.default)
    ]
    if drift := accuracy.drift:
        of = [size for size in accuracy.sizes if size.drift]
        sizes = (
            ""
            if len(of) == len(accuracy.sizes)
            else f" at {len(of)} of {len(accuracy.sizes)} sizes"
        )
        lines.append(
            f"controls: plans of the calibration, timed again{sizes}, are off what they took then by {drift.median_repeat:.1%} in the median, "
            f"{drift.p90_repeat:.1%} at the 90th percentile; all together {_change(drift)}; |error| of the candidates beside them {drift.median_error:.1%} in the median; "
            f"predictions without that: |error| {drift.median_rest:.1%} in the median, {drift.p90_rest:.1%} at the 90th percentile"
        )
        lines += [_drift_line(size.nbytes, size.drift) for size in of if size.drift]
    return lines


def _drift_line(nbytes: int, drift: Drift) -> str:
    one_by_one = ", ".join(
        f"{name} {change:+.1%}" for name, change in zip(drift.controls, drift.each, strict=True)
    )
    return (
        f"controls, {units.format_size(nbytes)}: {_change(drift)}, of {one_by_one}; "
        f"|error| {drift.median_error:.1%} in the median, {drift.median_rest:.1%} without that"
    )


def _change(drift: Drift) -> str:
    return f"{drift.since.value:+.1%} ({_between(drift.since)})"


def _size_line(size: Size) -> str:
    """What is true of the candidates of one size: which is chosen, what is in order, what of that
    noise could make.
    """
    parts = [
        (
            f"{units.format_size(size.nbytes)}: predicted fastest {size.chosen}, measured fastest {size.best}, "
            f"regret {size.regret.value:.1%} ({_between(size.regret)})"
        ),
        (
            f"in order {size.certain.kept} of {size.certain.pairs} pairs certainly more than 5 % apart, "
            f"{size.order.kept} of {size.order.pairs} by their medians"
        ),
    ]
    if not math.isnan(size.rank):
        parts.append(f"rank correlation {size.rank:.2f}")
    if size.floor:
        parts.append(f"noise floor {size.floor.value:+.1%} ({_between(size.floor)})")
    if not math.isnan(size.default):
        parts.append(f"TensorFlow's own is {size.default:+.1%} from the fastest")
    return "; ".join(parts)


def _between(interval: Interval) -> str:
    return (
        f"{interval.low:+.1%} to {interval.high:+.1%}"
        if interval.bounded
        else "too few rounds for bounds"
    )


def transfer_lines(row: Timing, found: Sequence[Transfer], most: int = 40) -> list[str]:
    """The transfers of one step of a candidate, as they ended; of very many, those that are
    farthest off.
    """
    if not found:
        return []
    shown = (
        found
        if len(found) <= most
        else sorted(sorted(found, key=lambda t: -abs(t.residual))[:most], key=lambda t: t.measured)
    )
    residuals = np.abs([each.residual for each in found])
    about = f"# {row.case.algorithm}, {row.case.nbytes} bytes: {units.counted(len(found), 'transfer')} of one step"
    if not np.isnan(residuals).any():
        about += (
            f", predicted end less measured end: median {units.format_duration(float(np.median(residuals)))}, "
            f"worst {units.format_duration(float(residuals.max()))}"
        )
    lines = [
        about,
        "#     op       bytes  measured (us)  predicted (us)  residual (us)",
    ]
    lines += [
        f"{t.op:8d}  {t.nbytes:10d}  {t.measured * 1e6:13.1f}  "
        + (
            f"{'-':>14}  {'-':>13}"
            if math.isnan(t.predicted)
            else f"{t.predicted * 1e6:14.1f}  {t.residual * 1e6:+13.1f}"
        )
        + f"  {t.source}>{t.target}"
        for t in shown
    ]
    return lines


def _level(rows: Sequence[Timing]) -> float:
    """With what probability, in percent, the intervals hold their medians: that of the range of a
    few samples.
    """
    fewest = min((len(r.measured.seconds) for r in rows), default=FEW + 1)
    return 100.0 * (LEVEL if fewest > FEW else range_level(fewest))


def document(
    campaign: Campaign,
    rows: Sequence[Timing],
    accuracy: Accuracy | None,
    details: Sequence[Sequence[Transfer]],
    provenance: Any,
) -> dict[str, Any]:
    """The same as a document, with every single time."""
    devices = campaign.devices
    ranks = devices.layout.n
    return {
        "command": "validate",
        "version": sr.__version__,
        "topology": devices.topology.name,
        "ranks": ranks,
        "backend": devices.stage.backend,
        "route": devices.route,
        "chained": campaign.chained,
        "runtime": RUNTIME,
        "calibration": campaign.calibration.name,
        "provenance": dict(provenance),
        "judgement": accuracy_document(accuracy),
        "rows": [
            {
                "size_bytes": r.case.nbytes,
                "count": r.case.count,
                "type": dtypes.NAMES[r.case.dtype],
                "redop": r.case.redop,
                "algorithm": r.case.algorithm,
                "time_us": r.measured.median * 1e6,
                **_worth(r),
                "repeats": r.case.repeats,
                "settled_steps": r.settled,
                "times_us": [seconds * 1e6 for seconds in r.measured.seconds.tolist()],
                "algbw_gb_per_s": algbw(r.case.nbytes, r.measured.median) / 1e9,
                "busbw_gb_per_s": busbw(r.case.nbytes, r.measured.median, ranks) / 1e9,
                "predicted_time_us": r.predicted * 1e6 if math.isfinite(r.predicted) else None,
                "error": r.error if math.isfinite(r.predicted) else None,
                "wrong": len(r.faults),
                "faults": list(r.faults),
                "transfers": sum(r.measured.prepared.executed.transfers.values()),
                "control_messages": r.measured.prepared.executed.messages,
                "transfer_times": [
                    {
                        "op": t.op,
                        "source": t.source,
                        "target": t.target,
                        "size_bytes": t.nbytes,
                        "measured_us": t.measured * 1e6,
                        "predicted_us": None if math.isnan(t.predicted) else t.predicted * 1e6,
                    }
                    for t in mine
                ],
            }
            for r, mine in zip(rows, details, strict=True)
            if r.case.control is None
        ],
        "controls": [
            {
                "plan": r.case.algorithm, "size_bytes": r.case.nbytes, "beside_size_bytes": list(control.beside),
                "then_us": control.then * 1e6, "time_us": r.measured.median * 1e6, **_worth(r), "settled_steps": r.settled,
                "times_us": [seconds * 1e6 for seconds in r.measured.seconds.tolist()], "faults": list(r.faults),
            }
            for r in rows
            if (control := r.case.control)
        ],
    }  # fmt: skip


def accuracy_document(accuracy: Accuracy | None) -> dict[str, Any] | None:
    """Numbers that there are none of (no two candidates, no builtin, bounds of too few rounds) are
    null.
    """
    if accuracy is None:
        return None
    return {
        "median_error": accuracy.median_error,
        "p90_error": accuracy.p90_error,
        "median_regret": accuracy.median_regret,
        "worst_regret": accuracy.worst_regret,
        "worst_certain_regret": accuracy.worst_cost,
        "sizes": [
            {
                "size_bytes": size.nbytes, "predicted_fastest": size.chosen, "measured_fastest": size.best,
                "regret": size.regret.value, **_bounds("regret", size.regret),
                "rank_correlation": None if math.isnan(size.rank) else size.rank,
                "ordered_pairs": size.order.kept, "pairs": size.order.pairs,
                "certain_ordered_pairs": size.certain.kept, "certain_pairs": size.certain.pairs,
                "noise_floor": size.floor.value if size.floor else None,
                **_bounds("noise_floor", size.floor),
                "default_regret": None if math.isnan(size.default) else size.default,
                "controls": _drift_document(size.drift),
            }
            for size in accuracy.sizes
        ],
        "controls": _drift_document(accuracy.drift),
    }  # fmt: skip


def _drift_document(drift: Drift | None) -> dict[str, Any] | None:
    """`since` is what controls take over what they took then, less 1; errors without that stand
    beside the plain one of the same rows. The repeat error is that of what each control took then
    as a prediction of what it takes now.
    """
    if drift is None:
        return None
    return {
        "plans": list(drift.controls), "since": drift.since.value, **_bounds("since", drift.since),
        "median_repeat_error": drift.median_repeat, "p90_repeat_error": drift.p90_repeat,
        "median_error": drift.median_error, "median_error_without": drift.median_rest, "p90_error_without": drift.p90_rest,
    }  # fmt: skip


def _bounds(name: str, interval: Interval | None) -> dict[str, float | None]:
    known = interval is not None and interval.bounded
    return {
        f"{name}_low": interval.low if interval and known else None,
        f"{name}_high": interval.high if interval and known else None,
    }


def _worth(row: Timing) -> dict[str, Any]:
    """What the median of a row is worth. `drift` has no bounds where there are too few samples for
    them.
    """
    found, interval = noise(row.measured.seconds), row.interval
    return {
        "low_us": interval.low * 1e6,
        "high_us": interval.high * 1e6,
        "spread": found.spread,
        "outliers": list(found.outliers),
        "drift": found.drift.value,
        "drifts": found.drifts,
    }
