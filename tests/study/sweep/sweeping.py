"""A small sweep in a process of its own, which tests disturb."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from pathlib import Path

from simreduce.errors import InputError
from simreduce.study.sweep import NAMES
from simreduce.study.sweep.engine import Here
from simreduce.study.sweep.grid import read_specification
from simreduce.study.sweep.running import CellRunner
from simreduce.study.sweep.store import Planned, Store

OVER = {
    "nodes": "2..6",
    "strategy": "ring,halving_doubling,direct",
    "size": "1K,1M",
    "jitter": "0.1",
    "seed": "1..2",
}


def plan(over=OVER, machine="switch:8") -> list[Planned]:
    return read_specification(machine, over, {}).plan()


def cells_of(places):
    return [place.cell for place in places if place.cell]


def answer(path: str, places: list[Planned], engine) -> None:
    """Compute what the database at `path` lacks."""
    with Store(path, write=True) as store, CellRunner(store, engine=engine()) as runner:
        store.begin("small", {}, places)
        for _ in runner.run(runner.missing(cells_of(places))):
            pass


def rows(path: str) -> dict[str, tuple]:
    """All values of every row, by digest; the file is whole."""
    with Store(path) as store:
        assert store.select("PRAGMA integrity_check")[1] == [("ok",)]
        names = ", ".join(f'"{name}"' for name in ("digest", *NAMES))
        found = store.select(f"SELECT {names} FROM rows")[1]  # noqa: S608
    assert len({digest for digest, *_ in found}) == len(found)
    return {digest: tuple(values) for digest, *values in found}


def expected(places: list[Planned]) -> dict[str, tuple]:
    """The rows of an undisturbed run in this process."""
    return {
        each.cell.digest: tuple(each.row.values[name] for name in NAMES)
        for answers in Here(4 << 30).run(cells_of(places))
        for each in answers
    }


def start(path: str, places: list[Planned], engine) -> multiprocessing.Process:
    process = multiprocessing.Process(target=answer, args=(path, places, engine))
    process.start()
    return process


def workers_of(process: multiprocessing.Process) -> list[int]:
    try:
        text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text("ascii")
    except OSError:
        return []
    return [int(each) for each in text.split()]


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 9)


def size(path: str) -> int:
    """Bytes of a file, 0 if it is not there."""
    return Path(path).stat().st_size if Path(path).exists() else 0


def begun(path: str) -> bool:
    """Whether the tables are in the file."""
    try:
        Store(path).close()
    except InputError:
        return False
    return True


def until(condition, seconds: float = 60.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
