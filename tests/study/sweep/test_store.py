"""The database: what is in it stays, one writer at a time, and foreign files are left alone."""

from __future__ import annotations

import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from simreduce.errors import InputError
from simreduce.study.sweep import Figures
from simreduce.study.sweep.question import read_question
from simreduce.study.sweep.store import CellAnswer, Planned, Store, StoreFull

QUESTION = read_question("switch:4")


def plan(*sizes):
    return [Planned({"size": size}, QUESTION.cell({"size": size})) for size in sizes]


def answer(planned, **values):
    return CellAnswer(
        planned.cell, Figures(**{"state": "done", "seconds": 1.0, **values}), 0.5, 1 << 30
    )


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "rows.db")


def test_rows_come_back_as_they_were(path):
    places = plan(1024, 2048, 4096)
    with Store(path, write=True) as store:
        store.begin("some", {"over": "size"}, places)
        store.put([answer(places[0], seconds=0.1 + 0.2, chosen="ring", wrong=0)])
    with Store(path) as store:
        rows = store.table()
        assert store.get(places[0].cell.digest).seconds == 0.1 + 0.2
        assert store.get(places[1].cell.digest) is None
        assert store.select("PRAGMA integrity_check")[1] == [("ok",)]
    assert [row["state"] for row in rows] == ["done", "waiting", "waiting"]
    assert rows[0] | {"seconds": 0.1 + 0.2, "size": 1024, "taken": 0.5} == rows[0]
    assert rows[0]["version"] == places[0].cell.code
    assert rows[0]["calibration_digest"]


def test_a_sweep_that_is_there_goes_on_and_another_shares_its_rows(path):
    places = plan(1024, 2048)
    with Store(path, write=True) as store:
        one = store.begin("some", {}, places)
        store.put(map(answer, places))
        again = store.begin("some", {}, plan(1024, 2048))
        other = store.begin("more", {}, [*plan(2048), Planned({"size": 9}, None, "why not")])

        assert again == one != other
        assert [row["state"] for row in store.table(other.id)] == ["done", "refused"]
        assert store.table(other.id)[1]["reason"] == "why not"
        assert [row["size"] for row in store.table(one.id)] == [1024, 2048]


def test_a_row_is_kept_but_what_was_too_large_or_killed_may_be_known_later(path):
    [place] = plan(1024)
    with Store(path, write=True) as store:
        store.begin("some", {}, [place])
        store.put([answer(place, state="too_large", seconds=None)])
        assert store.finished(memory=1 << 30) == {place.cell.digest}
        assert store.finished(memory=2 << 30) == set()
        store.put([answer(place, state="killed", seconds=None)])
        assert store.finished() == {place.cell.digest}
        assert store.finished(retry=True) == set()
        store.put([answer(place, seconds=2.0)])
        store.put([answer(place, seconds=3.0)])
        assert store.get(place.cell.digest).seconds == 2.0


def test_two_sweeps_on_one_file_are_refused_but_it_may_be_read(path):
    code = (
        "import sys; from simreduce.study.sweep.store import Store\n"
        f"with Store({path!r}, write=True): print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(
            InputError, match=rf"another sweep is writing it \(process {holder.pid}"
        ):
            Store(path, write=True)
        with Store(path) as store:
            assert store.sweeps() == []
        holder.kill()
    Store(path, write=True).close()
    assert not Path(f"{path}.lock").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"no database at all, " * 99, "is no database"), (b"", "no sweep yet")],
)
def test_a_file_of_something_else_is_not_opened(path, content, words):
    Path(path).write_bytes(content)
    with pytest.raises(InputError, match=words):
        Store(path)


def test_a_file_of_an_older_version_can_be_read_but_not_written(path):
    """What its rows lack is empty, so that versions can be compared."""
    [place] = plan(1024)
    with Store(path, write=True) as store:
        store.begin("some", {}, [place])
        store.put([answer(place)])
    with sqlite3.connect(path) as db:
        db.execute("ALTER TABLE rows DROP COLUMN dropped")
        db.execute("PRAGMA user_version = 1")
    db.close()
    with Store(path) as store:
        [row] = store.table()
    assert (row["seconds"], row["dropped"]) == (1.0, None)
    with pytest.raises(InputError, match="older simreduce, and can be read only"):
        Store(path, write=True)


def test_a_damaged_file_is_said_to_be_damaged_whoever_reads_it(path, tmp_path):
    """And how to save what is left; no traceback."""
    places = plan(*range(1024, 1424, 4))
    with Store(path, write=True) as store:
        store.begin("some", {}, places)
        store.put(map(answer, places))
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[:4096] + b"\x5a" * (len(whole) - 4096))
    digests = [place.cell.digest for place in places]

    for use in (
        lambda store: store.table(),
        lambda store: store.get(digests[0]),
        lambda store: store.finished(),
        lambda store: store.begin("more", {}, plan(4)),
        lambda store: store.put([answer(places[0])]),
    ):
        with pytest.raises(InputError, match=r"rows\.db: is damaged .*\.recover"):  # noqa: SIM117
            with Store(path, write=True) as store:
                use(store)
    with (
        Store(str(tmp_path / "mine.db"), write=True) as mine,
        pytest.raises(InputError, match=r"rows\.db: is damaged"),
    ):
        mine.copy_from(path, digests)
    Path(path).write_bytes(whole[:5000])
    with pytest.raises(InputError, match="is damaged"):
        Store(path)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE rows SET seconds = -1e-9",
        "UPDATE rows SET seconds = 9e999",
        "UPDATE rows SET taken = -9e999",
        "UPDATE rows SET high = 'late'",
        "UPDATE rows SET ranks = 1.5",
        "UPDATE rows SET chosen = x'00'",
        "UPDATE rows SET state = 'don'",
        "UPDATE rows SET state = NULL",
        "UPDATE cells SET size = x'00'",
        "UPDATE cells SET size = 9e999",
        "UPDATE cells SET place = 'here'",
        "UPDATE cells SET digest = x'07'",
        "ALTER TABLE cells RENAME COLUMN size TO sizes",
        "ALTER TABLE cells RENAME COLUMN reason TO reasons",
        "ALTER TABLE rows RENAME COLUMN state TO states",
        "ALTER TABLE rows RENAME TO r; CREATE VIEW rows AS SELECT * FROM r",
        "DROP TABLE sweeps",
        "UPDATE sweeps SET keys = '5'",
        "UPDATE sweeps SET keys = '[5]'",
        "UPDATE sweeps SET keys = '{}'",
        "UPDATE sweeps SET keys = NULL",
        "UPDATE sweeps SET keys = '[' || replace(hex(zeroblob(50000)), '00', '[')",
        "UPDATE sweeps SET specification = 'no'",
        "UPDATE sweeps SET specification = '[]'",
        "UPDATE sweeps SET kind = 'benches'",
        "UPDATE sweeps SET cells = -1",
        "UPDATE sweeps SET cells = 'many'",
        "UPDATE sweeps SET version = x'ff'",
        "UPDATE sweeps SET name = cast(x'ff' AS TEXT)",
    ],
)
def test_a_value_that_no_sweep_wrote_is_one_fault(path, damage):
    """Not a traceback of whoever meets it first, and no figure."""
    [place] = plan(1024)
    with Store(path, write=True) as store:
        store.begin("some", {}, [place])
        store.put([answer(place)])
    with sqlite3.connect(path) as db:
        db.executescript(damage)
    db.close()

    with pytest.raises(InputError, match=r"^\S+rows\.db: ") as fault, Store(path) as store:
        store.table()
    assert len(fault.value.problems) == 1


def test_ctrl_c_stops_sqlite_too(path):
    """It works for hours, if that is what it was asked, and has nobody else look."""
    [place] = plan(1024)
    with Store(path, write=True) as store:
        store.begin("some", {}, [place])
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT max(x) FROM c"
    timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
    with Store(path) as store:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            store.select(endless)
        assert store.select("SELECT 1")[1] == [(1,)]


@pytest.mark.parametrize(
    "condition",
    [
        "hex(zeroblob({n})) LIKE '%' || hex(zeroblob({n} / 50)) || '1%'",
        "hex(zeroblob({n})) GLOB '*' || hex(zeroblob({n} / 50)) || '1*'",
        "instr(hex(zeroblob({n})), hex(zeroblob({n} / 2)) || '1')",
        "replace(hex(zeroblob({n})), hex(zeroblob({n} / 2)) || '1', '') = ''",
        "'a' LIKE '%' || hex(zeroblob({n} / 50)) || '%'",
    ],
)
def test_no_step_of_a_query_keeps_ctrl_c_waiting(path, condition):
    """A step of 1 MB would take minutes, in which Python has no turn: it is refused at once."""
    with Store(path, write=True) as store:
        store.begin("some", {}, [plan(1024)[0]])
    began = time.process_time()
    with Store(path) as store:
        with pytest.raises(InputError, match=r"too (big|complex)"):
            store.select(f"SELECT {condition.format(n=500_000)}")
        store.select(f"SELECT {condition.format(n=5_000)}")
    assert time.process_time() - began < 10


def test_long_questions_are_kept_beside_short_queries(path):
    """Limits of a query hold for what it reads, not for what the file has besides."""
    [place] = plan(1024)
    with Store(path, write=True) as store:
        store.begin("some", {"long": "x" * (1 << 20)}, [place])
        store.put([answer(place)])
    with Store(path, write=True) as store, store._transaction() as db:
        db.execute("UPDATE rows SET input = ?", ("x" * (1 << 20),))
    with Store(path) as store:
        assert [row["size"] for row in store.table()] == [1024]
        assert len(store.sweep().specification["long"]) == 1 << 20


def test_a_database_of_something_else_is_left_alone(path):
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE other (x)")
    db.close()
    for write in (False, True):
        with pytest.raises(InputError, match="something else"):
            Store(path, write=write)
    with sqlite3.connect(path) as db:
        assert [name for (name,) in db.execute("SELECT name FROM sqlite_master")] == ["other"]
    db.close()


def test_keys_with_any_name_are_columns(path):
    settings = {'step."rate"': 1, "reason": "x", "Digest": 2, "links.a b.c": 3}
    with Store(path, write=True) as store:
        store.begin("odd", {}, [Planned(settings, None, "no")])
        [row] = store.table()

    assert [row[key] for key in ('step."rate"', "reason_", "Digest_", "links.a b.c")] == [
        1, "x", 2, 3,
    ]  # fmt: skip
    assert row["reason"] == "no"


def test_rows_of_another_file_are_taken(path, tmp_path):
    places = plan(1024, 2048, 4096)
    other = str(tmp_path / "other.db")
    with Store(other, write=True) as store:
        store.begin("some", {}, places)
        store.put(map(answer, places[:2]))
    with Store(path, write=True) as store:
        store.begin("mine", {}, places)
        assert store.copy_from(other, [place.cell.digest for place in places]) == 2
        assert [row["state"] for row in store.table()] == ["done", "done", "waiting"]


def test_a_full_disk_takes_nothing_and_harms_nothing(path):
    """The limit on the size of files stands for it."""
    places = plan(*range(1024, 1024 + 400 * 4, 4))
    with Store(path, write=True) as store:
        store.begin("some", {}, places)
        store.put([answer(places[0])])
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        most = max(Path(name).stat().st_size for name in (path, f"{path}-wal"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (most + 50_000, hard))
        try:
            with pytest.raises(StoreFull):
                store.put(map(answer, places))
            with pytest.raises(InputError, match="make room and start again"):
                store.begin("more", {}, plan(*range(4, 40_000, 4)))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert [row["state"] for row in store.table()].count("done") == 1
        store.put(map(answer, places))
        assert {row["state"] for row in store.table()} == {"done"}
        assert store.select("PRAGMA integrity_check")[1] == [("ok",)]


def test_a_row_without_a_state_is_none():
    with pytest.raises(TypeError):
        Figures()
    assert Figures(state="done", seconds=1.0).values["seconds"] == 1.0
