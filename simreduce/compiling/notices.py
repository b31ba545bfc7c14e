"""Notices of slow work that happens once, for those who listen."""

from __future__ import annotations

from collections.abc import Callable

listeners: list[Callable[[str], None]] = []
"""Each is called with a sentence; the command line prints it."""
