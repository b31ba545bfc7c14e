"""Handing out cells: those of one machine together, and again when their worker dies."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Sequence

from simreduce.sweep.cells import Cell
from simreduce.sweep.rows import KILLED, Row

MOST_DEATHS = 3
"""Workers that a cell may end before it is given up."""
_SHARES = 8
"""Batches that each worker has still to come when the last cells are handed out."""


class Batches:
    """The cells that are still to do. Each batch is of one machine, which a worker keeps as long as
    it has cells: routes, layouts and folded machines are then made once.
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

    def blame(self, cell: Cell, how: str) -> Row | None:
        """Note that a worker died at a cell, which is then tried alone; its row if that is too
        often.
        """
        self._deaths[cell.digest] += 1
        if self._deaths[cell.digest] >= MOST_DEATHS:
            return Row(state=KILLED, reason=f"{MOST_DEATHS} workers ended at it: {how}")
        self._alone.append(cell)
        self.left += 1
        return None
