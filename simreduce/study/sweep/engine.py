"""Engines: what each does, how cells are handed out, and the engine without other processes.

The engine of processes on this computer.

Each worker has a pipe: batches of cells go in, rows come out one by one. So it is known at which
cell a worker died, which `concurrent.futures` does not say.

The engine of a Dask cluster: one that runs already, or of Slurm or Kubernetes.

Cells travel, and rows come back. A worker that dies is survived: Dask tries its batch on another
one, and a batch that ends too many of them is split, so that one cell takes no others with it.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from simreduce import units
from simreduce.computing import group_by
from simreduce.computing.workers import limit_memory, modules, prepare
from simreduce.errors import DeviceError, InputError
from simreduce.plan.ops import MEMORY
from simreduce.study.sweep import FAILED, KILLED, TOO_LARGE, Cell, Figures
from simreduce.study.sweep.evaluate import evaluate, forget
from simreduce.study.sweep.store import CellAnswer

MEMORY_DEFAULT = 4 << 30
"""Bytes of each worker. A fixed figure, so that every computer gives the same rows."""

MOST_DEATHS = 3
"""Workers that a cell may end before it is given up."""
_MOST = 8
"""Cells of the largest batch."""
_SHARES = 8
"""Batches that each worker has still to come when the last cells are handed out."""


class EngineGone(Exception):  # noqa: N818 - what it is about
    """The engine ended, such as a cluster whose scheduler went away. What it did is stored."""


class Engine(Protocol):
    """Computes cells. Its workers live until `close`."""

    memory: int
    """Bytes that a worker may take."""

    def run(self, cells: Sequence[Cell]) -> Generator[list[CellAnswer], None, None]:
        """Yield the answer of each cell, in any order, all that are there at once.

        EngineGone if the workers are lost.
        """

    def close(self) -> None:
        """End the workers."""

    def summary(self) -> str:
        """The number of workers and the memory they took; "" for engines that start none."""
        return ""


def evaluate_timed(cell: Cell) -> tuple[Figures, float]:
    """The row of a cell, and the seconds that it took.

    What goes wrong inside simreduce is in the row too: one cell does not end a sweep.
    """
    began = time.perf_counter()
    try:
        row = evaluate(cell)
    except MemoryError:
        row = Figures(state=TOO_LARGE, reason="it took more memory than a worker has")
    except Exception as error:  # noqa: BLE001 - whatever it is
        row = Figures(
            state=FAILED,
            reason=f"a fault of simreduce: {type(error).__name__}: {' '.join(str(error).split())}",
        )
    if row.state == TOO_LARGE:
        forget()
        gc.collect()
    return row, time.perf_counter() - began


def limit_plans(nbytes: int) -> None:
    """Tell this process how much memory its plans may take."""
    os.environ[MEMORY] = str(nbytes)


class Batches:
    """The cells that are still to do.

    Each batch is of one machine, which a worker keeps as long as it has cells: routes, layouts and
    folded machines are then made once.
    """

    def __init__(self, cells: Sequence[Cell]) -> None:
        groups = group_by(cells, lambda cell: cell.machine)
        self._groups: dict[Hashable, deque[Cell]] = {k: deque(mine) for k, mine in groups.items()}
        self._alone: deque[Cell] = deque()
        self._deaths: Counter[str] = Counter()
        self._machine_of: dict[Hashable, Hashable] = {}
        self.left = len(cells)

    def take(self, worker: Hashable, workers: int) -> list[Cell]:
        """A batch for a worker of so many; empty if all are handed out."""
        if self._alone:
            self.left -= 1
            return [self._alone.popleft()]
        if not self._groups:
            return []
        machine = self._machine_of.get(worker)
        if machine not in self._groups:
            # One that nobody is at, else the one with most cells.
            taken = set(self._machine_of.values())
            free = [each for each in self._groups if each not in taken]
            machine = free[0] if free else max(self._groups, key=lambda m: len(self._groups[m]))
            self._machine_of[worker] = machine
        group = self._groups[machine]
        count = min(len(group), _MOST, max(self.left // (_SHARES * workers), 1))
        self.left -= count
        batch = [group.popleft() for _ in range(count)]
        if not group:
            del self._groups[machine]
        return batch

    def put_back(self, cells: Sequence[Cell]) -> None:
        """Cells that nobody did, and nobody is to blame for."""
        for cell in reversed(cells):
            self._groups.setdefault(cell.machine, deque()).appendleft(cell)
        self.left += len(cells)

    def blame(self, cell: Cell, how: str) -> Figures | None:
        """Note that a worker died at a cell, which is then tried alone.

        Returns its row if that is too often.
        """
        self._deaths[cell.digest] += 1
        if self._deaths[cell.digest] >= MOST_DEATHS:
            return Figures(state=KILLED, reason=f"{MOST_DEATHS} workers ended at it: {how}")
        self._alone.append(cell)
        self.left += 1
        return None


class Here(Engine):
    """Computes cells in this process, machine by machine."""

    def __init__(self, memory: int) -> None:
        self.memory = memory

    def run(self, cells: Sequence[Cell]) -> Generator[list[CellAnswer], None, None]:
        """Yield the answers."""
        before = os.environ.get(MEMORY)
        limit_plans(self.memory)
        try:
            for cell in sorted(cells, key=lambda cell: cell.machine):
                yield [CellAnswer(cell, *evaluate_timed(cell), self.memory)]
        finally:
            os.environ.pop(MEMORY)
            if before is not None:
                os.environ[MEMORY] = before

    def close(self) -> None:
        """Nothing was started."""


_MOST_STARTS = 12
"""Workers in a row that may end without a row before it is useless to start more."""


@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    pipe: Connection
    batch: deque[Cell] = field(default_factory=deque)


class Processes(Engine):
    """So many processes, each with so much memory, from the first cell until `close`."""

    def __init__(self, workers: int, memory: int) -> None:
        self.memory = memory
        self._count = workers
        self._workers: list[_Worker] = []
        self._starts = 0

    def run(self, cells: Sequence[Cell]) -> Generator[list[CellAnswer], None, None]:
        """Yield the answers. DeviceError if workers end one after another at nothing."""
        batches = Batches(cells)
        self._starts = 0
        while len(self._workers) < min(self._count, len(cells)):
            self._workers.append(self._start())
        for worker in self._workers:
            self._feed(worker, batches)
        while busy := [worker for worker in self._workers if worker.batch]:
            ready = wait([w.pipe for w in busy] + [w.process.sentinel for w in busy])
            answers = [
                answer
                for worker in busy
                if worker.pipe in ready or worker.process.sentinel in ready
                for answer in self._listen(worker, batches)
            ]
            if answers:
                yield answers

    def _feed(self, worker: _Worker, batches: Batches) -> None:
        worker.batch = deque(batches.take(worker, len(self._workers)))
        if worker.batch:
            # A worker that died meanwhile is found by its sentinel.
            with contextlib.suppress(OSError):
                worker.pipe.send([*worker.batch])

    def _listen(self, worker: _Worker, batches: Batches) -> list[CellAnswer]:
        """The answers that a worker sent; hands out its cells again if it died."""
        found = []
        dead = not worker.process.is_alive()  # before it is read: what it sent stays there
        try:
            while worker.batch and worker.pipe.poll():
                row, taken = worker.pipe.recv()
                found.append(CellAnswer(worker.batch.popleft(), row, taken, self.memory))
        except (EOFError, OSError):
            dead = True
        if found:
            self._starts = 0
        if dead:
            found += self._bury(worker, batches)
        elif not worker.batch:
            self._feed(worker, batches)
        return found

    def _bury(self, worker: _Worker, batches: Batches) -> list[CellAnswer]:
        """Put another worker in the place of one that died.

        The cell that it was at is tried again, or has a row if it was tried often enough.
        """
        worker.process.join()
        worker.pipe.close()
        how = _how(worker.process.exitcode)
        self._starts += 1
        if self._starts > _MOST_STARTS:
            raise DeviceError(f"{_MOST_STARTS} workers ended one after another: {how}")
        found = []
        if worker.batch:
            cell = worker.batch.popleft()
            batches.put_back([*worker.batch])
            if (row := batches.blame(cell, how)) is not None:
                found = [CellAnswer(cell, row, 0.0, self.memory)]
        self._workers[self._workers.index(worker)] = self._start()
        for other in self._workers:
            if not other.batch:
                self._feed(other, batches)
        return found

    def _start(self) -> _Worker:
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.Process(
            target=_serve, args=(theirs, self.memory, tuple(modules)), daemon=True
        )
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def summary(self) -> str:
        """How many workers with how much memory there were, and what the largest took."""
        count = units.plural(self._count, "worker")
        most = _peak_of_children()
        each = f"{count} with {units.format_size(self.memory)} each"
        return f"{each}; the largest took {units.format_size(most)}" if most else each

    def close(self) -> None:
        """End the workers, whatever they are at."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()
        self._workers = []


def _peak_of_children() -> int:
    """Bytes of the largest process that this one started and that has ended; 0 if unknown."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit


def _how(code: int | None) -> str:
    """In words, how a process ended."""
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"exit status {code}"


def _serve(pipe: Connection, memory: int, needed: tuple[str, ...]) -> None:
    """Answer batches until nobody sends any."""
    prepare(needed)
    limit_plans(memory)
    limit_memory(memory)
    with contextlib.suppress(EOFError, OSError):
        while True:
            for cell in pipe.recv():
                pipe.send(evaluate_timed(cell))


CLUSTERS: Mapping[str, tuple[str, str, str]] = {
    "slurm": ("dask_jobqueue", "SLURMCluster", "dask-jobqueue"),
    "kubernetes": ("dask_kubernetes.operator", "KubeCluster", "dask-kubernetes"),
}
"""Where each kind of cluster is made, and the package that does so."""
_AHEAD = 3
"""Batches that each core has or waits for."""
_LOOK = 1.0
"""Seconds after which the scheduler is looked at though nothing was done."""
_PATIENCE = 20.0
"""Seconds for which a scheduler that does not answer is waited for."""

_one_at_a_time = threading.Lock()
"""A worker may have threads; what it keeps of machines is for one of them."""


def work(cells: Sequence[Cell], memory: int) -> list[tuple[Figures, float]]:
    """Rows of a batch, on a worker."""
    with _one_at_a_time:
        limit_plans(memory)
        return [evaluate_timed(cell) for cell in cells]


class DaskCluster(Engine):
    """The Dask cluster at an address, or a new one of Slurm or Kubernetes with so many workers.

    InputError if a package is missing, or nobody answers.
    """

    def __init__(
        self, address: str, workers: int | None, memory: int, say: Callable[[str], None]
    ) -> None:
        self.memory = memory
        # Read when it is imported: a lost connection is said once, by us.
        loggers = "asyncio", "distributed", "distributed.client", "distributed.core", "tornado"
        _import("dask.config", "distributed").set({"logging": dict.fromkeys(loggers, "critical")})
        distributed = _import("distributed", "distributed")
        self._cluster = _new_cluster(address, workers) if address in CLUSTERS else None
        self._distributed = distributed
        try:
            self._client = distributed.Client(
                self._cluster or address, timeout=_PATIENCE, set_as_default=False
            )
        except (OSError, TimeoutError, ValueError) as error:
            self._end_cluster()
            raise InputError(f"--cluster {address}: nobody answers: {error}") from None
        count = len(self._client.ncores())
        say(f"{address}: {count} workers" if count else f"{address}: waiting for workers")

    def run(self, cells: Sequence[Cell]) -> Generator[list[CellAnswer], None, None]:
        """Yield the answers, batch by batch. EngineGone if the scheduler goes away."""
        batches = Batches(cells)  # whose rows come back together
        running: dict[Any, list[Cell]] = {}
        try:
            while True:
                self._submit(batches, running)
                if not running:
                    return
                for future in self._wait(running):
                    if answers := self._take(future, running.pop(future), running):
                        yield answers
        finally:
            with contextlib.suppress(Exception):  # it may be gone
                self._client.cancel(list(running))

    def _submit(self, batches: Batches, running: dict[Any, list[Cell]]) -> None:
        """Keep every core busy for a while."""
        with _lost_connection():
            cores = max(sum(self._client.ncores().values()), 1)
        while len(running) < _AHEAD * cores and (batch := batches.take(len(running), cores)):
            self._send(batch, running)

    def _send(self, batch: list[Cell], running: dict[Any, list[Cell]]) -> None:
        with _lost_connection():
            future = self._client.submit(work, batch, self.memory, pure=False)
        running[future] = batch

    def _wait(self, running: dict[Any, list[Cell]]) -> list[Any]:
        """Futures that are done, whatever their state; none for a while that brings none."""
        done: list[Any] = []
        with _lost_connection(), self._client.as_current(), contextlib.suppress(TimeoutError):
            done = [
                *self._distributed.wait(
                    list(running), timeout=_LOOK, return_when="FIRST_COMPLETED"
                ).done
            ]
        if self._client.status != "running":
            raise EngineGone(_GONE)
        return done

    def _take(
        self, future: Any, batch: list[Cell], running: dict[Any, list[Cell]]
    ) -> list[CellAnswer]:
        """The answers of a future; cells of a batch that failed are sent one by one."""
        if future.status == "finished":
            with _lost_connection():
                pairs = zip(batch, future.result(), strict=True)
            return [CellAnswer(cell, row, taken, self.memory) for cell, (row, taken) in pairs]
        if future.status in ("lost", "pending"):
            # The worker died after its work and before its rows were fetched: it is done again.
            running[future] = batch
            return []
        if future.status != "error":
            raise EngineGone(f"the cluster gave up its work ({future.status})")
        if len(batch) == 1:
            with _lost_connection():
                error = future.exception()
            return [self._failed(batch[0], error)]
        for cell in batch:
            self._send([cell], running)
        return []

    def _failed(self, cell: Cell, error: BaseException) -> CellAnswer:
        """The row of a cell that no worker survives. EngineGone for what is no cell's fault."""
        if isinstance(error, self._distributed.KilledWorker):
            words = f"{MOST_DEATHS} or more workers ended at it"
            return CellAnswer(cell, Figures(state=KILLED, reason=words), 0.0, self.memory)
        words = " ".join(str(error).split())
        raise EngineGone(f"a worker cannot compute: {type(error).__name__}: {words}")

    def close(self) -> None:
        """Leave the cluster, and end it if it was made for this."""
        with contextlib.suppress(Exception):  # it may be gone
            self._client.close(timeout=2)
        self._end_cluster()

    def _end_cluster(self) -> None:
        if self._cluster is not None:
            with contextlib.suppress(Exception):
                self._cluster.close()


_GONE = "the scheduler went away"


@contextlib.contextmanager
def _lost_connection() -> Iterator[None]:
    """EngineGone for whatever a lost connection raises."""
    try:
        yield
    except Exception as error:
        raise EngineGone(_GONE) from error


def _new_cluster(name: str, workers: int | None) -> Any:
    """A cluster of Slurm or Kubernetes, as the user's Dask configuration says."""
    module, kind, package = CLUSTERS[name]
    try:
        cluster = getattr(_import(module, package), kind)()
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a configuration makes it raise
        words = " ".join(str(error).split())
        raise InputError(f"--cluster {name}: {type(error).__name__}: {words}") from None
    cluster.scale(workers or 1)
    return cluster


def _import(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise InputError(f"--cluster needs {package}: pip install 'simreduce[cluster]'") from None
