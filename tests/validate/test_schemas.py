"""What the harness writes fits its schemas, and these have no key that nothing has."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from simreduce_validate.accuracy import assess
from simreduce_validate.cases import Case, Control, Timing
from simreduce_validate.measuring import open_record
from simreduce_validate.measuring.provenance import provenance
from simreduce_validate.report.calibration import session_document
from simreduce_validate.report.documents import document
from simreduce_validate.running import Measurement
from simreduce_validate.transfers import Transfer

from simreduce.engine import Calibration
from simreduce.engine.calibrate.fit import Fit
from simreduce.engine.runtime import LinkConstants
from simreduce.engine.setup import Setup
from tests.schemas import declared_keys, faults_of, used_keys
from tests.validate.test_accuracy import row

DEFAULT = "TensorFlow's own"
ABOUT = provenance({"gpus": "", "workers": [{"name": "w", "cores": 2}]}, {"chained": 1})


def timings(rounds):
    """Candidates, one of them twice and one wrong, and a control."""
    found = [
        row("a", 3, 1, rounds=rounds),
        row("b", 1, 2, rounds=rounds),
        row("c", 4, 5, rounds=rounds),
        row("a", 3, 1, repeats=0, rounds=rounds),
        row(DEFAULT, 2, math.nan, rounds=rounds),
    ]
    found[4] = replace(found[4], measured=replace(found[4].measured, wrong=("not the sum",)))
    case = Case("copies", None, 256, 0, "sum", math.nan, control=Control(1e-3, (1024,)))
    found.append(Timing(case, Measurement(rounds * 2e-3, (), (), None)))
    ran = SimpleNamespace(executed=SimpleNamespace(transfers={"copy": 3}, messages=2))
    return [replace(each, measured=replace(each.measured, prepared=ran)) for each in found]


def validation(rounds):
    setup = Setup("switch:4")
    devices = SimpleNamespace(
        topology=setup.topology, layout=setup.layout, stage=SimpleNamespace(backend="inproc"),
        route="session",
    )  # fmt: skip
    moved = [Transfer(1, "gpu0", "gpu1", 64, 1e-3, 2e-3), Transfer(2, "a", "b", 64, 1.0, math.nan)]
    rows = timings(rounds)
    return SimpleNamespace(
        campaign=SimpleNamespace(devices=devices, setup=setup, chained=1),
        provenance=ABOUT, accuracy=assess(rows, "b"), timings=rows,
        transfers=[moved] * len(rows), complete=True,
    )  # fmt: skip


@pytest.mark.parametrize("rounds", [3, 21])
def test_validations(rounds):
    """With and without bounds; a JSON number is never NaN."""
    found = document(validation(np.linspace(0.9, 1.1, rounds)))
    text = json.dumps(found, allow_nan=False)

    assert [] == faults_of(json.loads(text))
    if rounds > 3:
        assert set() == declared_keys("validate") - used_keys("validate", found)


def test_calibrations():
    rows = timings(np.linspace(0.9, 1.1, 21))
    fit = Fit({"latency": 1e-6}, {"latency": 1e-7}, {"lanes": "too few"}, (0.1,))
    links = {"gpu0>gpu1": LinkConstants(bandwidth=1e9)}
    session = SimpleNamespace(
        calibration=Calibration(
            "x", "title", links=links, provenance={"date": "now"}, controls={("copies", 64): 1e-3}
        ),
        fit=fit, relay=SimpleNamespace(measured=1.0, queued=2.0, shared=3.0),
        timings=rows[:1], accuracy=assess(rows, "b"),
    )  # fmt: skip
    found = json.loads(json.dumps(session_document(session, Path("x.toml")), allow_nan=False))

    assert [] == faults_of(found)
    assert set() == declared_keys("calibrate") - used_keys("calibrate", found)


def test_records(tmp_path):
    """Line by line, as they are written."""
    rows = timings(np.linspace(0.9, 1.1, 21))
    with open_record(tmp_path / "x.jsonl", ABOUT, [each.case.forecast for each in rows]) as record:
        record.settled(0, 3)
        record.sample(0, 1, 1e-3)
        record.checked(0, ["not the sum"])
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text("utf-8").splitlines()]
    used = set().union(*(used_keys("validate-record", line) for line in lines))

    assert [] == [fault for line in lines for fault in faults_of(line, "validate-record")]
    assert set() == declared_keys("validate-record") - used
