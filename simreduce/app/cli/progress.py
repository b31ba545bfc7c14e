"""Long commands: how far they are, and how they are stopped."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self, TypeVar

import click

from simreduce.app.cli.terminal import is_terminal, legible
from simreduce.computing import watching
from simreduce.computing.compiling import notices

T = TypeVar("T")

QUIET = 10.0
"""Seconds between two lines where stderr is no terminal; the first comes after half of them."""
_LEAST_LEFT = 3.0
"""Seconds that must be left for a word about them."""
_REDRAW = 1.0
"""Seconds after which a line on a terminal is drawn again although nothing has changed."""
_BLINK = 0.05
"""Seconds at least between two drawings of a line."""
_BAR, _LEAST_BAR = 20, 5
"""Characters of a bar on a terminal, and those below which there is none."""
_BAR_SIGNS = ("\u2501", "\u2500")
"""Signs of the part that is done, and of the rest."""
_AGAIN = 0.05
"""Seconds after which an interrupt that was dropped is raised again."""


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that a command prints the results it has.

    Python drops an interrupt that arrives in a callback of C code, as numba has while it loads
    compiled code, or in a destructor. Such an interrupt is raised again soon.
    """
    before, hook = signal.signal(signal.SIGTERM, signal.default_int_handler), sys.unraisablehook
    timers: list[threading.Timer] = []

    def raise_again(dropped: sys.UnraisableHookArgs) -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            # Another thread raises it, as here it would be dropped too.
            timer = threading.Timer(_AGAIN, _thread.interrupt_main, [signal.SIGTERM])
            timer.daemon = True
            timers.append(timer)
            timer.start()
        elif not timers:  # later ones are of objects that the interrupt left half made
            hook(dropped)

    sys.unraisablehook = raise_again
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        sys.unraisablehook = hook
        signal.signal(signal.SIGTERM, before)


class Progress(watching.Work):
    """Says on stderr how far some work is: on a terminal in a line that is drawn again and again
    and disappears at the end, elsewhere in a new line after 5 s and then every 10 s.

    `text` may have two places for numbers, `simulated {} of {} plans`; a call fills them. On a
    terminal, the lines that `preview` makes of what `watch` has passed on stand above. It says how
    long the others take at the mean pace, or less where a budget of time ends before; nothing where
    bounds will spare most of them (`spares`).
    """

    def __init__(
        self,
        text: str,
        preview: Callable[[list[Any]], Sequence[str]] = lambda _: (),
        *,
        spares: bool = False,
    ) -> None:
        super().__init__()
        self._text, self._preview, self._spares = text, preview, spares
        self._share = 0.0
        self._terminal = is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb"
        self._began, self._drawn = time.monotonic(), 0.0
        self._lengths: list[int] = []  # of the lines that stand there
        self._lock, self._process = threading.Lock(), os.getpid()
        self._over = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def show(self) -> None:
        """Draw the line, unless that was a moment ago or nothing is done."""
        self._share = 0.0
        if self.counts[0] and self._terminal and time.monotonic() - self._drawn >= _BLINK:
            self._draw()

    def part(self, share: float) -> None:
        """Note the share of the next one that is done."""
        self._share = share

    def __enter__(self) -> Self:
        notices.working.append(self.part)
        _drawn.append(self)
        self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        notices.working.remove(self.part)
        self._over.set()
        self._ticker.join()
        _drawn.remove(self)
        self.erase()

    def erase(self) -> None:
        """Remove what is drawn; it may be drawn again."""
        if os.getpid() != self._process:  # which alone knows what is drawn
            if self._terminal:
                click.echo("\r\033[K", nl=False, err=True)
            return
        with self._lock:
            if self._drawn and self._terminal:
                click.echo(self._back(_size()[0]), nl=False, err=True)
                self._lengths = []

    def _tick(self) -> None:
        pause = _REDRAW if self._terminal else QUIET / 2
        while not self._over.wait(pause):
            self._draw()
            pause = _REDRAW if self._terminal else QUIET

    def _draw(self) -> None:
        with self._lock:
            self._drawn = time.monotonic()
            text, seconds = self._text.format(*self.counts), self._drawn - self._began
            part = f" ({self._share:.0%} of the next)" if self._share else ""
            line = f"{text}{part}, {seconds:.0f} s{self._left(seconds)}"
            if not self._terminal:
                click.echo(line, err=True)
                return
            width, height = _size()
            above = [*self._preview(self.seen)][: max(height - 2, 0)]
            lines = [
                text[: width - 1] for text in (*above, f"{self._bar(width - len(line))}{line}")
            ]
            begin, self._lengths = self._back(width), [*map(len, lines)]
            click.echo(begin + "\n".join(lines), nl=False, err=True)

    def _left(self, seconds: float) -> str:
        """How long the rest takes. As quick questions come first, that is a guess."""
        done, total = self.counts
        if not done or done >= total or self._spares:
            return ""
        left = min(seconds / done * (total - done), watching.time_left())
        if left < _LEAST_LEFT:
            return ""
        return f", about {left:.0f} s left" if left < 120 else f", about {left / 60:.0f} min left"

    def _bar(self, room: int) -> str:
        """How far it is as a picture, if it is known of how many and there is room."""
        done, total = self.counts
        cells = min(_BAR, room - 2)
        if not total or cells < _LEAST_BAR:
            return ""
        full = int(cells * min(1.0, (done + self._share) / total))
        done_, open_ = _BAR_SIGNS if (sys.stderr.encoding or "").lower() == "utf-8" else ("#", "-")
        return done_ * full + open_ * (cells - full) + " "

    def _back(self, width: int) -> str:
        """Codes that move to where drawing began, and clear all from there. A terminal that has
        become narrower since has wrapped the lines.
        """
        rows = sum(max(-(-length // width), 1) for length in self._lengths)
        return f"\r\033[{rows - 1}A\033[J" if rows > 1 else "\r\033[K"


def _size() -> tuple[int, int]:
    """Columns and lines of the terminal on stderr; that on stdout may be another, or none."""
    try:
        columns, lines = os.get_terminal_size(sys.stderr.fileno())
    except (OSError, ValueError):
        columns = lines = 0
    return (columns or 80, lines or 24)


_drawn: list[Progress] = []
"""All progress that may be drawn now."""


def say(text: str) -> None:
    """A line on stderr, above the progress of the work at hand."""
    for progress in _drawn:
        progress.erase()
    click.echo(legible(text), err=True)


def show_until_stopped(
    coming: Iterable[T],
    total: int,
    text: str,
    preview: Callable[[list[T]], Sequence[str]] = lambda _: (),
    enough: Callable[[Sequence[T]], object] = len,
) -> tuple[list[T], bool]:
    """The results until an interrupt, and whether these are all; says how far it is as `Progress`,
    with a `preview` of the results so far. Before these are `enough`, an interrupt is the caller's.
    """
    with Progress(text, preview) as progress:
        found = watching.until_stopped(progress.watch(coming, total), enough)
        return found, progress.complete
