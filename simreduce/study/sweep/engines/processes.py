"""The engine of processes on this computer.

Each worker has a pipe: batches of cells go in, rows come out one by one. So it is known at which
cell a worker died, which `concurrent.futures` does not say.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from simreduce import units
from simreduce.computing.workers import limit_memory, modules, prepare
from simreduce.errors import DeviceError
from simreduce.study.sweep.cells import Cell
from simreduce.study.sweep.engines.engine import Batches, Engine, evaluate_timed, limit_plans
from simreduce.study.sweep.store import CellAnswer

_MOST = 8
"""Cells of the largest batch."""
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
        batches = Batches(cells, _MOST)
        self._starts = 0
        while len(self._workers) < min(self._count, len(cells)):
            self._workers.append(self._start())
        for worker in self._workers:
            self._feed(worker, batches)
        while busy := [worker for worker in self._workers if worker.batch]:
            ready = wait([w.pipe for w in busy] + [w.process.sentinel for w in busy])
            answers: list[CellAnswer] = []
            for worker in busy:
                if worker.pipe in ready or worker.process.sentinel in ready:
                    answers += self._listen(worker, batches)
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
            row = batches.blame(cell, how)
            if row is not None:
                found = [CellAnswer(cell, row, 0.0, self.memory)]
        self._workers[self._workers.index(worker)] = self._start()
        for other in self._workers:
            if not other.batch:
                self._feed(other, batches)
        return found

    def _start(self) -> _Worker:
        ours, theirs = multiprocessing.Pipe()
        given = theirs, self.memory, tuple(modules)
        process = multiprocessing.Process(target=_serve, args=given, daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def summary(self) -> str:
        """How many workers with how much memory there were, and what the largest took."""
        count = units.plural(self._count, "worker")
        most = _peak_of_children()
        took = f"; the largest took {units.format_size(most)}" if most else ""
        return f"{count} with {units.format_size(self.memory)} each{took}"

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
