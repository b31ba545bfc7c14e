"""`python -m simreduce_validate.p2p` and its like behave as the main command does."""

import subprocess
import sys
from pathlib import Path

import pytest
from simreduce_validate import p2p

from simreduce.cli import main


@pytest.mark.parametrize("module", ["p2p", "step_of_five", "throughput"])
@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        ("-h", 2, "simreduce: the output cannot be written: No space left on device"),
        ("--nothing", 2, "No such option"),
    ],
)
def test_a_full_disk_and_an_unknown_option_are_one_line(module, arguments, status, error):
    command = [sys.executable, "-m", f"simreduce_validate.{module}", arguments]
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
    monkeypatch.setattr(sys, "argv", ["p2p"])
    with pytest.raises(SystemExit) as exited:
        main(p2p.p2p)

    assert status == exited.value.code
