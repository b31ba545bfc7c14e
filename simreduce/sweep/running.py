"""Computing what a database lacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Self

from simreduce.errors import InputError
from simreduce.sweep.cells import Cell
from simreduce.sweep.engines import Engine, Here, Processes
from simreduce.sweep.engines.engine import MEMORY_DEFAULT
from simreduce.sweep.rows import Row
from simreduce.sweep.store import Answer, Store, StoreFull

PATIENCE = 600.0
"""Seconds for which a full disk is waited for."""
_AGAIN = 1.0
"""Seconds between two attempts to write to a full disk."""
_MOST_WAITING = 10_000
"""Rows that wait for a disk before workers do."""


class Runner:
    """Answers cells from a store, or without one from memory, and computes the others. Its workers
    live until it is closed, so that many small rounds are quick.

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
    ) -> None:
        self.store = store
        self.engine = engine or (Processes(workers, memory) if workers else Here(memory))
        self._known: dict[str, Row] = {}
        self._retry = retry
        self._say = say
        self._waiting: list[Answer] = []
        self._tried = 0.0
        self._full_since: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        self.engine.close()

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """The cells without an answer, each digest once."""
        done = set(self._known)
        if self.store:
            done |= self.store.finished(memory=self.engine.memory, retry=self._retry)
        return list({c.digest: c for c in cells if c.digest not in done}.values())

    def run(self, cells: Sequence[Cell]) -> Generator[Answer, None, None]:
        """Compute the cells, and yield each answer when it is stored. Answers of workers that work
        on while the disk is full come when it takes them.
        """
        coming = self.engine.run(cells)
        try:
            for answers in coming:
                self._waiting += answers
                if self._full_since is None or time.monotonic() - self._tried >= _AGAIN:
                    yield from self._write()
                while len(self._waiting) > _MOST_WAITING:
                    yield from self._insist()
            while self._waiting:
                yield from self._insist()
        except BaseException:
            self._write()  # what there is
            raise
        finally:
            coming.close()

    def rows(self, cells: Sequence[Cell]) -> list[Row]:
        """The row of each cell, in order."""
        for answer in self.run(self.missing(cells)):
            self._known[answer.cell.digest] = answer.row
        for cell in cells:
            if cell.digest not in self._known and self.store:
                row = self.store.get(cell.digest)
                assert row is not None  # noqa: S101 - it was not missing
                self._known[cell.digest] = row
        return [self._known[cell.digest] for cell in cells]

    def _write(self) -> list[Answer]:
        """Store what waits, and return it; nothing if the disk is full."""
        self._tried = time.monotonic()
        try:
            if self.store and self._waiting:
                self.store.put(self._waiting)
        except StoreFull as error:
            if self._full_since is None:
                self._full_since = self._tried
                self._say(f"{error}; rows wait until there is room")
            return []
        if self._full_since is not None:
            self._say(f"there is room again: {len(self._waiting)} rows are stored")
        self._full_since = None
        written, self._waiting = self._waiting, []
        return written

    def _insist(self) -> list[Answer]:
        """Store what waits; InputError if the disk was full for too long."""
        written = self._write()
        if not written:
            if self._full_since and time.monotonic() - self._full_since > PATIENCE:
                raise InputError(f"the disk was full for {PATIENCE / 60:.0f} minutes")
            time.sleep(_AGAIN)
        return written
