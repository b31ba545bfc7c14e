"""What every engine does."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Generator, Sequence
from typing import Protocol

from simreduce.sweep.cells import Cell
from simreduce.sweep.evaluate import evaluate, forget
from simreduce.sweep.rows import FAILED, TOO_LARGE, Row
from simreduce.sweep.store import Answer

MEMORY = "SIMREDUCE_MEMORY"
"""The variable by which a process knows how much memory a plan may take."""
MEMORY_DEFAULT = 4 << 30
"""Bytes of each worker. A fixed figure, so that every computer gives the same rows."""


class EngineGone(Exception):  # noqa: N818 - what it is about
    """The engine ended, such as a cluster whose scheduler went away. What it did is stored."""


class Engine(Protocol):
    """Computes cells. Its workers live until `close`."""

    memory: int
    """Bytes that a worker may take."""

    def run(self, cells: Sequence[Cell]) -> Generator[list[Answer], None, None]:
        """Yield the answer of each cell, in any order, all that are there at once. EngineGone if
        the workers are lost.
        """

    def close(self) -> None:
        """End the workers."""

    def summary(self) -> str:
        """What the workers were, and the memory they took; "" if nothing is to be said."""


def evaluate_timed(cell: Cell) -> tuple[Row, float]:
    """The row of a cell, and the seconds that it took. What goes wrong inside simreduce is in the
    row too: one cell does not end a sweep.
    """
    began = time.perf_counter()
    try:
        row = evaluate(cell)
    except MemoryError:
        row = Row(state=TOO_LARGE, reason="it took more memory than a worker has")
    except Exception as error:  # noqa: BLE001 - whatever it is
        words = " ".join(str(error).split())
        row = Row(state=FAILED, reason=f"a fault of simreduce: {type(error).__name__}: {words}")
    if row.state == TOO_LARGE:
        forget()
        gc.collect()
    return row, time.perf_counter() - began


def limit_memory(nbytes: int) -> None:
    """Tell this process how much memory its plans may take."""
    os.environ[MEMORY] = str(nbytes)
