"""Rows of cells from a database of sweeps, and from simulations where it has none.

What is simulated is kept, so that a question that is stopped goes on where it was, and one with
other prices, targets or failures simulates nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from simreduce.capacity.answer import Evaluate
from simreduce.sweep import Cell, Row, Store, evaluate
from simreduce.sweep.store import Answer as Kept
from simreduce.workers import working

Progress = Callable[[int, int], None]


@contextmanager
def evaluating(
    path: str | None,
    workers: int = 1,
    progress: Progress = lambda _done, _all: None,
) -> Iterator[Evaluate]:
    """A function that gives the rows of cells, with the database at `path`, or none. Equal cells
    are simulated once. Workers stay from one call to the next.
    """
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(path, write=True)) if path is not None else None
        work_on = stack.enter_context(working(timed, workers))
        known: dict[str, Row] = {}
        counts = [0, 0]

        def rows(cells: Sequence[Cell]) -> list[Row]:
            for cell in cells:
                if store is not None and cell.digest not in known:
                    found = store.get(cell.digest)
                    if found is not None:
                        known[cell.digest] = found
            lacking = [*{c.digest: c for c in cells if c.digest not in known}.values()]
            counts[1] += len(lacking)
            progress(*counts)
            for place, (row, taken) in work_on(lacking):
                cell = lacking[place]
                known[cell.digest] = row
                if store is not None:
                    store.put([Kept(cell, row, taken)])
                counts[0] += 1
                progress(*counts)
            return [known[cell.digest] for cell in cells]

        yield rows


def timed(cell: Cell) -> tuple[Row, float]:
    """The row of a cell, and the seconds that it took."""
    begin = time.perf_counter()
    return evaluate(cell), time.perf_counter() - begin
