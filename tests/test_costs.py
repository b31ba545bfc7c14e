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
