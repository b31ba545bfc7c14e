"""Work on several processes, which end when nobody waits for it any more."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def processes(workers: int) -> Iterator[ProcessPoolExecutor]:
    """A pool whose processes an exception ends, and the end of a generator that uses it: else it would go on with what it has
    begun, which may take minutes.
    """
    before = multiprocessing.active_children()
    with ProcessPoolExecutor(workers, initializer=_undisturbed) as pool:
        try:
            yield pool
        except BaseException:
            for child in multiprocessing.active_children():
                if child not in before:
                    child.terminate()
            raise


def _undisturbed() -> None:
    """Ctrl-C goes to all processes of a terminal: the first of them ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def in_processes(work: Callable[[T], R], items: Sequence[T], workers: int) -> Generator[R, None, None]:
    """What `work` makes of every item, in order, on so many processes."""
    workers = min(workers, len(items))
    if workers == 1:
        yield from map(work, items)
        return
    with processes(workers) as pool:
        yield from pool.map(work, items)
