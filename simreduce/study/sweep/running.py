"""Computing what a database lacks.

Two sweeps cell by cell: which answers changed, by how much, and which winners did.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from simreduce.computing import group_by
from simreduce.computing.workers import Watch, until_stopped, unwatched
from simreduce.errors import InputError, did_you_mean, quote
from simreduce.study.sweep import DONE, Cell, Figures, objective
from simreduce.study.sweep.engine import MEMORY_DEFAULT, Engine, Here, Processes
from simreduce.study.sweep.store import CellAnswer, Store, StoreFull, Sweep

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
                answers = until_stopped(
                    self._watch(coming, len(lacking)),
                    lambda _: True,
                    lambda found: found or self._known,
                )
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


Table = Sequence[Mapping[str, Any]]
Place = tuple[Any, ...]
"""The values of the keys that tell cells apart."""

CHOICES = ("strategy", "method", "machine", "backups")
"""Keys that are chosen, unless a user says which: the first that varies."""
_SAME = 1e-12


@dataclass(frozen=True, slots=True)
class CellChange:
    """A cell of both, with its states and its figures (None where it is not done)."""

    place: Place
    states: tuple[str, str]
    figures: tuple[float | None, float | None]
    reason: str = ""

    @property
    def ratio(self) -> float:
        """The figure of the second over the first; infinite if only one is done."""
        before, after = self.figures
        if before is None or after is None:
            return 1.0 if before is after else math.inf
        return after / before if before else math.inf if after else 1.0


@dataclass(frozen=True, slots=True)
class Winner:
    """A question whose best `choice` changed.

    It has the figures of both choices in both sweeps: the earlier winner's, and the later one's.
    """

    place: Place
    choice: tuple[Any, Any]
    earlier: tuple[float, float]
    later: tuple[float, float]

    @property
    def worth(self) -> float:
        """The part of its figure in the second sweep that the earlier winner would lose."""
        return self.earlier[1] / self.later[1] - 1.0 if self.later[1] else 0.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Cells of two sweeps by the keys that vary.

    `figure` is what is compared: the time, or of jobs the slowdown. `changed` holds the cells where
    it changed by more than the tolerance, or whose state did, largest change first. `questions`
    counts the questions with a winner in both, and `flipped` are the ones whose winner differs;
    `chosen` is the key whose value wins. `warnings` say what libraries are slow at.
    """

    keys: tuple[str, ...]
    both: int
    only: tuple[int, int]
    changed: tuple[CellChange, ...]
    ratios: tuple[float, ...]
    chosen: str
    questions: int
    flipped: tuple[Winner, ...]
    warnings: tuple[str, ...] = ()
    figure: str = "seconds"


def compare(
    first: tuple[Sweep, Table],
    second: tuple[Sweep, Table],
    chosen: str | None = None,
    tolerance: float = 0.0,
) -> Comparison:
    """Compare two sweeps, each with its rows.

    A key that has one value in each sweep, such as the calibration that was changed, tells no cells
    apart. InputError for keys that only one varies.
    """
    varied = [
        [key for key in sweep.keys if len({row.get(key) for row in rows}) > 1]
        for sweep, rows in (first, second)
    ]
    lone = [
        f"only the {word} sweep has the key {key}; --where keeps one of its values"
        for word, own, (other, _) in (("first", varied[0], second), ("second", varied[1], first))
        for key in own
        if key not in other.keys
    ]
    if lone:
        raise InputError(lone)
    keys = tuple(dict.fromkeys([*varied[0], *varied[1]]))
    if chosen is not None and chosen not in keys:
        near = did_you_mean(chosen, keys) or f"; these do: {', '.join(keys) or 'none'}"
        raise InputError(f"--choose: no key {quote(chosen)} varies{near}")
    pick = chosen or next((key for key in CHOICES if key in keys), "")
    tables = [
        {tuple(row.get(key) for key in keys): row for row in rows} for _, rows in (first, second)
    ]
    common = [place for place in tables[0] if place in tables[1]]
    named = {objective(sweep.kind) for sweep, _ in (first, second)}
    figure = named.pop() if len(named) == 1 else "seconds"
    changes = [_change(figure, place, *(table[place] for table in tables)) for place in common]
    figures = {
        change.place: (before, after)
        for change in changes
        for before, after in [change.figures]
        if before is not None and after is not None
    }
    loud = [c for c in changes if c.states[0] != c.states[1]
            or abs(math.log(c.ratio or _SAME)) > math.log1p(max(tolerance, _SAME))]  # fmt: skip
    loud.sort(key=lambda c: -abs(math.log(c.ratio or _SAME)))
    questions, flipped = _flips(keys, pick, figures) if pick else (0, ())
    return Comparison(
        keys,
        len(common),
        (len(tables[0]) - len(common), len(tables[1]) - len(common)),
        tuple(loud),
        tuple(sorted(c.ratio for c in changes if c.place in figures)),
        pick,
        questions,
        flipped,
        tuple(dict.fromkeys(
            f"{row['topology']}: {row['warning']}"
            for _, rows in (first, second) for row in rows if row.get("warning")
        )),
        figure,
    )  # fmt: skip


def _change(
    figure: str, place: Place, before: Mapping[str, Any], after: Mapping[str, Any]
) -> CellChange:
    def read(row: Mapping[str, Any]) -> float | None:
        found = row.get(figure)
        return float(found) if row["state"] == DONE and found is not None else None

    reason = "" if after["state"] == DONE else after.get("reason") or ""
    return CellChange(place, (before["state"], after["state"]), (read(before), read(after)), reason)


def _flips(
    keys: Sequence[str], pick: str, figures: Mapping[Place, tuple[float, float]]
) -> tuple[int, tuple[Winner, ...]]:
    """How many questions have a winner in both, and those with another one.

    Of equals the first named wins.
    """
    at = list(keys).index(pick)
    questions = group_by(figures, lambda place: (*place[:at], *place[at + 1 :]))
    best = {
        question: (
            min(rivals, key=lambda place: figures[place][0]),
            min(rivals, key=lambda place: figures[place][1]),
        )
        for question, rivals in questions.items()
    }
    found = [
        Winner(question, (earlier[at], later[at]), figures[earlier], figures[later])
        for question, (earlier, later) in best.items()
        if figures[later][1] < figures[earlier][1]
    ]
    return len(questions), tuple(sorted(found, key=lambda w: -w.worth))
