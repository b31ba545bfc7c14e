"""Notices of slow work, for those who listen."""

from __future__ import annotations

from collections.abc import Callable

listeners: list[Callable[[str], None]] = []
"""Each is called with a sentence about work that happens once; the command line prints it."""

working: list[Callable[[float], None]] = []
"""Each is called now and then during one long simulation, with the share that is done."""


def say(sentence: str) -> None:
    """Pass a sentence on to all who listen."""
    for listener in listeners:
        listener(sentence)
