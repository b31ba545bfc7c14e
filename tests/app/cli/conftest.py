"""What every test of the command line may use."""

from __future__ import annotations

from tests.app.cli.command import simreduce

__all__ = ["simreduce"]
