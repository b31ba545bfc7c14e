"""The chapters of `simreduce accuracy` about TensorFlow and copies."""

import subprocess
import sys
from pathlib import Path

import pytest
from simreduce_validate import p2p

from simreduce.app.cli import main


@pytest.mark.parametrize("chapter", ["p2p", "step", "throughput"])
@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        ("-h", 2, "simreduce: the output cannot be written: No space left on device"),
        ("--nothing", 2, "No such option"),
    ],
)
def test_a_full_disk_and_an_unknown_option_are_one_line(chapter, arguments, status, error):
    command = [sys.executable, "-m", "simreduce", "accuracy", chapter, arguments]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert status == done.returncode
    assert error in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("end", "status"), [(KeyboardInterrupt, 130), (BrokenPipeError(32), 0)])
def test_ctrl_c_and_a_reader_that_has_gone(monkeypatch, end, status):
    def stop():
        raise end

    monkeypatch.setattr(p2p, "report", stop)
    monkeypatch.setattr(sys, "argv", ["simreduce", "accuracy", "p2p"])
    with pytest.raises(SystemExit) as exited:
        main()

    assert status == exited.value.code
