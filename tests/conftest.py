"""Settings for every test, and what a test may cost."""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.thorough import THOROUGH, USUAL

QUIET = [HealthCheck.too_slow]
settings.register_profile(
    "usual", deadline=None, derandomize=True, max_examples=USUAL, suppress_health_check=QUIET
)
settings.register_profile("thorough", deadline=None, print_blob=True, suppress_health_check=QUIET)
settings.load_profile("thorough" if THOROUGH else "usual")

# Where it is set, every process that a test starts compiles the whole package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.pop("COLUMNS", None)
os.unsetenv("COLUMNS")  # readline, which pytest loads, sets it without telling os.environ

MOST_CPU_SECONDS = 3.0
"""What a test may take on a fast core, with its children, unless it is marked slow."""

FAST = 0.0077
"""CPU seconds of `_loop` on a fast core."""

SHARED = 1.5
"""A core that two workers share takes so many times as long."""


def _loop() -> float:
    begin = time.process_time()
    sum(i * i % 7 for i in range(200_000))
    return time.process_time() - begin


def _limit() -> float:
    """CPU seconds of a test on this machine; the best of several goes, as others may work too."""
    slowness = max(1.0, min(_loop() for _ in range(7)) / FAST)
    return MOST_CPU_SECONDS * SHARED * slowness


def pytest_configure(config: pytest.Config) -> None:
    """Learn how fast this machine is."""
    config.stash[LIMIT] = _limit()


LIMIT = pytest.StashKey[float]()


def _cpu_seconds() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that takes long, unless it is marked slow or thorough."""
    multiprocessing.active_children()  # reaps those of earlier tests, whose time then counts
    begin = _cpu_seconds()
    yield
    took, limit = _cpu_seconds() - begin, item.config.stash[LIMIT]
    many = THOROUGH or "SIMREDUCE_FUZZ" in os.environ
    free = many or any(item.iter_markers("slow")) or any(item.iter_markers("thorough"))
    if took <= limit or free:
        return
    limit = max(limit, _limit())  # the machine may be slower by now
    if took > limit:
        pytest.fail(
            f"took {took:.1f} CPU seconds where {limit:.1f} are allowed on this machine: make it "
            "smaller, or mark it slow"
        )


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a file of that name, in the folder where the test then is."""
    monkeypatch.chdir(tmp_path)

    def _write(name: str, content: str | bytes) -> str:
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(data)
        return name

    return _write
