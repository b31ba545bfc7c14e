"""The chapters of `simreduce accuracy` about TensorFlow and copies."""

import subprocess
import sys
from pathlib import Path

import pytest
from simreduce_validate import p2p

from simreduce.app.cli import main

CHAPTERS = ["p2p", "step", "throughput"]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_full_disk_is_one_line(chapter):
    command = [sys.executable, "-m", "simreduce", "accuracy", chapter, "-h"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert 2 == done.returncode
    assert "simreduce: the output cannot be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_an_unknown_option_is_one_line(chapter, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["simreduce", "accuracy", chapter, "--nothing"])
    with pytest.raises(SystemExit) as exited:
        main()

    assert 2 == exited.value.code
    assert "No such option" in capsys.readouterr().err


@pytest.mark.parametrize(("end", "status"), [(KeyboardInterrupt, 130), (BrokenPipeError(32), 0)])
def test_ctrl_c_and_a_reader_that_has_gone(monkeypatch, end, status):
    def stop():
        raise end

    monkeypatch.setattr(p2p, "report", stop)
    monkeypatch.setattr(sys, "argv", ["simreduce", "accuracy", "p2p"])
    with pytest.raises(SystemExit) as exited:
        main()

    assert status == exited.value.code
