"""`simreduce validate` and `simreduce calibrate` that are stopped."""

import os
import signal
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import click
import numpy as np
import pytest
from simreduce_validate import calibrate as command
from simreduce_validate.calibrate import _stoppable
from simreduce_validate.calibrating import design
from simreduce_validate.calibrating.session import measurement_of
from simreduce_validate.campaign import Interruption
from simreduce_validate.cases import Case, Timing
from simreduce_validate.validation import measure

from simreduce.app.cli import main
from simreduce.engine.calibrate import load_calibration
from simreduce.errors import DeviceError


class _Stopping:
    """A campaign whose measuring somebody stops."""

    def __init__(self, *timings):
        self.timings = timings

    def measure(self, _groups, _out):
        raise Interruption(self.timings, {"versions": {}})


def test_sizes_that_are_complete_are_kept():
    found = measure(_Stopping("ring", "direct"), [])

    assert (("ring", "direct"), {"versions": {}}) == (found.timings, found.provenance)
    assert not found.complete


def test_without_any_it_is_an_interrupt():
    with pytest.raises(KeyboardInterrupt):
        measure(_Stopping(), [])


@pytest.mark.parametrize("there", [[], ["a.fit.jsonl"], ["a.fit.jsonl", "a.held-out.jsonl"]])
@pytest.mark.parametrize("rough", [False, True])
def test_a_calibration_says_which_samples_and_constants_it_keeps(tmp_path, capsys, there, rough):
    """With the status of an interrupt."""
    calibration = tmp_path / "a.toml"
    files = [tmp_path / name for name in ("a.fit.jsonl", "a.held-out.jsonl")]
    for name in there + ["a.toml"] * rough:
        (tmp_path / name).touch()
    with pytest.raises(click.exceptions.Exit) as end, _stoppable(calibration, *files):
        os.kill(os.getpid(), signal.SIGTERM)
    told = " and ".join(str(tmp_path / name) for name in there)
    made = f"the constants so far are in {calibration}" if rough else "without a calibration"

    assert 130 == end.value.exit_code
    assert (
        f"simreduce: stopped, {made}; "
        f"{f'the samples so far are in {told}' if there else 'nothing was measured'}\n"
        == capsys.readouterr().err
    )


ABOUT = {
    "started": "2026-11-28", "versions": {"tensorflow": "2.21.0"},
    "hardware": {"cpu": "a CPU", "cores": 2, "usable_cores": 2, "gpus": "", "workers": []},
}  # fmt: skip


def few(devices, cores):
    """A design of two constants and four micro-plans."""
    whole = design(devices, cores)
    return replace(whole, constants=whole.constants[:2], micros=whole.micros[:4], controls=())


def ends_after_first_rounds(end):
    """How micro-plans are measured until then."""

    def measure(campaign, plan, _out, _opened, begin):
        adapt = campaign.devices.stage.adapt
        cases = [Case(m.name, adapt(m.plan), m.nbytes // 4, 0, "sum", np.nan) for m in plan.micros]
        begin([Timing(case, measurement_of(np.full(3, 1e-3))) for case in cases])
        end()

    return measure


def stop():
    """As if somebody stopped it."""
    os.kill(os.getpid(), signal.SIGTERM)


def fail():
    raise DeviceError("the driver is gone")


@pytest.fixture
def calibrate(tmp_path, monkeypatch, capsys):
    """Status and lines on stderr of the command, with `a.toml` to write, if it ends so."""
    monkeypatch.setattr(command, "design", few)
    monkeypatch.setattr(command, "open_devices", lambda *_, **__: nullcontext(SimpleNamespace(
        provenance={})))  # fmt: skip
    monkeypatch.setattr(command, "provenance", lambda *_: ABOUT)
    line = ["simreduce calibrate", "switch:2", "--backend", "inproc", "--out"]
    monkeypatch.setattr(sys, "argv", [*line, str(tmp_path / "a.toml")])

    def ask(how):
        monkeypatch.setattr(command, "measure_micros", ends_after_first_rounds(how))
        with pytest.raises(SystemExit) as end:
            main(command.calibrate)
        return end.value.code, capsys.readouterr().err.splitlines()

    return ask


def test_a_calibration_that_is_stopped_keeps_its_rough_constants(tmp_path, calibrate):
    """They read as a calibration that says what it is, and their error is said before the rest is
    measured.
    """
    out = tmp_path / "a.toml"
    status, (first, last) = calibrate(stop)

    assert 130 == status
    assert first.startswith(f"first, rough constants are in {out}: |error| ")
    assert f"the constants so far are in {out}" in last
    found = load_calibration(str(out))
    assert found.step > 0
    assert {} == found.errors
    assert found.provenance["method"].startswith("rough, 3 rounds, unchecked: robust ")
    assert found.provenance["method"].endswith("of 4 micro-plans")
    assert "not known" == found.provenance["hardly_determined"]


def test_the_next_run_puts_rough_constants_aside(tmp_path, calibrate):
    """As it does samples; no other calibration is overwritten."""
    out, old = tmp_path / "a.toml", tmp_path / "a.toml.old"
    calibrate(stop)
    text = out.read_text("utf-8")

    assert 130 == calibrate(stop)[0]
    assert text == old.read_text("utf-8")
    out.write_text(text.replace("rough, 3 rounds, unchecked: ", ""), "utf-8")
    status, (fault,) = calibrate(stop)
    assert 2 == status
    assert "a.toml: exists" in fault


def test_a_calibration_that_fails_names_its_rough_constants(tmp_path, calibrate):
    status, lines = calibrate(fail)

    assert 1 == status
    assert f"simreduce: the constants so far are in {tmp_path / 'a.toml'}" in lines
    assert "simreduce: the driver is gone" in lines
