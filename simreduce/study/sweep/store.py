"""The database of answers: one SQLite file, which survives `kill -9`, full disks and other readers.

`rows` has an answer for each digest, written as soon as it is there, with the whole question beside
it. `sweeps` says what was asked, `cells` which digest each place of a sweep has, with the values of
its keys as columns.

SQLite in WAL mode comes with Python, lets others read while a sweep writes, and keeps a row of a
commit through SIGKILL. `benchmarks/sweep_store.py` compares it with DuckDB.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from simreduce.errors import InputError, did_you_mean, quote, why_no_path
from simreduce.files import behind_links, is_file, read_start, reason
from simreduce.files.formats.syntax import read_json
from simreduce.study.sweep import (
    BENCH,
    KINDS,
    NAMES,
    STATES,
    TOO_LARGE,
    TYPES,
    WAITING,
    Cell,
    Figures,
    code,
    digest_of,
)
from simreduce.study.sweep.locking import locked

_OURS, _FORMAT = 0x53725377, 2
"""SQLite's `application_id` and `user_version` of our files."""
_READABLE = (1, 2)
"""Formats that can be read: an older one lacks columns."""
IN_MEMORY = ":memory:"
"""Instead of a path: rows that are kept nowhere."""
_BUSY = 30.0
"""Seconds for which a write waits for another one."""
OF_ROWS = {
    "digest": "TEXT PRIMARY KEY",
    "kind": "TEXT",
    "input": "TEXT",
    "version": "TEXT",
    "calibration": "TEXT",
    "calibration_digest": "TEXT",
    **TYPES,
    "memory_limit": "INTEGER",
    "taken": "REAL",
    "finished": "TEXT",
}
_SCHEMA = f"""
CREATE TABLE rows ({", ".join(f'"{name}" {kind}' for name, kind in OF_ROWS.items())})
  WITHOUT ROWID;
CREATE TABLE sweeps (
  id INTEGER PRIMARY KEY, name TEXT, kind TEXT, keys TEXT, specification TEXT, version TEXT,
  cells INTEGER, digest TEXT UNIQUE, started TEXT);
CREATE TABLE cells (
  sweep INTEGER, place INTEGER, digest TEXT, reason TEXT, PRIMARY KEY (sweep, place)) WITHOUT ROWID;
CREATE INDEX cells_by_digest ON cells (digest);
PRAGMA application_id = {_OURS};
PRAGMA user_version = {_FORMAT};
"""


MOST_KEYS = 500
"""Different keys of all sweeps of a file; SQLite takes 2,000 columns."""

_TURN = 100_000
"""Steps of SQLite, each some 10 ns, after which Python has a turn and may raise Ctrl-C."""

_BETWEEN_TURNS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 1 << 18,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 500,
}
"""What bounds a single step of a query that a user writes: the longest text, and pattern of LIKE.

Python has no turn within a step, and that of LIKE, `instr` or `replace` takes the product of two
lengths: with these, some seconds at most.
"""


_COLUMNS = ", ".join(f'"{name}"' for name in OF_ROWS)
_INTO = f"INTO rows ({_COLUMNS}) VALUES ({', '.join('?' * len(OF_ROWS))})"
_UPSERT = (
    f"INSERT {_INTO} ON CONFLICT (digest) DO UPDATE SET "
    + ", ".join(f'"{name}" = excluded."{name}"' for name in OF_ROWS)
    + " WHERE state IN ('too_large', 'killed', 'failed')"
)
_LAST = ("version", "calibration", "calibration_digest", "digest", "taken", "finished")
"""Columns of the table behind the row's own."""
_RESERVED = ("sweep", "place", "digest", "reason")


class Planned(NamedTuple):
    """A place of a sweep: its keys with their values, and its cell; or why there can be none."""

    settings: Mapping[str, Any]
    cell: Cell | None
    reason: str = ""


class CellAnswer(NamedTuple):
    """A cell, its row, and the seconds that it took; `memory_limit` is what its worker had."""

    cell: Cell
    row: Figures
    taken: float
    memory_limit: int = 0


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep in the database: `keys` that vary, and the `specification` they came from."""

    id: int
    name: str
    kind: str
    keys: tuple[str, ...]
    specification: Mapping[str, Any]
    version: str
    cells: int
    started: str


class StoreFull(InputError):  # noqa: N818 - what it is about
    """The disk took nothing: nothing of the transaction is in the file. `why` gives no advice."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; make room and start again")
        self.why = why


class Store(ExitStack):
    """An open file, until the end of a `with` block or `close`.

    With `write`, it is made if it is not there, and locked against another sweep. InputError if it
    is something else, or in use.
    """

    def __init__(self, path: str, *, write: bool = False) -> None:
        super().__init__()
        self.path = path
        with ExitStack() as opened:
            if write and path != IN_MEMORY:
                opened.enter_context(locked(path))
            self._db = _connect(path, opened, write=write)
            self.push(opened.pop_all())

    def begin(self, name: str, specification: Mapping[str, Any], plan: Sequence[Planned]) -> Sweep:
        """The sweep with this plan, which may be there already. StoreFull if the disk is."""
        keys = tuple(dict.fromkeys(key for planned in plan for key in planned.settings))
        listed = [
            [p.cell.digest if p.cell else p.reason, [_plain(p.settings.get(k)) for k in keys]]
            for p in plan
        ]
        digest = digest_of([keys, listed])
        if known := self.sweeps("WHERE digest = ?", digest):
            return known[0]
        kind = next((p.cell.kind for p in plan if p.cell), BENCH)
        values = (
            name, kind, json.dumps(keys), json.dumps(specification, default=str), code(), len(plan),
            digest, _now(),
        )  # fmt: skip
        with self._transaction() as db:
            self._add_columns(keys)
            cursor = db.execute(
                "INSERT INTO sweeps (name, kind, keys, specification, version, cells, digest,"
                " started) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values,
            )  # fmt: skip
            columns = ", ".join(("sweep", "place", "digest", "reason", *map(_column, keys)))
            marks = ", ".join("?" * (4 + len(keys)))
            db.executemany(
                f"INSERT INTO cells ({columns}) VALUES ({marks})",
                (
                    (cursor.lastrowid, place, p.cell.digest if p.cell else None, p.reason, *found)
                    for place, (p, (_, found)) in enumerate(zip(plan, listed, strict=True))
                ),
            )
        return self.sweeps("WHERE digest = ?", digest)[0]

    def _add_columns(self, keys: Iterable[str]) -> None:
        """A column of `cells` for each new key."""
        there = {row[1].casefold() for row in self._db.execute("PRAGMA table_info(cells)")}
        for key in keys:
            if _name(key).casefold() not in there:
                if len(there) >= MOST_KEYS:
                    raise InputError(f"{self.path}: more than {MOST_KEYS} keys; use another file")
                self._db.execute(f"ALTER TABLE cells ADD COLUMN {_column(key)}")
                there.add(_name(key).casefold())

    def put(self, answers: Iterable[CellAnswer]) -> None:
        """Write rows, all or none.

        A digest that has a row keeps it, unless that was too large for less memory, or of a worker
        that ended. StoreFull if the disk takes none.
        """
        with self._transaction() as db:
            db.executemany(_UPSERT, map(_values, answers))

    def get(self, digest: str) -> Figures | None:
        """The row of a digest, if there is one."""
        names = ", ".join(map(quoted, NAMES))
        found = self._fetch(f"SELECT {names} FROM rows WHERE digest = ?", (digest,))
        return Figures(**dict(zip(NAMES, found[0], strict=True))) if found else None

    def finished(self, *, memory: int = 0, retry: bool = False) -> set[str]:
        """Digests that need no work.

        With `retry`, cells that killed workers or failed do need work; with more `memory` than a
        row was too large for, so does that row.
        """
        again = "state IN ('killed', 'failed')" if retry else "0"
        found = self._fetch(
            f"SELECT digest FROM rows WHERE NOT ({again}) AND NOT (state = ? AND memory_limit < ?)",
            (TOO_LARGE, memory),
        )
        return {digest for (digest,) in found}

    def copy_from(self, path: str, digests: Sequence[str]) -> int:
        """Copy the rows of another file that answer these digests, and return how many.

        A file of an older version has none: digests are of versions.
        """
        with Store(path) as other:
            if other._fetch("PRAGMA user_version") != self._fetch("PRAGMA user_version"):
                return 0
            count = 0
            for first in range(0, len(digests), 500):
                some = digests[first : first + 500]
                found = other._fetch(
                    f"SELECT {_COLUMNS} FROM rows WHERE state = 'done' AND digest IN"
                    f" ({', '.join('?' * len(some))})",
                    some,
                )
                with self._transaction() as db:
                    db.executemany(f"INSERT OR IGNORE {_INTO}", found)
                count += len(found)
        return count

    def sweeps(self, where: str = "", *values: object) -> list[Sweep]:
        """All sweeps, or those that fit a condition, in the order in which they began."""
        found = self._fetch(
            "SELECT id, name, kind, keys, specification, version, cells, started FROM sweeps "
            f"{where} ORDER BY id",
            values,
        )
        return [_sweep(self.path, *each) for each in found]

    def sweep(self, number: int | None = None) -> Sweep:
        """The sweep of that number, else the last. InputError if there is none."""
        known = self.sweeps()
        if not (found := [s for s in known if number in (None, s.id)]):
            numbers = ", ".join(str(s.id) for s in known)
            lacks = f"no sweep {number}; there are {numbers}" if numbers else "has no sweep yet"
            raise InputError(f"{self.path}: {lacks}")
        return found[-1]

    def show(self, sweep: int | None = None) -> tuple[Sweep, tuple[str, ...]]:
        """Make the temporary view `sweep` of all cells of a sweep, the last unless given.

        Returns the sweep with the columns: keys, then values, then where they come from.
        """
        chosen = self.sweep(sweep)
        keys = [_name(key) for key in chosen.keys]
        taken = {key.casefold() for key in keys}
        values = [name for name in NAMES if name not in taken]
        last = [name for name in _LAST if name not in taken]
        shown = [f"c.{_column(key)} AS {quoted(_name(key))}" for key in chosen.keys]
        special = {
            "state": "CASE WHEN c.digest IS NULL THEN 'refused' ELSE"
            f" coalesce(r.state, '{WAITING}') END AS state",
            "reason": "coalesce(nullif(c.reason, ''), r.reason, '') AS reason",
            "digest": "c.digest AS digest",
        }
        there = {row[1] for row in self._fetch("PRAGMA table_info(rows)")}
        placed = {row[1].casefold() for row in self._fetch("PRAGMA table_info(cells)")}
        if lacking := [key for key in chosen.keys if _name(key).casefold() not in placed]:
            _refuse(self.path, f"{_DAMAGED} cells have no {quote(lacking[0])}")
        plain = {name: f'r."{name}"' if name in there else "NULL" for name in (*values, *last)}
        shown += [special.get(name, f'{of} AS "{name}"') for name, of in plain.items()]
        self._fetch("DROP VIEW IF EXISTS temp.sweep")
        self._fetch(
            f"CREATE TEMP VIEW sweep AS SELECT {', '.join(shown)} FROM main.cells c"
            f" LEFT JOIN main.rows r ON r.digest = c.digest WHERE c.sweep = {chosen.id}"
            " ORDER BY c.place"
        )
        return chosen, (*keys, *values, *last)

    def select(self, query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Columns and rows of a query. InputError says what SQLite does not understand of it."""
        before = [(each, self._db.setlimit(each, most)) for each, most in _BETWEEN_TURNS.items()]
        try:
            found = self._db.execute(query)
            return [each[0] for each in found.description], found.fetchall()
        except sqlite3.Error as error:
            raise _read_error(self.path, error, self._explain(str(error))) from None
        finally:
            for each, most in before:
                self._db.setlimit(each, most)

    def _explain(self, fault: str) -> str:
        """What SQLite says, with the column that is meant."""
        if not (name := fault.partition("no such column: ")[2]):
            return fault
        shown = self._db.execute("SELECT name FROM pragma_table_info('sweep')")
        return fault + did_you_mean(name, [column for (column,) in shown])

    def table(self, sweep: int | None = None) -> list[dict[str, Any]]:
        """A dictionary for each cell of a sweep, the last unless given, in its order."""
        _, columns = self.show(sweep)
        names = ", ".join(map(quoted, columns))
        _, rows = self.select(f"SELECT {names} FROM sweep")
        return [dict(zip(columns, row, strict=True)) for row in rows]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing is written. StoreFull if the disk takes none."""
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
        except sqlite3.OperationalError as error:
            if _is_full(error):
                raise StoreFull(f"{self.path}: {error}") from None
            raise InputError(f"{self.path}: cannot be written: {error}") from None
        except sqlite3.DatabaseError as error:
            raise _read_error(self.path, error, f"{self.path}: {error}") from None

    def _fetch(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query of ours. InputError if the file is damaged, or cannot be read."""
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise _read_error(self.path, error, f"{self.path}: {error}") from None


_DAMAGED = "is damaged:"


def _sweep(path: str, number: object, *fields: Any) -> Sweep:
    """A row of the table of sweeps. InputError if it is none that a sweep has written."""
    name, kind, keys, specification, version, cells, started = fields
    try:
        keys, specification = read_json(keys, path), read_json(specification, path)
    except (TypeError, InputError):
        keys = None
    if not (
        isinstance(number, int) and kind in KINDS and isinstance(cells, int) and cells >= 0
        and isinstance(keys, list) and isinstance(specification, dict)
        and all(isinstance(each, str) for each in (name, version, started, *keys))
    ):  # fmt: skip
        _refuse(path, f"{_DAMAGED} its sweep {quote(number)} is none that simreduce wrote")
    return Sweep(number, name, kind, tuple(keys), specification, version, cells, started)


def _values(answer: CellAnswer) -> tuple[Any, ...]:
    cell, row = answer.cell, answer.row
    values = row.values | {
        "digest": cell.digest,
        "kind": cell.kind,
        "input": json.dumps({k: getattr(cell, k) for k in ("document", "folder", "contents")}),
        "version": cell.code,
        "calibration": cell.table.get("calibration", "nominal"),
        "calibration_digest": cell.contents.get("calibration", ""),
        "memory_limit": answer.memory_limit,
        "taken": answer.taken,
        "finished": _now(),
    }
    return tuple(values[name] for name in OF_ROWS)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def quoted(name: str) -> str:
    """The name of a column, as SQL has it."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _name(key: str) -> str:
    """The column of a key: its own name, unless that is one of ours."""
    return f"{key}_" if key.casefold() in _RESERVED else key


def _column(key: str) -> str:
    return quoted(_name(key))


def _plain(value: object) -> object:
    """A value as SQLite takes it."""
    if isinstance(value, bool):
        return int(value)
    return value if isinstance(value, int | float | str | None) else json.dumps(value)


def _read_error(path: str, error: sqlite3.Error, words: str) -> InputError:
    """An error in `words`, or advice on a damaged file.

    Raises the KeyboardInterrupt at which SQLite stopped, if it did: `_TURN` lets it be raised.
    """
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_INTERRUPT:
        raise KeyboardInterrupt from None
    rescue = f"`sqlite3 {path} .recover | sqlite3 NEW.db` saves what can be read"
    damaged = code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    return InputError(f"{path}: is damaged ({error}); {rescue}" if damaged else words)


def _is_full(error: sqlite3.Error) -> bool:
    """Whether the disk took nothing."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def _connect(path: str, opened: ExitStack, *, write: bool) -> sqlite3.Connection:
    """The file at `path`, until `opened` ends; with `write`, made if it is not there.

    InputError if it is none of ours, or damaged.
    """
    place = Path(path)
    try:
        if write:
            behind_links(path)  # or says whose link it is
            db = sqlite3.connect(path, timeout=_BUSY, isolation_level=None)
        elif is_file(path):
            name = f"{place.absolute().as_uri()}?mode=ro"
            db = sqlite3.connect(name, timeout=_BUSY, isolation_level=None, uri=True)
        else:
            read_start(place, 1)  # says why
            _refuse(path, "is no file")
        opened.callback(db.close)
        if not write:  # else Ctrl-C waits for the end of the transaction
            db.set_progress_handler(lambda: 0, _TURN)
        _prepare(path, db, write=write)
    except sqlite3.Error as error:
        words = f"{path}: is no database of sweeps: {error}"
        fault = _read_error(path, error, words)
        if place.is_dir():
            _refuse(path, "is a directory, not a file")
        if _is_full(error):
            raise StoreFull(f"{path}: {error}") from None
        raise (fault if is_database(path) else InputError(words)) from None
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: {reason(error)}") from None
    except ValueError as error:  # a NUL
        raise InputError(f"{quote(path)}: {why_no_path(path, error)}") from None
    return db


def is_database(path: str) -> bool:
    """Whether a file begins as SQLite's do."""
    try:
        return is_file(path) and read_start(Path(path), 16) == b"SQLite format 3\0"
    except (OSError, ValueError):
        return False


def _prepare(path: str, db: sqlite3.Connection, *, write: bool) -> None:
    """Make the tables if there are none; InputError for a database that no sweep has made."""
    if write and not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
    if db.execute("PRAGMA application_id").fetchone()[0] != _OURS:
        empty = not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        _refuse(path, "has no sweep yet" if empty else "is a database of something else")
    made = db.execute("PRAGMA user_version").fetchone()[0]
    if made not in _READABLE:
        _refuse(path, f"was written by another simreduce (format {made})")
    if write and made != _FORMAT:
        _refuse(path, "was written by an older simreduce, and can be read only; give another --db")
    _check_values(path, db)
    if write:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")  # through power failures too


def _check_values(path: str, db: sqlite3.Connection) -> None:
    """InputError for a value that no sweep has written, such as a time below 0."""
    if found := db.execute(
        "SELECT name FROM sqlite_master WHERE type <> 'table' AND name IN ('rows', 'cells')"
    ).fetchall():
        _refuse(path, f"{_DAMAGED} {found[0][0]} is no table")
    for table, names, wrong in (
        ("rows", OF_ROWS, _wrong_value),
        ("cells", ("sweep", "place", "digest", "reason"), _wrong_setting),
    ):
        there = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        if lacking := {*names} - {*there} if table == "cells" else {"digest", "state"} - {*there}:
            _refuse(path, f"{_DAMAGED} {table} have no {min(lacking)}")
        shown = {name: name.replace("'", "''") for name in there if wrong(name)}
        which = " ".join(f"WHEN {wrong(name)} THEN '{text}'" for name, text in shown.items())
        found = db.execute(
            f"SELECT * FROM (SELECT CASE {which} END AS wrong FROM {table})"
            " WHERE wrong IS NOT NULL LIMIT 1"
        ).fetchall()
        if found:
            _refuse(path, f"{_DAMAGED} a {found[0][0]} of its {table} is none")


def _wrong_value(name: str) -> str:
    """When a value of a column of `rows` is wrong, in SQL; "" for a column of others."""
    kind, column = OF_ROWS.get(name, "").partition(" ")[0], quoted(name)
    if name == "state":
        return f"{column} IS NULL OR {column} NOT IN {STATES}"
    if kind == "TEXT":
        return f"typeof({column}) NOT IN ('text', 'null')"
    number = "'integer', 'null'" if kind == "INTEGER" else "'real', 'integer', 'null'"
    beyond = f"{column} < 0 OR {column} > 1e308"
    return f"typeof({column}) NOT IN ({number}) OR {beyond}" if kind else ""


def _wrong_setting(name: str) -> str:
    """When a value of a column of `cells` is wrong, in SQL."""
    column = quoted(name)
    if name in ("sweep", "place"):
        return f"typeof({column}) <> 'integer'"
    if name in ("digest", "reason"):
        return f"typeof({column}) NOT IN ('text', 'null')"
    return f"typeof({column}) = 'blob' OR typeof({column}) = 'real' AND abs({column}) > 1e308"


def _refuse(path: str, why: str) -> NoReturn:
    raise InputError(f"{path}: {why}")
