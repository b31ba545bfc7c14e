"""Work that comes piece by piece: watched as it comes, and kept on Ctrl-C or when time is up."""

from __future__ import annotations

import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, Protocol, TypeVar

listeners: list[Callable[[str], None]] = []
"""Each is called with a sentence about work that happens once; the command line prints it."""

simulating: list[Callable[[float], None]] = []
"""Each is called now and then during one long simulation, with the share that is done."""


def announce(sentence: str) -> None:
    """Pass a sentence on to all who listen."""
    for listener in listeners:
        listener(sentence)


T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Is told how many of how many are done."""


class Watch(Protocol):
    """Passes on what comes, and shows how much of `total` that is. It may raise to stop."""

    def __call__(self, coming: Iterable[T], total: int) -> Iterable[T]: ...


def unwatched(coming: Iterable[T], total: int) -> Iterable[T]:  # noqa: ARG001 - of every `Watch`
    """Show nothing."""
    return coming


def pass_on(untried: object) -> None:
    """Raise the KeyboardInterrupt that somebody caught, if it left something untried."""
    if untried:
        raise KeyboardInterrupt


class Work(ABC):
    """Some work at hand, which somebody sees proceed. `seen` is what has come of it."""

    def __init__(self) -> None:
        self.counts = (0, 0)
        self.seen: list[Any] = []

    @property
    def complete(self) -> bool:
        """Whether all is done."""
        return self.counts[0] == self.counts[1]

    def __call__(self, done: int, total: int) -> None:
        """Note that `done` of `total` are done, and show it."""
        self.counts = (done, total)
        self.show()

    @abstractmethod
    def show(self) -> None:
        """Show how much is done. May raise to stop the work."""

    def watch(self, coming: Iterable[T], total: int) -> Iterator[T]:
        """Pass on what comes, one of `total`, and show how much that is."""
        self(0, total)
        for done, each in enumerate(coming, 1):
            self.seen.append(each)
            yield each  # first, so that an interrupt while it is shown loses nothing
            self(done, total)

    def watch_until_stopped(self, coming: Iterable[T], total: int) -> Iterable[T]:
        """As `watch`, but Ctrl-C after the first ends it."""
        return until_stopped(self.watch(coming, total))


def until_stopped(
    coming: Iterable[T],
    enough: Callable[[Sequence[T]], object] = len,
    due: Callable[[Sequence[T]], object] | None = None,
) -> list[T]:
    """Return what comes until Ctrl-C, or raise KeyboardInterrupt if that is not `enough`.

    When the time of `within` is up, return what has come too, but no sooner than it is `due`, by
    default `enough`.
    """
    found, due = list[T](), due or enough
    try:
        with answering(lambda: due(found)):
            _take(coming, found, due)
    except KeyboardInterrupt:
        if not enough(found):
            raise
    return found


def _take(coming: Iterable[T], found: list[T], due: Callable[[Sequence[T]], object]) -> None:
    """Add to `found` what comes, until time is up and it is due.

    By itself: where a loop ends in an `if`, no `try` around it of Python 3.13.0 sees an interrupt.
    """
    for each in coming:
        found.append(each)
        if time_is_up() and due(found):
            return


_AGAIN = 0.5
"""Seconds after which work that had no answer yet when its time was up is looked at again."""

_SOON = 1e-3
"""Seconds of a timer that is due."""

_due: list[float] = []
"""When time is up, by `time.monotonic()`: innermost last."""
_answers: list[Callable[[], object]] = []
"""Whether those who keep what there is on KeyboardInterrupt have something to keep."""


def time_is_up() -> bool:
    """Whether the time of the `within` at hand is up."""
    return bool(_due) and time.monotonic() >= _due[-1]


def time_left() -> float:
    """Seconds that are left of the `within` at hand; infinite without one."""
    return max(_due[-1] - time.monotonic(), 0.0) if _due else inf


@contextmanager
def answering(answer: Callable[[], object]) -> Iterator[None]:
    """Code that catches KeyboardInterrupt, and then has an answer if `answer` says so."""
    _answers.append(answer)
    try:
        yield
    finally:
        _answers.pop()


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """End the work inside after so many seconds as Ctrl-C ends it, once it has an answer.

    What does not end on KeyboardInterrupt with what there is, goes on. Where the system has no
    timer that interrupts, work ends after the piece at hand.
    """
    if seconds == inf and not _due:
        yield
        return
    _due.append(min(time.monotonic() + seconds, _due[-1] if _due else inf))
    ended = [False]

    def ring(*_: object) -> None:
        if not ended[0] and any(has_answer() for has_answer in reversed(_answers)):
            ended[0] = True
            raise KeyboardInterrupt

    before, began, others = None, time.monotonic(), (0.0, 0.0)
    with suppress(ValueError, AttributeError):  # another thread, or Windows
        if threading.current_thread() is threading.main_thread():
            before = signal.signal(signal.SIGALRM, ring)
            others = signal.setitimer(signal.ITIMER_REAL, max(time_left(), _SOON), _AGAIN)
    try:
        yield
    finally:
        ended[0] = True
        _due.pop()
        if before is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            if others[0]:
                left = others[0] - (time.monotonic() - began)
                signal.setitimer(signal.ITIMER_REAL, max(left, _SOON), others[1])
