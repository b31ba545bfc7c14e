"""Processes that end with the one they work for."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simreduce.computing.workers import (
    answering,
    charge,
    in_processes,
    pool,
    time_is_up,
    time_left,
    until_stopped,
    within,
    working,
)

_WORKING = """
import os, time
from simreduce.computing.workers import pool

with pool(3) as processes:
    for done in [processes.submit(os.getpid) for _ in range(3)]:
        done.result()
    work = [processes.submit(time.sleep, 600) for _ in range(3)]
    print(*processes._processes, flush=True)
    work[0].result()
"""


def test_results_come_in_the_order_of_the_items():
    items = list(range(-20, 20))

    assert list(in_processes(abs, items, 2, chunk=3)) == [abs(item) for item in items]


class _Counter:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, _: int) -> int:
        self.calls += 1
        return self.calls


def test_a_worker_keeps_what_its_work_found_out():
    """The work is handed to a worker once, not with every item."""
    calls = list(in_processes(_Counter(), range(12), 2))

    assert max(calls) >= 6
    assert 12 == sum(calls.count(i) for i in range(1, max(calls) + 1))


def _die_elsewhere(item: int) -> int:
    if item == 3 and multiprocessing.parent_process():
        os.kill(os.getpid(), signal.SIGKILL)
    return item * item


def test_work_of_a_process_that_ends_is_done_here(monkeypatch):
    """Nothing is lost or done twice, also in rounds after that; somebody is told once."""
    said = []
    monkeypatch.setattr("simreduce.computing.workers.listeners", [said.append])
    with working(_die_elsewhere, 2) as work_on:
        for _ in range(2):
            assert sorted(work_on(range(8))) == [(item, item * item) for item in range(8)]

    assert ["a process ended, such as for lack of memory; this one goes on alone"] == said


def test_an_exception_does_not_wait_for_what_is_in_work():
    before = multiprocessing.active_children()
    begin = time.monotonic()

    with pytest.raises(KeyError):
        _leave_at_once()

    assert time.monotonic() - begin < 60
    assert multiprocessing.active_children() == before


def test_who_stops_listening_ends_the_processes():
    before = multiprocessing.active_children()
    found = in_processes(time.sleep, [0.0, *[600.0] * 5], 2)
    next(found)
    found.close()

    assert multiprocessing.active_children() == before


def test_processes_end_when_theirs_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", _WORKING], stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert all(map(_alive, pids))

    parent.send_signal(signal.SIGKILL)
    parent.communicate()

    until = time.monotonic() + 30
    while any(map(_alive, pids)) and time.monotonic() < until:
        time.sleep(0.01)
    assert pids
    assert not any(map(_alive, pids))


def _leave_at_once():
    with pool(2) as processes:
        processes.submit(time.sleep, 600)
        raise KeyError


def _alive(pid: int) -> bool:
    """Also not, where nobody waits for processes without parents, as a zombie."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _charge(item: int) -> int:
    """Quick items are done before slow ones that come before them; item 3 is a lot of work."""
    time.sleep(0.2 if item in (0, 3) else 0.0)
    for _ in range(10 if item == 3 else 1):
        charge(1_397_000)
    return item


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("seconds", "needs", "found"), [(2.5, 1, [0, 1]), (8.5, 1, [0, 1, 2]), (8.5, 4, [0, 1, 2, 3])]
)
def test_a_budget_of_work_ends_at_the_same_item_by_any_number_of_processes(
    workers, seconds, needs, found
):
    """Also where an item is more than is left, unless the answer needs it."""
    with within(seconds, of_work=True), working(_charge, workers) as work_on:
        pairs = until_stopped(work_on(range(9)), due=lambda pairs: len(pairs) >= needs)
        assert time_is_up()
    assert pairs == [(item, item) for item in found]


@pytest.mark.parametrize("workers", [1, 2])
def test_work_of_other_processes_counts_here(workers):
    with within(100.0, of_work=True):
        assert list(in_processes(_charge, range(3), workers)) == [0, 1, 2]
        assert time_left() == pytest.approx(97.0)


def test_a_budget_inside_another_ends_no_work_outside():
    """Whoever has an answer out there would take that for Ctrl-C."""
    with within(60.0), answering(lambda: True):
        with within(0.01):
            time.sleep(0.05)
        with pytest.raises(KeyboardInterrupt), within(0.01), answering(lambda: True):
            time.sleep(5.0)


def test_a_budget_that_is_spent_ends_work_by_another_inside():
    with pytest.raises(KeyboardInterrupt), within(0.05), answering(lambda: True), within(60.0):
        time.sleep(5.0)
