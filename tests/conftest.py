"""Settings for every test."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")

# Where it is set, every process that a test starts compiles the whole package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a file of that name, in the folder where the test then is."""
    monkeypatch.chdir(tmp_path)

    def _write(name: str, content: str | bytes) -> str:
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(data)
        return name

    return _write
