"""Computing what a database lacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext

from simreduce.computing.workers import Watch, until_stopped, unwatched
from simreduce.errors import InputError
from simreduce.study.sweep.cells import Cell, Figures
from simreduce.study.sweep.engines import Engine, Here, Processes
from simreduce.study.sweep.engines.engine import MEMORY_DEFAULT
from simreduce.study.sweep.store import CellAnswer, Store, StoreFull

PATIENCE = 600.0
"""Seconds for which a full disk is waited for."""
_AGAIN = 1.0
"""Seconds between two attempts to write to a full disk."""
_MOST_WAITING = 10_000
"""Rows that wait for a disk before workers do."""


class CellRunner(ExitStack):
    """Answers cells from a store, or without one from memory, and computes the others.

    Its workers live until it is closed, so that many small rounds are quick.

    `workers` is 0 for none: cells are then computed in this process.
    """

    def __init__(
        self,
        store: Store | None = None,
        workers: int = 1,
        memory: int = MEMORY_DEFAULT,
        engine: Engine | None = None,
        *,
        retry: bool = False,
        say: Callable[[str], None] = lambda _: None,
        watch: Watch = unwatched,
    ) -> None:
        super().__init__()
        self.store = store
        self.engine = engine or (Processes(workers, memory) if workers else Here(memory))
        self.callback(self.engine.close)
        self._known: dict[str, Figures] = {}
        self.stopped = False
        self._retry, self._say, self._watch = retry, say, watch
        self._waiting: list[CellAnswer] = []
        self._tried = 0.0
        self._full_since: float | None = None

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """The cells without an answer, each digest once."""
        done = set(self._known)
        if self.store:
            done |= self.store.finished(memory=self.engine.memory, retry=self._retry)
        return list({c.digest: c for c in cells if c.digest not in done}.values())

    def run(self, cells: Sequence[Cell]) -> Generator[CellAnswer, None, None]:
        """Compute the cells, and yield each answer when it is stored.

        Answers of workers that work on while the disk is full come when it takes them.
        """
        with closing(self.engine.run(cells)) as coming:
            try:
                for answers in coming:
                    self._waiting += answers
                    if self._full_since is None or time.monotonic() - self._tried >= _AGAIN:
                        yield from self._write()
                    while len(self._waiting) > _MOST_WAITING:
                        yield from self._insist()
                while self._waiting:
                    yield from self._insist()
            finally:
                self._write()  # what there is

    def rows(self, cells: Sequence[Cell]) -> list[Figures | None]:
        """The figures of each cell, in order; equal cells are computed once.

        After Ctrl-C the runner is `stopped`: it computes nothing more, and what it does not know is
        None.
        """
        new = [cell for cell in cells if cell.digest not in self._known]
        if new and not self.stopped and (lacking := self.missing(new)):
            with closing(self.run(lacking)) as coming:
                answers = until_stopped(self._watch(coming, len(lacking)), lambda _: True)
            self._known |= {each.cell.digest: each.row for each in answers}
            self.stopped = len(answers) < len(lacking)
        unknown = [cell.digest for cell in new if cell.digest not in self._known]
        if self.store:
            kept = ((digest, self.store.get(digest)) for digest in unknown)
            self._known |= {digest: row for digest, row in kept if row is not None}
        return [self._known.get(cell.digest) for cell in cells]

    def _write(self) -> list[CellAnswer]:
        """Store what waits, and return it; nothing if the disk is full."""
        self._tried = time.monotonic()
        try:
            if self.store and self._waiting:
                self.store.put(self._waiting)
        except StoreFull as error:
            if self._full_since is None:
                self._full_since = self._tried
                self._say(f"{error.why}; rows wait until there is room")
            return []
        if self._full_since is not None:
            self._say(f"there is room again: {len(self._waiting)} rows are stored")
        self._full_since = None
        written, self._waiting = self._waiting, []
        return written

    def _insist(self) -> list[CellAnswer]:
        """Store what waits; InputError if the disk was full for too long."""
        if not (written := self._write()):
            if self._full_since and time.monotonic() - self._full_since > PATIENCE:
                raise InputError(f"the disk was full for {PATIENCE / 60:.0f} minutes")
            time.sleep(_AGAIN)
        return written


@contextmanager
def running(
    path: str | None,
    workers: int = 1,
    watch: Watch = unwatched,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[CellRunner]:
    """A runner with the database at `path`, or none. One worker means this process."""
    count = workers if workers > 1 else 0
    with (
        nullcontext() if path is None else Store(path, write=True) as store,
        CellRunner(store, count, say=say, watch=watch) as runner,
    ):
        yield runner
