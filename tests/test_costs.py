"""Costs grow with the work: what commands count at n and 2n is at most 2.2 times as much.

Seconds on shared machines prove nothing, so what is counted is steps of the interpreter: the lines
of the package that run, each round of a loop again. A scan of every link for every rank, which is
quadratic, makes four times as many of them.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from click.testing import CliRunner

import simreduce as sr
from simreduce.app.cli import cli
from simreduce.planners.layouts import layout
from simreduce.study.sweep import question
from simreduce.study.sweep.grid import Specification
from simreduce.topology import load_machine

PACKAGE = str(Path(sr.__file__).parent)
MOST = 2.2
"""So many times as much for twice the work."""


def _lines(act: Callable[[], object]) -> int:
    """Lines of the package that run in `act`."""
    count, before = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename.startswith(PACKAGE) else None

    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


def _bench(ranks: int) -> None:
    _command(f"bench switch:{ranks},bandwidth=10GB/s --algo halving_doubling -b 1M --no-fold")


def _command(line: str) -> None:
    done = CliRunner().invoke(cli, shlex.split(line), standalone_mode=False)
    assert not done.exception, done.exception


@pytest.mark.parametrize(("act", "n"), [(_bench, 512)])
def test_twice_the_work_takes_twice_the_lines(act: Callable[[int], object], n: int) -> None:
    act(4)  # what is imported and compiled once
    few, many = _lines(lambda: act(n)), _lines(lambda: act(2 * n))
    assert 0 < many <= MOST * few


def test_a_sweep_reads_a_machine_once_for_all_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[str]()
    monkeypatch.setattr(question, "set_machine", lambda text, _: read.append(text) or (text, {}))
    over = {"nics": (1, 2), "size": tuple(1024 * i for i in range(1, 51))}
    planned = Specification(question.read_question("dgx-h100x4"), "sweep", over).plan()
    assert len({each.cell.digest for each in planned if each.cell}) == 50
    assert len(read) == 2


def test_a_layout_is_hashed_without_its_table_of_links() -> None:
    """Every cache that is asked about a layout hashes it."""

    def act(ranks: int) -> int:
        found = layout(load_machine(f"switch:{ranks},bandwidth=10GB/s"))
        return _lines(lambda: hash(found))

    assert act(128) <= MOST * max(act(64), 1)
