"""How good predictions were, as lines and as a document."""

from __future__ import annotations

import math
from typing import Any

from simreduce import units
from simreduce.files.formats.documents import (
    BYTES,
    COUNT,
    RATIO,
    TEXT,
    Key,
    Record,
    list_of,
    or_null,
)
from simreduce_validate.accuracy import Accuracy, Drift, SizeAccuracy
from simreduce_validate.measuring import Interval


def accuracy_lines(accuracy: Accuracy | None) -> list[str]:
    """How good predictions were, in words; no lines without predictions."""
    if accuracy is None:
        return []
    off = format_quantiles(accuracy.median_error, accuracy.p90_error)
    lines = [
        (
            f"predictions: |error| {off}; regret {accuracy.median_regret:.1%} in the median, "
            f"{accuracy.worst_regret:.1%} at worst, {accuracy.worst_cost:.1%} for certain"
        )
    ]
    if accuracy.wrong:
        lines.append(f"{accuracy.wrong} with wrong results are left out")
    lines += [_size_line(size) for size in accuracy.sizes if _says_something(size)]
    if accuracy.drift:
        of = [size for size in accuracy.sizes if size.drift]
        lines.append(_controls_line(accuracy.drift, len(of), len(accuracy.sizes)))
        lines += [_drift_line(size.nbytes, size.drift) for size in of if size.drift]
    return lines


def format_quantiles(median: float, high: float) -> str:
    """A median and a 90th percentile of ratios in words."""
    return f"{median:.1%} in the median, {high:.1%} at the 90th percentile"


def _says_something(size: SizeAccuracy) -> bool:
    differ = size.order.pairs or size.chosen != size.best
    return bool(differ or size.floor or not math.isnan(size.default))


def _controls_line(drift: Drift, controlled: int, sizes: int) -> str:
    where = "" if controlled == sizes else f" at {controlled} of {sizes} sizes"
    return (
        f"controls: plans of the calibration, timed again{where}, differ by "
        f"{format_quantiles(drift.median_repeat, drift.p90_repeat)}; "
        f"all together {format_change(drift)}; "
        f"|error| of the candidates beside them {drift.median_error:.1%} in the median; "
        f"without the drift {format_quantiles(drift.median_rest, drift.p90_rest)}"
    )


def _drift_line(nbytes: int, drift: Drift) -> str:
    changes = zip(drift.controls, drift.each, strict=True)
    each = ", ".join(f"{name} {change:+.1%}" for name, change in changes)
    return (
        f"controls, {units.format_size(nbytes)}: {format_change(drift)}, of {each}; "
        f"|error| {drift.median_error:.1%} in the median, {drift.median_rest:.1%} without the drift"
    )


def format_change(drift: Drift) -> str:
    """How much longer controls take, with bounds."""
    return f"{drift.since.value:+.1%} ({_bounds(drift.since)})"


def _size_line(size: SizeAccuracy) -> str:
    """Which candidate is chosen, how many pairs are in order, and how large the noise is."""
    certain, order = size.certain, size.order
    parts = [
        (
            f"{units.format_size(size.nbytes)}: predicted fastest {size.chosen}, "
            f"measured fastest {size.best}, "
            f"regret {size.regret.value:.1%} ({_bounds(size.regret)})"
        ),
        (
            f"in order {certain.kept} of {certain.pairs} pairs certainly more than 5 % apart, "
            f"{order.kept} of {order.pairs} by their medians"
        ),
    ]
    if not math.isnan(size.rank):
        parts.append(f"rank correlation {size.rank:.2f}")
    if size.floor:
        parts.append(f"noise floor {size.floor.value:+.1%} ({_bounds(size.floor)})")
    if not math.isnan(size.default):
        parts.append(f"TensorFlow's own is {size.default:+.1%} from the fastest")
    return "; ".join(parts)


def _bounds(interval: Interval) -> str:
    if not interval.bounded:
        return "too few rounds for bounds"
    return f"{interval.low:+.1%} to {interval.high:+.1%}"


def _bounds_of(name: str) -> tuple[Key, Key]:
    return (
        Key(f"{name}_low", or_null(RATIO), "The lower end of its 95 % interval, or null."),
        Key(f"{name}_high", or_null(RATIO), "The upper end of that interval, or null."),
    )


_DRIFT = Record(
    "drift",
    "Controls: plans of the calibration, timed again.",
    Key("plans", list_of(TEXT), "The plans."),
    Key("since", RATIO, "How much longer they take than then, less 1; the geometric mean."),
    *_bounds_of("since"),
    Key("median_repeat_error", RATIO, "The median |error| of old times as predictions."),
    Key("p90_repeat_error", RATIO, "The 90th percentile of that."),
    Key("median_error", RATIO, "The median |error| of the candidates beside them."),
    Key("median_error_without", RATIO, "The same if predictions are longer by the drift."),
    Key("p90_error_without", RATIO, "The 90th percentile of that."),
)
ACCURACY = Record(
    "accuracy",
    "How good predictions are; null where there is no number.",
    Key("median_error", RATIO, "The median of |predicted / measured - 1|."),
    Key("p90_error", RATIO, "The 90th percentile of that."),
    Key("median_regret", RATIO, "What following predictions costs, the median of the sizes."),
    Key("worst_regret", RATIO, "The same at the worst size."),
    Key("worst_certain_regret", RATIO, "What is certain of that."),
    Key(
        "sizes",
        list_of(
            Record(
                "size",
                "A size.",
                Key("size_bytes", BYTES, "The tensor."),
                Key("predicted_fastest", TEXT, "The candidate that predictions choose."),
                Key("measured_fastest", TEXT, "The fastest candidate."),
                Key("regret", RATIO, "How much longer the chosen one takes, less 1."),
                *_bounds_of("regret"),
                Key("rank_correlation", or_null(RATIO), "Spearman's; null for one candidate."),
                Key("ordered_pairs", COUNT, "Pairs of candidates in the predicted order."),
                Key("pairs", COUNT, "Pairs that differ by more than 5 %."),
                Key("certain_ordered_pairs", COUNT, "Of the certain ones, those in order."),
                Key("certain_pairs", COUNT, "Pairs that certainly differ by more than 5 %."),
                Key("noise_floor", or_null(RATIO), "How far equal candidates differ, or null."),
                *_bounds_of("noise_floor"),
                Key("default_regret", or_null(RATIO), "That of TensorFlow's own, or null."),
                Key("controls", or_null(_DRIFT), "Controls in its rounds, or null."),
            )
        ),
        "Every size.",
    ),
    Key("controls", or_null(_DRIFT), "Controls of all rounds; null without."),
)


def accuracy_document(accuracy: Accuracy | None) -> dict[str, Any] | None:
    """The accuracy for programs: `ACCURACY`.

    Numbers that do not exist are null: without two candidates, without a builtin, or bounds with
    too few rounds.
    """
    if accuracy is None:
        return None
    return {
        "median_error": accuracy.median_error,
        "p90_error": accuracy.p90_error,
        "median_regret": accuracy.median_regret,
        "worst_regret": accuracy.worst_regret,
        "worst_certain_regret": accuracy.worst_cost,
        "sizes": [_size_document(size) for size in accuracy.sizes],
        "controls": _drift_document(accuracy.drift),
    }


def _size_document(size: SizeAccuracy) -> dict[str, Any]:
    return {
        "size_bytes": size.nbytes,
        "predicted_fastest": size.chosen,
        "measured_fastest": size.best,
        "regret": size.regret.value,
        **_bound_keys("regret", size.regret),
        "rank_correlation": None if math.isnan(size.rank) else size.rank,
        "ordered_pairs": size.order.kept,
        "pairs": size.order.pairs,
        "certain_ordered_pairs": size.certain.kept,
        "certain_pairs": size.certain.pairs,
        "noise_floor": size.floor.value if size.floor else None,
        **_bound_keys("noise_floor", size.floor),
        "default_regret": None if math.isnan(size.default) else size.default,
        "controls": _drift_document(size.drift),
    }


def _drift_document(drift: Drift | None) -> dict[str, Any] | None:
    if drift is None:
        return None
    return {
        "plans": list(drift.controls),
        "since": drift.since.value,
        **_bound_keys("since", drift.since),
        "median_repeat_error": drift.median_repeat,
        "p90_repeat_error": drift.p90_repeat,
        "median_error": drift.median_error,
        "median_error_without": drift.median_rest,
        "p90_error_without": drift.p90_rest,
    }


def _bound_keys(name: str, interval: Interval | None) -> dict[str, float | None]:
    low, high = (interval.low, interval.high) if interval and interval.bounded else (None, None)
    return {f"{name}_low": low, f"{name}_high": high}
