"""The document that `simreduce validate --json` prints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import simreduce as sr
from simreduce import dtypes
from simreduce.tune.busbw import algbw, busbw
from simreduce_validate.cases import Timing
from simreduce_validate.measuring import noise
from simreduce_validate.report.accuracy import accuracy_document
from simreduce_validate.transfers import Transfer
from simreduce_validate.validation import Validation


def document(found: Validation) -> dict[str, Any]:
    """The table as a document, with every sample. Units stand in the keys."""
    campaign, devices = found.campaign, found.campaign.devices
    rows = zip(found.timings, found.transfers, strict=True)
    return {
        "command": "validate",
        "version": sr.__version__,
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
