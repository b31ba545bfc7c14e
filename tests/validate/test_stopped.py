"""`simreduce validate` and `simreduce calibrate` that are stopped."""

import os
import signal

import click
import pytest
from simreduce_validate.calibrate import _stoppable
from simreduce_validate.campaign import Interruption
from simreduce_validate.validation import measure


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
def test_a_calibration_says_which_samples_it_keeps(tmp_path, capsys, there):
    """With the status of an interrupt."""
    files = [tmp_path / name for name in ("a.fit.jsonl", "a.held-out.jsonl")]
    for name in there:
        (tmp_path / name).touch()
    with pytest.raises(click.exceptions.Exit) as end, _stoppable(*files):
        os.kill(os.getpid(), signal.SIGTERM)
    told = " and ".join(str(tmp_path / name) for name in there)

    assert 130 == end.value.exit_code
    assert (
        f"simreduce: stopped, without a calibration; "
        f"{f'the samples so far are in {told}' if there else 'nothing was measured'}\n"
        == capsys.readouterr().err
    )
