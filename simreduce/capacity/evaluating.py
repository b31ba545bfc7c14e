"""Rows of cells from a database of sweeps, and from simulations where it has none.

What is simulated is kept, so that a question that is stopped goes on where it was, and one with
other prices, targets or failures simulates nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from simreduce.errors import InternalError
from simreduce.sweep import Cell, Planned, Row, Runner, Store

Progress = Callable[[int, int], None]


class Evaluator:
    """Gives the rows of cells; equal ones are simulated once. After Ctrl-C it is `stopped`: nothing
    more is simulated, and what is not known then is None.
    """

    def __init__(self, runner: Runner, progress: Progress) -> None:
        self.stopped = False
        self._runner, self._progress = runner, progress
        self._known: dict[str, Row] = {}
        self._done, self._asked = 0, 0

    def __call__(self, cells: Sequence[Cell]) -> list[Row | None]:
        """The rows, in order."""
        lacking = self._runner.missing(c for c in cells if c.digest not in self._known)
        if lacking and not self.stopped:
            self._asked += len(lacking)
            self._progress(self._done, self._asked)
            try:
                for answer in self._runner.run(lacking):
                    self._known[answer.cell.digest] = answer.row
                    self._done += 1
                    self._progress(self._done, self._asked)
            except KeyboardInterrupt:
                self.stopped = True
        return [self._known.get(cell.digest) or self._kept(cell) for cell in cells]

    def begin(self, name: str, plan: Sequence[Planned]) -> None:
        """Note in the database what is asked, so that `simreduce table` shows it."""
        if self._runner.store is not None:
            self._runner.store.begin(name, {"question": name}, plan)

    def _kept(self, cell: Cell) -> Row | None:
        store = self._runner.store
        found = store.get(cell.digest) if store is not None else None
        if found is not None:
            self._known[cell.digest] = found
        elif not self.stopped:
            raise InternalError(f"no row of {cell.digest}, which was not missing")
        return found


@contextmanager
def evaluating(
    path: str | None,
    workers: int = 1,
    progress: Progress = lambda _done, _all: None,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Evaluator]:
    """An evaluator with the database at `path`, or none. Workers stay from one call to the next;
    one means this process.
    """
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(path, write=True)) if path is not None else None
        runner = stack.enter_context(Runner(store, workers if workers > 1 else 0, say=say))
        yield Evaluator(runner, progress)
