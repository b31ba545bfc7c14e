"""Engines: what each does, how cells are handed out, and the engine without other processes."""

from __future__ import annotations

import gc
import os
import time
from collections import Counter, deque
from collections.abc import Generator, Hashable, Sequence
from typing import Protocol

from simreduce.study.sweep.cells import FAILED, KILLED, TOO_LARGE, Cell, Figures
from simreduce.study.sweep.evaluate import evaluate, forget
from simreduce.study.sweep.store import CellAnswer

MEMORY = "SIMREDUCE_MEMORY"
"""The variable by which a process knows how much memory a plan may take."""
MEMORY_DEFAULT = 4 << 30
"""Bytes of each worker. A fixed figure, so that every computer gives the same rows."""

MOST_DEATHS = 3
"""Workers that a cell may end before it is given up."""
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
        words = f"a fault of simreduce: {type(error).__name__}: {' '.join(str(error).split())}"
        row = Figures(state=FAILED, reason=words)
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

    def __init__(self, cells: Sequence[Cell], most: int) -> None:
        self._groups: dict[Hashable, deque[Cell]] = {}
        for cell in cells:
            self._groups.setdefault(cell.machine, deque()).append(cell)
        self._alone: deque[Cell] = deque()
        self._deaths: Counter[str] = Counter()
        self._machine_of: dict[Hashable, Hashable] = {}
        self._most = most
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
        count = min(len(group), self._most, max(self.left // (_SHARES * workers), 1))
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
