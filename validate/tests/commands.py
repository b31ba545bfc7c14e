"""Commands of simreduce as they are typed, on real devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.schemas import faults_of

REPOSITORY = Path(__file__).parents[2]
PATH = os.pathsep.join(
    filter(None, [str(REPOSITORY), str(REPOSITORY / "validate"), os.environ.get("PYTHONPATH")])
)


def document(line, folder):
    """What a command line prints with --json, in that folder; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "simreduce", *line.split(), "--json"],
        capture_output=True, text=True, timeout=400, check=False, cwd=folder,
        env={**os.environ, "PYTHONPATH": PATH},
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr
    found = json.loads(done.stdout)
    assert [] == faults_of(found)
    return found


def is_alive(pid):
    """Whether a process runs; one that has ended and waits to be noticed does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
