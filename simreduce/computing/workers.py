"""Processes that work for this one, and end with it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing.process import BaseProcess

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

modules: set[str] = set()
"""Modules that every worker imports: those that register algorithms."""

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def pool(
    workers: int, work: Callable[[Any], object] | None = None
) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes that have `work` for `_work_on` from the start.

    An exception, or the end of this process, ends them at once.
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
        # Not by `map`: it cancels what is left when nobody listens, and then fails if its workers
        # are ended.
        parts = [items[i : i + chunk] for i in range(0, len(items), chunk)]
        for part in [processes.submit(_work_on, part) for part in parts]:
            yield from part.result()


Working = Callable[[Sequence[T]], Iterator[tuple[int, R]]]
"""Yields the place and the result of each item, in the order in which they are done."""


@contextmanager
def working(work: Callable[[T], R], workers: int) -> Iterator[Working[T, R]]:
    """Return a function that works on items, each time with the same `workers` processes.

    They start when it first gets several items.
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


@contextmanager
def beside(work: Callable[[], object]) -> Iterator[None]:
    """Work in a process of its own meanwhile, which the end of the context ends."""
    import multiprocessing  # noqa: PLC0415 - as above

    process = multiprocessing.Process(target=_work_alone, args=(work,), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _work_alone(work: Callable[[], object]) -> None:
    prepare(())
    work()


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
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()
    for module in needed:
        if module != "__main__":  # which a worker has already
            import_module(module)


def end_with_parent() -> None:
    """Leave Ctrl-C to the process that started this one, and end with it.

    On Linux the kernel sees to that, also while no Python runs.
    """
    import ctypes  # noqa: PLC0415 - for workers only
    import multiprocessing  # noqa: PLC0415 - as above

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent := multiprocessing.parent_process():
        threading.Thread(target=_wait_for_end, args=[parent], daemon=True).start()


def _wait_for_end(parent: BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def limit_memory(nbytes: int) -> None:
    """Have the system refuse this process more memory than that, besides what it has already."""
    try:
        import resource  # noqa: PLC0415 - not on Windows

        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - takes time
            pages = int(file.read().split()[5])
        limit = nbytes + pages * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    except (ImportError, OSError, ValueError):
        return
