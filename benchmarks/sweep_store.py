"""SQLite beside DuckDB as the database of sweeps: `python benchmarks/sweep_store.py [ROWS]`.

Prints CPU seconds to write rows one transaction each and in bulk, and to answer three queries of
`simreduce table` (filter and sort, best of each group, one cell), and how many rows are left of
those that were committed when the writer is killed. DuckDB is left out where it is not installed.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from simreduce.study.sweep import Figures
from simreduce.study.sweep.question import read_question
from simreduce.study.sweep.store import CellAnswer, Planned, Store

FIGURES = 12
"""Columns of figures of each row; `nodes`, `strategy` and `size` besides."""
QUERIES = {
    "filter and sort": "SELECT * FROM t WHERE nodes = 32 AND f0 < 0.01 ORDER BY f1 LIMIT 100",
    "best of each group": "SELECT nodes, size, min(f0) FROM t GROUP BY nodes, size ORDER BY 1, 2",
    "mean of a pivot": "SELECT nodes, strategy, avg(f2) FROM t GROUP BY nodes, strategy",
    "one row by its digest": "SELECT * FROM t WHERE digest = 'd7'",
}
COLUMNS = ["nodes INTEGER", "strategy VARCHAR", "size BIGINT",
           *(f"f{i} DOUBLE" for i in range(FIGURES))]  # fmt: skip


def rows(count):
    values = np.random.default_rng(1).random((count, FIGURES))
    for i in range(count):
        yield (f"d{i}", 1 << i % 10, f"s{i % 7}", 1 << i % 20, *values[i].tolist())


def connect(kind, path):
    if kind == "sqlite":
        db = sqlite3.connect(path, isolation_level=None)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        return db
    import duckdb  # noqa: PLC0415 - need not be there

    return duckdb.connect(path)


def create(db):
    db.execute(f"CREATE TABLE t (digest VARCHAR PRIMARY KEY, {', '.join(COLUMNS)})")
    marks = ", ".join("?" * (len(COLUMNS) + 1))
    return f"INSERT INTO t VALUES ({marks})"  # noqa: S608 - our own


def seconds(work):
    before, began = os.times(), time.perf_counter()
    work()
    after = os.times()
    return sum(after[:2]) - sum(before[:2]), time.perf_counter() - began


def measure(kind, count, folder):
    db = connect(kind, str(folder / f"{kind}.db"))
    insert = create(db)
    some = list(rows(min(count, 1000)))

    def one_by_one():
        for row in some:
            db.execute(insert, row)

    def in_bulk():
        db.execute("BEGIN")
        db.executemany(insert, list(rows(count))[len(some) :])
        db.execute("COMMIT")

    def say(what, found):
        print(f"{kind:7} {what:32} {found[0]:9.3f} s CPU {found[1]:9.3f} s", flush=True)

    say(f"{len(some)} rows, a commit each", seconds(one_by_one))
    if kind == "sqlite" or count <= 20_000:
        say(f"{count - len(some)} rows in one commit", seconds(in_bulk))
    else:  # executemany of DuckDB takes a millisecond for each row
        _bulk_by_arrow(db, count, len(some), say)
    for name, query in QUERIES.items():
        say(name, seconds(lambda query=query: db.execute(query).fetchall()))
    db.close()


def _bulk_by_arrow(db, count, done, say):
    columns = [*zip(*list(rows(count))[done:], strict=True)]
    names = ["digest", "nodes", "strategy", "size", *(f"f{i}" for i in range(FIGURES))]
    found = {name: np.array(column) for name, column in zip(names, columns, strict=True)}

    def work():
        db.register("found", found)
        db.execute("INSERT INTO t SELECT * FROM found")

    say(f"{count - done} rows from arrays", seconds(work))


def _write_for_ever(kind, path, pipe):
    db = connect(kind, path)
    insert = create(db)
    for row in rows(10_000_000):
        db.execute(insert, row)
        pipe.send_bytes(row[0].encode())


def kill(kind, times, folder):
    """Kill a writer, and count what is left of what it had committed."""
    lost = damaged = 0
    for turn in range(times):
        path = str(folder / f"{kind}-{turn}.db")
        ours, theirs = multiprocessing.Pipe()
        writer = multiprocessing.Process(target=_write_for_ever, args=(kind, path, theirs))
        writer.start()
        theirs.close()
        time.sleep(0.3 + 0.01 * turn)
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        committed = set()
        try:
            while ours.poll():
                committed.add(ours.recv_bytes().decode())
        except EOFError:
            pass
        try:
            db = connect(kind, path)
            there = {digest for (digest,) in db.execute("SELECT digest FROM t").fetchall()}
            db.close()
        except Exception as error:  # noqa: BLE001 - whatever a damaged file raises
            damaged += bool(committed)
            print(kind, turn, error)
            continue
        lost += len(committed - there)
    print(f"{kind:7} killed {times} times: {lost} committed rows lost, {damaged} files damaged")


def ours(count, folder):
    """Our own database: rows with the whole question."""
    question = read_question("switch:8")
    sizes = [4 * (i + 1) for i in range(count)]

    def plan():
        return [Planned({"size": size}, question.cell({"size": size})) for size in sizes]

    places = []
    print(f"plan    {count} cells {seconds(lambda: places.extend(plan()))}")
    with Store(str(folder / "ours.db"), write=True) as store:
        print(f"begin   {seconds(lambda: store.begin('many', {}, places))}")
        row = Figures(state="done", seconds=1.0, busbw=2.0, chosen="ring", ranks=8)
        answers = (CellAnswer(place.cell, row, 0.1) for place in places)
        print(f"put     {seconds(lambda: store.put(answers))}")
        store.show()
        for query in ("SELECT count(*), avg(seconds) FROM sweep",
                      "SELECT * FROM sweep WHERE size < 4000 ORDER BY -seconds"):  # fmt: skip
            print(f"{query} {seconds(lambda query=query: store.select(query))}")


if __name__ == "__main__":
    many = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    known = ["sqlite", *(["duckdb"] if importlib.util.find_spec("duckdb") else [])]
    for each in known:
        with tempfile.TemporaryDirectory() as scratch:
            measure(each, many, Path(scratch))
            kill(each, 10, Path(scratch))
    with tempfile.TemporaryDirectory() as scratch:
        ours(many // 10, Path(scratch))
