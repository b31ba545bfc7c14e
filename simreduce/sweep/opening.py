"""Opening the database of rows: its tables, and what is wrong with a file that is none."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import NoReturn

from simreduce.errors import InputError, quote
from simreduce.sweep.columns import TYPES

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


def damage(path: str, error: sqlite3.Error) -> str:
    """What to do about a damaged file; "" if the error is another."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return ""
    rescue = f"`sqlite3 {path} .recover | sqlite3 NEW.db` saves what can be read"
    return f"{path}: is damaged ({error}); {rescue}"


def is_full(error: sqlite3.Error) -> bool:
    """Whether the disk took nothing."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def connect(path: str, *, write: bool) -> sqlite3.Connection:
    """The file at `path`; with `write`, made if it is not there. InputError if it is none of ours,
    or damaged.
    """
    place = Path(path)
    try:
        if write:
            db = sqlite3.connect(path, timeout=_BUSY, isolation_level=None)
        elif place.is_file():
            name = place.absolute().as_uri()
            db = sqlite3.connect(f"{name}?mode=ro", timeout=_BUSY, isolation_level=None, uri=True)
        else:
            _refuse(path, "is a folder" if place.is_dir() else "there is no such file")
        if write and not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
        _check_ours(path, db, write=write)
        if write:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")  # through power failures too
    except sqlite3.Error as error:
        if is_full(error):
            raise InputError(f"{path}: {error}; make room and start again") from None
        damaged = place.is_file() and _starts_as_ours(place) and damage(path, error)
        raise InputError(damaged or f"{path}: is no database of sweeps: {error}") from None
    except InputError:
        raise
    except ValueError as error:  # a NUL
        raise InputError(f"{quote(path)}: {error}") from None
    return db


def _starts_as_ours(place: Path) -> bool:
    """Whether the head of a file is that of SQLite."""
    with place.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"


def _check_ours(path: str, db: sqlite3.Connection, *, write: bool) -> None:
    """InputError for a database that no sweep has made."""
    if db.execute("PRAGMA application_id").fetchone()[0] != _OURS:
        empty = not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        _refuse(path, "has no sweep yet" if empty else "is a database of something else")
    made = db.execute("PRAGMA user_version").fetchone()[0]
    if made not in _READABLE:
        _refuse(path, f"was written by another simreduce (format {made})")
    if write and made != _FORMAT:
        _refuse(path, "was written by an older simreduce, and can be read only; give another --db")


def _refuse(path: str, why: str) -> NoReturn:
    raise InputError(f"{path}: {why}")
