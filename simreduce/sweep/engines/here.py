"""The engine without other processes."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence

from simreduce.sweep.cells import Cell
from simreduce.sweep.engines.engine import MEMORY, evaluate_timed, limit_memory
from simreduce.sweep.store import Answer


class Here:
    """Computes cells in this process, machine by machine."""

    def __init__(self, memory: int) -> None:
        self.memory = memory

    def run(self, cells: Sequence[Cell]) -> Generator[list[Answer], None, None]:
        """Yield the answers."""
        before = os.environ.get(MEMORY)
        limit_memory(self.memory)
        try:
            for cell in sorted(cells, key=lambda cell: cell.machine):
                yield [Answer(cell, *evaluate_timed(cell), self.memory)]
        finally:
            os.environ.pop(MEMORY)
            if before is not None:
                os.environ[MEMORY] = before

    def close(self) -> None:
        """Nothing was started."""

    def summary(self) -> str:
        """Nothing."""
        return ""
