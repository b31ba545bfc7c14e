"""kill -9 at any moment, and a disk that is full for a while, lose no row and damage no file."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from simreduce.study.sweep.engine import Processes
from tests.study.sweep.sweeping import (
    begun,
    expected,
    kill,
    plan,
    rows,
    size,
    start,
    until,
    workers_of,
)
from tests.thorough import THOROUGH

PLAN = plan()
TWO = partial(Processes, 2, 4 << 30)
KILLS = 200 if THOROUGH else 40

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds workers in /proc"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def whole():
    return expected(PLAN)


def disturb(path, rnd, whole, seconds):
    """Kill the parent, its workers or both after up to so many seconds; True if all is done."""
    sweep = start(path, PLAN, TWO)
    time.sleep(rnd.uniform(0.0, seconds))
    victims = {
        "parent": [sweep.pid],
        "workers": workers_of(sweep),
        "one worker": workers_of(sweep)[:1],
        "all": [*workers_of(sweep), sweep.pid],
    }[rnd.choice(["parent", "workers", "one worker", "all"])]
    for pid in victims:
        kill(pid)
    sweep.join()
    if not begun(path):
        return False
    found = rows(path)
    assert found.items() <= whole.items()
    if sweep.pid not in victims:
        assert sweep.exitcode == 0
        assert found == whole
    return found == whole


def kill_often(times, tmp_path, whole, seconds):
    rnd = random.Random(times)  # noqa: S311 - no secrets
    sweeps, path = 0, str(tmp_path / "0.db")
    for _ in range(times):
        before = len(rows(path)) if begun(path) else 0
        if disturb(path, rnd, whole, seconds):
            sweeps += 1
            path = str(tmp_path / f"{sweeps}.db")
        elif before:
            assert len(rows(path)) >= before
    sweep = start(path, PLAN, TWO)
    sweep.join()
    assert sweep.exitcode == 0
    assert rows(path) == whole


@pytest.mark.thorough
def test_a_sweep_that_is_killed_again_and_again_ends_as_an_undisturbed_one(tmp_path, whole):
    """Two hundred times where tests are thorough."""
    kill_often(KILLS, tmp_path, whole, 0.5)


@pytest.mark.slow
def test_the_command_goes_on_where_it_was_killed(tmp_path, whole):
    """As a user types it, with SIGKILL and Ctrl-C in turn."""
    path = tmp_path / "mine.db"
    command = [
        sys.executable, "-m", "simreduce", "sweep", "switch:8", "--db", str(path), "--workers", "2",
        "--over", "nodes=2..6", "--over", "strategy=ring,halving_doubling,direct",
        "--over", "size=1K,1M", "--over", "jitter=0.1", "--over", "seed=1..2",
    ]  # fmt: skip
    known, rnd = 0, random.Random(1)  # noqa: S311 - no secrets
    for turn in range(12):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as sweep:
            time.sleep(rnd.uniform(0.3, 2.0))
            sweep.send_signal(9 if turn % 2 else 2)
            sweep.communicate()
        if begun(str(path)):
            found = rows(str(path))
            assert found.items() <= whole.items()
            assert len(found) >= known
            known = len(found)
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert rows(str(path)) == whole


def test_a_disk_that_is_full_for_a_while_only_delays(tmp_path, whole):
    """A limit on the size of its files stands for it, which is lifted later."""
    path = str(tmp_path / "rows.db")
    sweep = start(path, PLAN, TWO)
    until(lambda: size(f"{path}-wal") > 60_000)
    none = (resource.RLIM_INFINITY,) * 2
    resource.prlimit(sweep.pid, resource.RLIMIT_FSIZE, (4096, none[1]))
    time.sleep(1.5)
    count = len(rows(path))
    time.sleep(0.5)
    assert len(rows(path)) == count < len(whole)
    assert sweep.is_alive()
    resource.prlimit(sweep.pid, resource.RLIMIT_FSIZE, none)
    sweep.join()
    assert sweep.exitcode == 0
    assert rows(path) == whole


def test_a_sweep_that_is_killed_on_a_full_disk_goes_on_when_there_is_room(tmp_path, whole):
    path = str(tmp_path / "rows.db")
    sweep = start(path, PLAN, TWO)
    until(lambda: size(f"{path}-wal") > 60_000)
    resource.prlimit(sweep.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    time.sleep(0.3)
    kill(sweep.pid)
    sweep.join()
    assert rows(path).items() <= whole.items()
    again = start(path, PLAN, TWO)
    again.join()
    assert rows(path) == whole


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="mounts a small disk")
def test_a_small_disk_that_fills_up(tmp_path, whole):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "none", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("may not mount")
    try:
        path = str(disk / "rows.db")
        sweep = start(path, PLAN, TWO)
        time.sleep(6)
        assert sweep.is_alive()
        assert rows(path).items() < whole.items()
        subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
        sweep.join()
        assert sweep.exitcode == 0
        assert rows(path) == whole
        shutil.copy(path, tmp_path)
    finally:
        subprocess.run(["umount", str(disk)], check=False)
