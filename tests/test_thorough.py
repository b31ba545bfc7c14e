"""What tests cost: the limit of CPU time, and the lists of tests/thorough.py."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import conftest
from tests.thorough import corners, slow


def _take(monkeypatch, uses: Iterator[float], *loops: float) -> None:
    """Run a test that uses CPU seconds, `uses` before and after it, where loops take so long."""
    left = iter(loops)
    with monkeypatch.context() as patch:  # this very test is timed too
        patch.setattr(conftest, "_loop", lambda: next(left) * conftest.FAST)
        patch.setattr(conftest, "_cpu_seconds", lambda: next(uses))
        patch.setattr(conftest, "THOROUGH", False)
        patch.delenv("SIMREDUCE_FUZZ", raising=False)
        config = SimpleNamespace(stash={})
        conftest.pytest_configure(config)
        item = SimpleNamespace(config=config, iter_markers=lambda _: iter(()))
        call = conftest.pytest_runtest_call(item)
        next(call)
        next(call, None)


def test_a_test_that_takes_long_fails(monkeypatch):
    with pytest.raises(pytest.fail.Exception, match=r"took 6\.0 CPU seconds where 4\.5 are"):
        _take(monkeypatch, iter([1.0, 7.0]), *[1.0] * 14)


def test_a_machine_that_others_slow_down_allows_more(monkeypatch):
    _take(monkeypatch, iter([1.0, 7.0]), *[1.0] * 7, *[2.0] * 7)
    _take(monkeypatch, iter([1.0, 7.0]), *[2.0] * 7)


def test_time_of_processes_that_an_earlier_test_left_is_not_counted(monkeypatch):
    reaped = []
    monkeypatch.setattr(multiprocessing, "active_children", lambda: reaped.append(True) or [])

    def uses() -> Iterator[float]:
        assert reaped
        yield 1.0
        yield 2.0

    _take(monkeypatch, uses(), *[1.0] * 7)


def test_params_with_names_and_marks_may_be_slow():
    skip = pytest.mark.skip
    items = [1, pytest.param(2, 3, id="two", marks=skip), (4, 5), 6]
    assert slow(items[1:3]) == [
        pytest.param(2, 3, id="two", marks=[skip, pytest.mark.slow]),
        pytest.param(4, 5, marks=[pytest.mark.slow]),
    ]
    assert corners(items, 2) == [1, *slow(items[1:3]), 6]


def test_every_property_has_more_examples_where_tests_are_thorough():
    folder = Path(__file__).parent
    fixed = re.compile(r"max_examples=\d")
    files = [path for path in folder.rglob("*.py") if fixed.search(path.read_text("utf-8"))]
    assert [str(path.relative_to(folder)) for path in files if path != Path(__file__)] == []
