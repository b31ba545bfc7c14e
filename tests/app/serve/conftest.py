"""Servers of this test and of this file."""

from __future__ import annotations

import pytest

from tests.app.serve.servers import Served


@pytest.fixture
def served(tmp_path):
    """Start a server, with options."""
    started = []

    def _served(*options: str) -> Served:
        started.append(Served(*options, log=tmp_path / f"log{len(started)}"))
        return started[-1]

    yield _served
    for each in started:
        each.end()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server without options, for tests that leave it as it is."""
    started = Served(log=tmp_path_factory.mktemp("served") / "log")
    yield started
    started.end()
