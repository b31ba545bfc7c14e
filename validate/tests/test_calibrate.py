"""From devices to constants, and from constants to predictions that are judged: the two commands,
one after the other.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from simreduce_validate.measuring import read_record

from simreduce.engine.calibrate import load_calibration
from validate.tests.commands import document


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """The folder in which x.toml is, and what the command says of it."""
    folder = tmp_path_factory.mktemp("calibrated")
    return folder, document(
        "calibrate switch:2 --backend inproc --out x.toml -n 5 --no-held-out", folder
    )


def test_a_calibration_is_written_and_says_where_it_is_from(calibrated):
    folder, said = calibrated
    found = load_calibration(str(folder / "x.toml"))

    assert "x" == found.name == said["calibration"]
    assert 0 < found.step == pytest.approx(said["constants"]["step"]["value"])
    assert found.cpu is not None
    assert found.cpu.rates["copy"] > 1e8
    assert {"hardware", "software", "date", "residuals", "hardly_determined"} <= set(
        found.provenance
    )
    assert set(found.errors) == set(said["constants"])
    assert said["held_out"] is None
    assert not (folder / "x.held-out.jsonl").exists()
    off = sorted(abs(each["error"]) for each in said["fit"])
    assert off[len(off) // 2] < 0.3


def test_what_some_of_the_plans_took_is_kept(calibrated):
    """As it was measured, so that they can be timed again."""
    folder, said = calibrated
    controls = load_calibration(str(folder / "x.toml")).controls
    recorded = read_record(folder / "x.fit.jsonl")
    taken = [float(np.median(seconds)) for seconds in recorded.seconds]
    of_size = {size for _, size in controls}

    assert 3 <= len(controls) <= 6
    for (_, nbytes), seconds in controls.items():
        assert any(
            seconds == pytest.approx(each)
            for each, forecast in zip(taken, recorded.forecasts, strict=True)
            if forecast.size_bytes == nbytes
        )
    assert {4} < of_size
    assert {
        (each["plan"], each["size_bytes"]): pytest.approx(each["time_us"] * 1e-6)
        for each in said["controls"]
    } == controls


def test_what_is_to_be_measured_is_kept_before_its_times(calibrated):
    folder, said = calibrated
    recorded = read_record(folder / "x.fit.jsonl")
    lines = (folder / "x.fit.jsonl").read_text("utf-8").splitlines()
    kinds = [json.loads(line)["record"] for line in lines]

    assert recorded.complete
    assert sorted(each["plan"] for each in said["fit"]) == sorted(
        f.algorithm for f in recorded.forecasts
    )
    assert {5} == {len(seconds) for seconds in recorded.seconds}
    assert all(
        1 <= each <= recorded.provenance["settings"]["most_settled"] for each in recorded.settled
    )
    assert not any(recorded.faults)
    assert all(forecast.plan for forecast in recorded.forecasts)
    assert ["run", *["candidate"] * len(said["fit"]), "predicted", "settled"] == kinds[
        : len(said["fit"]) + 3
    ]
    assert "candidate" not in kinds[len(said["fit"]) + 1 :]


def test_predictions_with_it_are_judged(calibrated):
    """Rows, accuracy, transfers and picture; ten times off is what no calibration of this machine
    is.
    """
    folder, _ = calibrated
    said = document(
        "validate switch:2 --algo ring,reduce_to_one -b 4K -e 64K -f 16 --calibration x.toml "
        "--transfers --svg p.svg", folder
    )  # fmt: skip
    rows, accuracy = said["rows"], said["judgement"]

    assert ("validate", "x") == (said["command"], said["calibration"])
    twice = ["ring", "reduce_to_one", "ring"]
    assert [(nbytes, name) for nbytes in (4096, 65536) for name in twice] == [
        (row["size_bytes"], row["algorithm"]) for row in rows
    ]
    assert [None, None, 0] * 2 == [row["repeats"] for row in rows]
    for row in rows:
        assert 0 == row["wrong"]
        assert 1 <= row["settled_steps"] <= 6
        assert row["low_us"] <= row["time_us"] <= row["high_us"]
        assert row["error"] == pytest.approx(row["predicted_time_us"] / row["time_us"] - 1)
        assert 0.1 < row["predicted_time_us"] / row["time_us"] < 10
        assert row["transfers"] == len(row["transfer_times"]) > 0
        assert all(each["predicted_us"] > 0 < each["measured_us"] for each in row["transfer_times"])
        assert all(
            math.isfinite(each["predicted_us"] - each["measured_us"])
            for each in row["transfer_times"]
        )
    assert [4096, 65536] == [size["size_bytes"] for size in accuracy["sizes"]]
    assert accuracy["median_error"] <= accuracy["p90_error"]
    assert all(size["regret"] >= 0 for size in accuracy["sizes"])
    assert "<svg" in (folder / "p.svg").read_text("utf-8")[:400]
    assert {"ring", "reduce_to_one"} == {row["algorithm"] for row in rows}


def test_plans_of_the_calibration_are_timed_beside_the_candidates(calibrated):
    """What they took then is on record before anything is measured, and what they take now is told
    by size. Without them there is nothing to tell.
    """
    folder, _ = calibrated
    line = (
        "validate switch:2 --algo ring,direct -b 4K -e 64K -f 16 -n 6 --out v.jsonl --calibration"
    )
    said = document(f"{line} x.toml", folder)
    then = load_calibration(str(folder / "x.toml")).controls
    records = [json.loads(each) for each in (folder / "v.jsonl").read_text("utf-8").splitlines()]
    before = [each["record"] for each in records].index("predicted")
    kept = [each for each in records[:before] if each.get("then_us")]

    assert [c["beside_size_bytes"] for c in said["controls"]] == [each["beside"] for each in kept]
    for nbytes, size in zip((4096, 65536), said["judgement"]["sizes"], strict=True):
        here = [each for each in said["controls"] if each["beside_size_bytes"] == [nbytes]]
        factors = [each["time_us"] / each["then_us"] for each in here]
        found = size["controls"]

        assert 1 <= len(here) <= 3
        assert all(each["then_us"] == then[each["plan"], each["size_bytes"]] * 1e6 for each in here)
        assert {6} == {len(each["times_us"]) for each in here}
        assert not any(each["faults"] for each in here)
        assert 1 + found["since"] == pytest.approx(np.prod(factors) ** (1 / len(factors)))
        assert found["since_low"] <= found["since"] <= found["since_high"]
        assert found["median_repeat_error"] == pytest.approx(
            np.median([abs(1 / f - 1) for f in factors])
        )
        rest = [
            abs(row["predicted_time_us"] * (1 + found["since"]) / row["time_us"] - 1)
            for row in said["rows"]
            if row["size_bytes"] == nbytes and row["repeats"] is None
        ]
        assert found["median_error_without"] == pytest.approx(np.median(rest))
    assert said["judgement"]["controls"]["median_error"] == said["judgement"]["median_error"]

    text = (folder / "x.toml").read_text("utf-8")
    (folder / "old.toml").write_text(text[: text.index("[controls.")], "utf-8")
    (folder / "v.jsonl").unlink()
    old = document(f"{line} old.toml", folder)
    assert ([], None) == (old["controls"], old["judgement"]["controls"])
