"""Work that comes piece by piece: watched as it comes, and kept on Ctrl-C."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


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


def until_stopped(coming: Iterable[T], enough: Callable[[Sequence[T]], object] = len) -> list[T]:
    """Return what comes until Ctrl-C, or raise KeyboardInterrupt if that is not `enough`."""
    found: list[T] = []
    try:
        for each in coming:
            found.append(each)  # noqa: PERF402 - what came before Ctrl-C is kept
    except KeyboardInterrupt:
        if not enough(found):
            raise
    return found
