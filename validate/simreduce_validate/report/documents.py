"""The document that `simreduce validate --json` prints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from simreduce import dtypes
from simreduce.files.formats.documents import (
    BYTES,
    COUNT,
    FLAG,
    GB_PER_SECOND,
    INTEGER,
    MICROSECONDS,
    RATIO,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    or_null,
)
from simreduce.report.pages import CANDIDATE, DEVICES, TIMES
from simreduce.study.tune.sizes import algbw, busbw
from simreduce_validate.cases import Timing
from simreduce_validate.measuring import noise
from simreduce_validate.measuring.provenance import PROVENANCE
from simreduce_validate.report.accuracy import ACCURACY, accuracy_document
from simreduce_validate.transfers import Transfer
from simreduce_validate.validation import Validation

_SAMPLES = (
    Key("spread", RATIO, "The median distance of samples from their median, as a part of it."),
    Key("outliers", list_of(COUNT), "The places of samples that are far off."),
    Key("drift", RATIO, "The median of the second half over that of the first, less 1."),
    Key("drifts", FLAG, "Whether that is more than chance."),
    Key(
        "settled_steps",
        or_null(COUNT),
        "A sample is the median of so many steps, after as many; 0: one step; null: not known.",
    ),
    Key("times_us", list_of(MICROSECONDS), "Every sample, in order."),
)
_TRANSFER = Record(
    "transfer",
    "A copy of one step.",
    Key("op", COUNT, "Its op in the plan."),
    Key("source", TEXT, "The sender."),
    Key("target", TEXT, "The receiver."),
    Key("size_bytes", BYTES, "What it carries."),
    Key("measured_us", MICROSECONDS, "From the first op of the step to its end."),
    Key("predicted_us", or_null(MICROSECONDS), "The same, predicted; null without prediction."),
)
VALIDATE = Document(
    "validate",
    "`simreduce validate --json`: times on real devices beside predictions.",
    *DEVICES,
    Key("chained", COUNT, "How many all-reduces are chained in a step."),
    Key("provenance", PROVENANCE, "What it ran on."),
    Key("judgement", or_null(ACCURACY), "How good predictions are; null without predictions."),
    Key(
        "rows",
        list_of(
            Record(
                "row",
                "A strategy at a size.",
                *CANDIDATE,
                Key("count", COUNT, "Its elements."),
                Key("type", TEXT, "The type of its elements."),
                Key("redop", TEXT, "The reduction."),
                *_SAMPLES,
                Key("repeats", or_null(COUNT), "The row that is the same; null for none."),
                Key("algbw_gb_per_s", GB_PER_SECOND, "Size over time."),
                Key("busbw_gb_per_s", GB_PER_SECOND, "Algbw times 2(n-1)/n."),
                Key("error", or_null(RATIO), "Predicted over measured, less 1; or null."),
                Key("faults", list_of(TEXT), "Every fault."),
                Key("transfers", COUNT, "Copies between devices that ran."),
                Key("control_messages", INTEGER, "Messages without data that ran."),
                Key("transfer_times", list_of(_TRANSFER), "With `--transfers`, every copy."),
            )
        ),
        "Every candidate, size by size.",
    ),
    Key(
        "controls",
        list_of(
            Record(
                "control",
                "A plan of the calibration, timed again.",
                Key("plan", TEXT, "The plan."),
                Key("size_bytes", BYTES, "What it moves."),
                Key("beside_size_bytes", list_of(BYTES), "Sizes in whose rounds it is timed."),
                Key("then_us", or_null(MICROSECONDS), "Its time when calibrated."),
                *TIMES,
                *_SAMPLES,
                Key("faults", list_of(TEXT), "Every fault."),
            )
        ),
        "Every control.",
    ),
    Key("complete", FLAG, "False if the command was stopped and sizes are missing."),
)


def document(found: Validation) -> dict[str, Any]:
    """The table as a document, with every sample: `VALIDATE`."""
    campaign, devices = found.campaign, found.campaign.devices
    rows = zip(found.timings, found.transfers, strict=True)
    return {
        **VALIDATE.head(),
        "topology": devices.topology.name,
        "ranks": devices.layout.n,
        "backend": devices.stage.backend,
        "route": devices.route,
        "chained": campaign.chained,
        "runtime": campaign.setup.runtime.name,
        "calibration": campaign.setup.calibration.name,
        "provenance": dict(found.provenance),
        "judgement": accuracy_document(found.accuracy),
        "rows": [
            _candidate(timing, transfers, devices.layout.n)
            for timing, transfers in rows
            if timing.case.control is None
        ],
        "controls": [_control(timing) for timing in found.timings if timing.case.control],
        "complete": found.complete,
    }


def _candidate(timing: Timing, transfers: Sequence[Transfer], ranks: int) -> dict[str, Any]:
    case, measured = timing.case, timing.measured
    known = math.isfinite(timing.predicted)
    return {
        "size_bytes": case.nbytes,
        "count": case.count,
        "type": dtypes.NAMES[case.dtype],
        "redop": case.redop,
        "algorithm": case.algorithm,
        **_samples(timing),
        "repeats": case.repeats,
        "algbw_gb_per_s": algbw(case.nbytes, measured.median) / 1e9,
        "busbw_gb_per_s": busbw(case.nbytes, measured.median, ranks) / 1e9,
        "predicted_time_us": timing.predicted * 1e6 if known else None,
        "error": timing.error if known else None,
        "wrong": len(timing.faults),
        "faults": list(timing.faults),
        "transfers": sum(measured.prepared.executed.transfers.values()),
        "control_messages": measured.prepared.executed.messages,
        "transfer_times": [
            {
                "op": each.op,
                "source": each.source,
                "target": each.target,
                "size_bytes": each.nbytes,
                "measured_us": each.measured * 1e6,
                "predicted_us": None if math.isnan(each.predicted) else each.predicted * 1e6,
            }
            for each in transfers
        ],
    }


def _control(timing: Timing) -> dict[str, Any]:
    case, control = timing.case, timing.case.control
    return {
        "plan": case.algorithm,
        "size_bytes": case.nbytes,
        "beside_size_bytes": list(control.beside) if control else [],
        "then_us": control.then * 1e6 if control else None,
        **_samples(timing),
        "faults": list(timing.faults),
    }


def _samples(timing: Timing) -> dict[str, Any]:
    """The samples, their median and its bounds.

    `drift` has no bounds where there are too few samples for them.
    """
    found, interval = noise(timing.measured.seconds), timing.interval
    return {
        "time_us": timing.measured.median * 1e6,
        "low_us": interval.low * 1e6,
        "high_us": interval.high * 1e6,
        "spread": found.spread,
        "outliers": list(found.outliers),
        "drift": found.drift.value,
        "drifts": found.drifts,
        "settled_steps": timing.settled,
        "times_us": [seconds * 1e6 for seconds in timing.measured.seconds.tolist()],
    }
