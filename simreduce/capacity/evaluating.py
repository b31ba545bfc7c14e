"""Rows of cells from a database of sweeps, and from simulations where it has none.

What is simulated is kept, so that a question that is stopped goes on where it was, and one with
other prices, targets or failures simulates nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from simreduce.capacity.answer import Evaluate
from simreduce.errors import InternalError
from simreduce.sweep import Cell, Row, Runner, Store

Progress = Callable[[int, int], None]


@contextmanager
def evaluating(
    path: str | None,
    workers: int = 1,
    progress: Progress = lambda _done, _all: None,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Evaluate]:
    """A function that gives the rows of cells, with the database at `path`, or none. Equal cells
    are simulated once. Workers stay from one call to the next; one means this process.
    """
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(path, write=True)) if path is not None else None
        runner = stack.enter_context(Runner(store, workers if workers > 1 else 0, say=say))
        known: dict[str, Row] = {}
        counts = [0, 0]

        def rows(cells: Sequence[Cell]) -> list[Row]:
            lacking = runner.missing(cell for cell in cells if cell.digest not in known)
            counts[1] += len(lacking)
            progress(*counts)
            for answer in runner.run(lacking) if lacking else ():
                known[answer.cell.digest] = answer.row
                counts[0] += 1
                progress(*counts)
            return [known.get(cell.digest) or kept(cell) for cell in cells]

        def kept(cell: Cell) -> Row:
            found = store.get(cell.digest) if store is not None else None
            if found is None:
                raise InternalError(f"no row of {cell.digest}, which was not missing")
            known[cell.digest] = found
            return found

        yield rows
