"""The command line as a user meets it: in this process, where it is quick, or in one of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from simreduce.app.cli import main
from tests.schemas import faults_of, read_strictly

REPOSITORY = Path(__file__).parents[3]


class Outcome(NamedTuple):
    """What is left of a command."""

    status: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def simreduce(monkeypatch, capsys) -> Command:
    """Run `simreduce ARGUMENTS` here, without worker processes unless `--workers` asks for them. An
    exception that would be a traceback fails the test, and what is said of progress does not depend
    on how fast this machine is.
    """
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    monkeypatch.setattr("simreduce.app.cli.reply.QUIET", 3600.0)

    def run(*arguments: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["simreduce", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        done = Outcome(end.value.code, *capsys.readouterr())
        if "--json" in arguments and done.out:
            assert [] == faults_of(read_strictly(done.out))  # each by the schema that it names
        return done

    return run


def process(
    *arguments: str | Path, timeout: float = 240, cwd: Path = REPOSITORY, **environment: str
) -> Outcome:
    """Run `simreduce ARGUMENTS` in a process, with more environment variables. Lines that say how
    far it is are left out of `err`: slow machines have more of them.
    """
    done = subprocess.run(
        [sys.executable, "-m", "simreduce", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    err = re.sub(
        r"^simulated .* of .*, \d+ s(, about .* left)?\n", "", done.stderr, flags=re.MULTILINE
    )
    return Outcome(done.returncode, done.stdout, err)
