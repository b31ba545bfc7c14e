"""What takes a while and happens once, told to whoever listens."""

from __future__ import annotations

from collections.abc import Callable

listeners: list[Callable[[str], None]] = []
"""Each is called with a sentence; the command line prints it."""
