"""Processes that work for this one, and work that is watched as it comes.

The processes end with this one. What has come is kept on Ctrl-C, or when a budget is spent, of time
or of work. Work is counted (`charge`), and its count is the same on every machine, by any number of
processes.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from importlib import import_module
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing.process import BaseProcess
    from types import FrameType

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

modules: set[str] = set()
"""Modules that every worker imports: those that register algorithms."""


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
            for results, ops in part.result():
                _spend(ops)
                yield from results


_AHEAD = 8
"""Items for each process that are begun before those before them are known."""


@contextmanager
def working(
    work: Callable[[T], R], workers: int
) -> Iterator[Callable[[Sequence[T]], Iterator[tuple[int, R]]]]:
    """Return a function that works on items, each time with the same `workers` processes. It yields
    the place and the result of each item: in the order in which they are done, or where a budget
    counts work, in that of the items, so that it always ends at the same one.

    They start when it first gets several items. If one of them ends, such as for lack of memory,
    this process does what is left.
    """
    with ExitStack() as stack:
        processes: list[ProcessPoolExecutor] = []

        def work_on(items: Sequence[T]) -> Iterator[tuple[int, R]]:
            nonlocal workers
            if workers <= 1 or (len(items) <= 1 and not processes):
                yield from ((place, work(item)) for place, item in enumerate(items))
                return
            from concurrent.futures import (  # noqa: PLC0415 - as above
                BrokenExecutor,
                Future,
                as_completed,
            )

            if not processes:
                processes.append(stack.enter_context(pool(workers, work)))
            left, places = dict(enumerate(items)), dict[Future[Any], int]()
            try:
                while left:
                    most = time_left() if _counts_work() else inf
                    more = [i for i in islice(left, _AHEAD * workers) if i not in places.values()]
                    places |= {processes[0].submit(_work_on, [left[i]], most): i for i in more}
                    done = next(iter(places) if _counts_work() else as_completed(places))
                    ((results, ops),) = done.result()
                    _spend(ops)  # which ends all here, unless an answer needs this item
                    place = places.pop(done)
                    if not results:
                        _ops[0] -= ops
                        results = [work(left[place])]
                    del left[place]
                    yield place, results[0]
            except BrokenExecutor:
                workers = 1
                announce("a process ended, such as for lack of memory; this one goes on alone")
                yield from ((place, work(item)) for place, item in left.items())

        yield work_on


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


def _work_on(items: Sequence[Any], most: float = inf) -> list[tuple[list[Any], float]]:
    """The result of each item, none if that is more than `most` seconds of work, and its ops."""
    return [_measure(item, most) for item in items]


def _measure(item: object, most: float) -> tuple[list[Any], float]:
    before, results = _ops[0], list[Any]()
    with suppress(KeyboardInterrupt), within(most, of_work=True), answering(lambda: True):
        results = [_given[0](item)]
    return results, _ops[0] - before


def _start(needed: tuple[str, ...], work: Callable[[Any], Any] | None) -> None:
    _given[:] = [work] if work else []
    prepare(needed)


def prepare(needed: tuple[str, ...]) -> None:
    """Prepare a worker, which leaves Ctrl-C to the process that started it, and ends with it.

    `needed` are `modules` there.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _budgets.clear()  # of the process that started it
    _answers.clear()
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


listeners: list[Callable[[str], None]] = []
"""Each is called with a sentence about work that happens once; the command line prints it."""

simulating: list[Callable[[float], None]] = []
"""Each is called now and then during one long simulation, with the share that is done."""


def announce(sentence: str) -> None:
    """Pass a sentence on to all who listen."""
    for listener in listeners:
        listener(sentence)


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


_PACE, _PIECE = 1_400_000, 3_000
"""Ops of work for each second of a budget that counts work: about what a core does in a second. A
piece of work takes as long as so many ops besides its own.
"""

_ops, _free = [0.0], [0]
"""The ops of this process and of its workers; inside how many pieces it is, which count already."""


def charge(ops: float) -> None:
    """Count a piece of work with so many ops: a plan that is made, proven or simulated.

    A budget that counts work ends here as Ctrl-C would end it, once there is an answer.
    """
    if not _free[0]:
        _spend(_PIECE + ops)


def _spend(ops: float) -> None:
    _ops[0] += ops
    if _counts_work() and time_is_up():
        _budgets[-1].end()


def as_piece(work: Callable[P, R]) -> Callable[P, R]:
    """Make a call count as one piece of work: for what a cache keeps, as what this process has in
    its cache must not count.
    """

    @wraps(work)
    def piece(*args: P.args, **how: P.kwargs) -> R:
        charge(0)
        _free[0] += 1
        try:
            return work(*args, **how)
        finally:
            _free[0] -= 1

    return piece


_AGAIN = 0.5
"""Seconds after which work that had no answer yet when its time was up is looked at again."""

_OVERDRAFT, GRACE = 1.15, 2.0
"""Times its seconds, and seconds besides, after which a budget of time waits for no more than an
answer.
"""

_SOON = 1e-3
"""Seconds of a timer that is due."""


@dataclass(eq=False)
class _Budget:
    """Is spent when the time is `due` by `time.monotonic()`, or so many ops are done; after `late`
    nothing is waited for. So many of `_answers` were there `before`.
    """

    due: float
    of_work: bool = False
    ended: bool = False
    late: float = inf
    before: int = field(default_factory=lambda: len(_answers))

    def left(self) -> float:
        """Seconds that are left."""
        left = (self.due - _ops[0]) / _PACE if self.of_work else self.due - time.monotonic()
        return max(left, 0.0)

    def end(self) -> None:
        """Raise KeyboardInterrupt, once, if somebody inside what is spent has an answer; whoever is
        outside would take it for Ctrl-C.
        """
        first = min((each.before for each in _budgets if not each.left()), default=self.before)
        if not self.ended and any(has_answer() for has_answer in reversed(_answers[first:])):
            self.ended = True
            if self.of_work:  # how far the piece has come that is left out depends on who works
                _ops[0] = self.due
            raise KeyboardInterrupt


def _end_from(frame: FrameType | None, budget: _Budget) -> None:
    """End the budget, unless Python would drop what is raised in this frame: then a little later.

    It drops what callbacks of its garbage collector, finalizers and callbacks of weak references
    raise, and goes on.
    """
    collectors = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None:
        code = frame.f_code
        if code in collectors or code.co_name == "__del__" or code.co_filename == weakref.__file__:
            signal.setitimer(signal.ITIMER_REAL, _SOON, _AGAIN)
            return
        frame = frame.f_back
    budget.end()


_budgets: list[_Budget] = []
"""Innermost last."""
_answers: list[Callable[[], object]] = []
"""Whether those who keep what there is on KeyboardInterrupt have something to keep."""


def _counts_work() -> bool:
    """Whether the budget at hand is of work."""
    return bool(_budgets) and _budgets[-1].of_work


def time_is_up() -> bool:
    """Whether the budget of the `within` at hand is spent."""
    return time_left() == 0.0


def is_overdue() -> bool:
    """Whether the time of the `within` at hand has been up for so long that nothing is waited for;
    never of a budget that counts work.
    """
    return bool(_budgets) and time.monotonic() > _budgets[-1].late


@contextmanager
def no_time() -> Iterator[None]:
    """Inside, time is up: what an answer can do without is left out."""
    none = _Budget(-inf)
    _budgets.append(none)
    try:
        yield
    finally:
        _budgets.remove(none)


def time_left() -> float:
    """Seconds that are left of the `within` at hand; infinite without one."""
    return _budgets[-1].left() if _budgets else inf


@contextmanager
def answering(answer: Callable[[], object]) -> Iterator[None]:
    """Code that catches KeyboardInterrupt, and then has an answer if `answer` says so."""
    _answers.append(answer)
    try:
        yield
    finally:
        _answers.pop()


@contextmanager
def within(seconds: float, *, of_work: bool = False) -> Iterator[None]:
    """End the work inside after so many seconds as Ctrl-C ends it, once it has an answer.

    The outermost says whether they are seconds of time or `of_work`, which every machine does as
    much of. What does not end on KeyboardInterrupt with what there is, goes on. Where the system
    has no timer that interrupts, work ends after the piece at hand.
    """
    if seconds == inf and not _budgets:
        yield
        return
    of_work = _counts_work() if _budgets else of_work
    due = _ops[0] + seconds * _PACE if of_work else time.monotonic() + seconds
    late = inf if of_work else time.monotonic() + seconds * _OVERDRAFT + GRACE
    outer = _budgets[-1:]
    own = _Budget(
        min([due, *(each.due for each in outer)]),
        of_work,
        late=min([late, *(each.late for each in outer)]),
    )
    _budgets.append(own)
    before, began, others = None, time.monotonic(), (0.0, 0.0)
    with suppress(ValueError, AttributeError):  # another thread, or Windows
        if not _counts_work() and threading.current_thread() is threading.main_thread():
            before = signal.signal(signal.SIGALRM, lambda _, frame: _end_from(frame, own))
            others = signal.setitimer(signal.ITIMER_REAL, max(time_left(), _SOON), _AGAIN)
    try:
        yield
    finally:
        own.ended = True
        _budgets.remove(own)
        if before is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            if others[0]:
                left = others[0] - (time.monotonic() - began)
                signal.setitimer(signal.ITIMER_REAL, max(left, _SOON), others[1])
