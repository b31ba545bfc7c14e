"""Processes that work for this one, and end with it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

modules: set[str] = set()
"""Modules that every worker imports: those that register algorithms."""

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def pool(
    workers: int, work: Callable[[Any], object] | None = None
) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes, each of which has `work` for `_work_on` from the start. An exception, or
    the end of this process, ends them at once.
    """
    import multiprocessing  # noqa: PLC0415 - most commands need no other process
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415

    before = multiprocessing.active_children()
    given = tuple(modules), work
    with ProcessPoolExecutor(workers, initializer=_start, initargs=given) as processes:
        try:
            yield processes
        except BaseException:
            for child in multiprocessing.active_children():
                if child not in before:
                    child.terminate()
            raise


def in_processes(
    work: Callable[[T], R], items: Sequence[T], workers: int, chunk: int = 1
) -> Generator[R, None, None]:
    """Yields `work` of every item, in order. `workers` processes take `chunk` items at a time."""
    workers = min(workers, len(items))
    if workers <= 1:
        yield from map(work, items)
        return
    with pool(workers, work) as processes:
        # Not by `map`, which cancels what is left when nobody listens, and then cannot stand that
        # its workers are ended.
        parts = [items[i : i + chunk] for i in range(0, len(items), chunk)]
        for part in [processes.submit(_work_on, part) for part in parts]:
            yield from part.result()


Working = Callable[[Sequence[T]], Iterator[tuple[int, R]]]
"""Yields the place and the result of each item, in the order in which they are done."""


@contextmanager
def working(work: Callable[[T], R], workers: int) -> Iterator[Working[T, R]]:
    """A function that works on items, again and again with the same `workers` processes, which
    start when it first gets several items.
    """
    with ExitStack() as stack:
        processes: list[ProcessPoolExecutor] = []

        def work_on(items: Sequence[T]) -> Iterator[tuple[int, R]]:
            if workers <= 1 or (len(items) <= 1 and not processes):
                yield from ((place, work(item)) for place, item in enumerate(items))
                return
            from concurrent.futures import as_completed  # noqa: PLC0415 - as above

            if not processes:
                processes.append(stack.enter_context(pool(workers, work)))
            places = {processes[0].submit(_work_on, [each]): i for i, each in enumerate(items)}
            for done in as_completed(places):
                yield places[done], done.result()[0]

        yield work_on


@contextmanager
def rounds(work: Callable[[T], R], workers: int) -> Iterator[Callable[[Sequence[T]], list[R]]]:
    """As `working`, with the results in order."""
    with working(work, workers) as work_on:
        yield lambda items: [each for _, each in sorted(work_on(items), key=itemgetter(0))]


_given: list[Callable[[Any], Any]] = []
"""The work of this worker. Sent with every item instead, what it finds out about a machine would be
found out again for each.
"""


def _work_on(items: Sequence[Any]) -> list[Any]:
    return [_given[0](item) for item in items]


def _start(needed: tuple[str, ...], work: Callable[[Any], Any] | None) -> None:
    _given[:] = [work] if work else []
    prepare(needed)


def prepare(needed: tuple[str, ...]) -> None:
    """Prepare a worker, which leaves Ctrl-C to the process that started it, and ends with it.
    `needed` are `modules` there.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for module in needed:
        if module != "__main__":  # which a worker has already
            import_module(module)


def _end_with_parent() -> None:
    import multiprocessing  # noqa: PLC0415 - as above

    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
