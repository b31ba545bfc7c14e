"""Long commands: how far they are, and how they are stopped."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Self

import click

QUIET = 10.0
"""Seconds between two lines where stderr is no terminal."""
_REDRAW = 1.0
"""Seconds after which a line on a terminal is drawn again although nothing has changed."""
_BLINK = 0.05
"""Seconds at least between two drawings of a line."""


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that a command prints the results it has."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Progress:
    """Says on stderr how far some work is: on a terminal in a line that is drawn again and again
    and disappears at the end, elsewhere in a new line every 10 s.

    `text` may have two places for numbers, `simulated {} of {} plans`; a call fills them.
    """

    def __init__(self, text: str) -> None:
        self._text, self._counts = text, (0, 0)
        self._terminal = sys.stderr.isatty()
        self._began, self._drawn = time.monotonic(), 0.0
        self._over = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def __call__(self, done: int, total: int) -> None:
        """So many of all are done."""
        self._counts = done, total
        if done and self._terminal and time.monotonic() - self._drawn >= _BLINK:
            self._draw()

    @property
    def complete(self) -> bool:
        """Whether all are done."""
        return self._counts[0] == self._counts[1]

    def __enter__(self) -> Self:
        self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._ticker.join()
        if self._drawn and self._terminal:
            click.echo("\r\033[K", nl=False, err=True)

    def _tick(self) -> None:
        while not self._over.wait(_REDRAW if self._terminal else QUIET):
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        line = f"{self._text.format(*self._counts)}, {self._drawn - self._began:.0f} s"
        click.echo(f"\r\033[K{line}" if self._terminal else line, nl=not self._terminal, err=True)
