"""Work that comes piece by piece: watched as it comes, and kept on Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

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
