"""`simreduce sweep` and `simreduce table`, as a user meets them."""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
import sys

import pytest

import simreduce as sr
from simreduce.study.sweep.engine import EngineGone

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
OVER = ("--over", "nodes=2,3,4", "--over", "strategy=ring,halving_doubling", "--over", "size=1K,1M")


@pytest.fixture
def db(simreduce, tmp_path):
    """A database with a sweep of 12 cells, two of which are refused."""
    path = tmp_path / "some.db"
    words = *OVER, "--over", "slow=none,gpu3=2", "--workers", "1", "--db", path
    assert simreduce("sweep", "switch:4", *words).status == 0
    return path


def test_a_sweep_says_what_it_did_and_the_second_time_does_nothing(
    simreduce, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    first = simreduce("sweep", "switch:4", *OVER)
    second = simreduce("sweep", "switch:4", *OVER)
    more = simreduce("sweep", "switch:4", *OVER, "--over", "collective=all_reduce,broadcast")

    assert first.status == second.status == more.status == 0
    assert re.search(
        r"^\d+ workers? with 4\.295 GB each; the largest took \S+ [MG]B$", first.err, re.MULTILINE
    )
    assert "switch-4.db: 12 done\n" in first.out == second.out
    assert second.err == "simreduce: 12 cells have rows already\n".replace("simreduce: ", "")
    assert "sweep 2, switch:4: 24 cells\n  switch-4.db: 12 done, 12 refused\n" in more.out
    assert "ring" in more.out.split("refused: ")[1]


def test_a_dry_run_counts(simreduce, tmp_path):
    found = simreduce("sweep", "dgx1v", "--over", "nodes=1..3", "--over", "nic=ib_edr,ib_hdr",
                      "--dry-run", "--db", tmp_path / "no.db")  # fmt: skip

    assert found.out == "6 cells, 0 refused, 1 equal to another\n"
    assert not (tmp_path / "no.db").exists()


@pytest.mark.parametrize(
    ("fault", "words", "status"),
    [(KeyboardInterrupt(), "stopped", 130), (EngineGone("no scheduler"), "no scheduler", 1)],
)
def test_a_sweep_that_ends_before_its_workers_start_says_how_to_go_on(
    simreduce, db, tmp_path, monkeypatch, fault, words, status
):
    """While it waits for a cluster's scheduler there are answers of another database already."""

    def never(*_):
        raise fault

    monkeypatch.setattr("simreduce.app.cli.sweep.Processes", never)
    found = simreduce("sweep", "switch:4", *OVER, "--from", db, "--db", tmp_path / "new.db")

    assert f"{words}; the same command goes on from here" in found.out
    assert "12 done" in found.out
    assert found.status == status


def test_a_sweep_without_an_answer_fails(simreduce, tmp_path):
    """So that a script sees it; and a file that is not there leaves no database."""
    words = "sweep", "switch:4", "--over", "gpus=8,9", "--db"
    none = simreduce(*words, ":memory:")
    lost = simreduce(*words, tmp_path / "a.db", "--from", tmp_path / "b.db")

    assert (none.status, lost.status) == (1, 2)
    assert "2 refused" in none.out
    assert [*tmp_path.iterdir()] == []


def test_every_fault_is_said_at_once(simreduce):
    status, _, err = simreduce(
        "sweep", "switch:4", "--over", "nodes=8..2", "--over", "size", "--set", "dtype=",
        "--sample", "sobel:4", "--memory", "1M", "--cluster", "slurn",
    )  # fmt: skip

    assert status == 2
    for words in ("--over size: must be KEY=VALUE", "--set dtype=: must be KEY=VALUE",
                  "over.nodes: '8..2' ends before it begins", "--sample: must be random:N",
                  "--memory: needs at least 67.11 MB", "--cluster: 'slurn' is none"):  # fmt: skip
        assert f"simreduce: {words}" in err
    assert simreduce("sweep", "switch:4").err == (
        "simreduce: switch:4: nothing varies; give --over KEY=VALUES\n"
    )


def test_rows_are_filtered_sorted_grouped_and_pivoted(simreduce, db):
    def rows(*options):
        found = simreduce("table", db, "--csv", "-", *options)
        assert found.status == 0, found.err
        return list(csv.DictReader(io.StringIO(found.out)))

    every = rows()
    done = [row for row in every if row["state"] == "done"]
    assert (len(every), len(done)) == (24, 16)
    assert rows("--where", "state = 'done'") == done
    assert {row["reason"].split(" (")[0] for row in every if row["state"] == "refused"} == {
        "switch:2: no device 'gpu3'", "switch:3: no device 'gpu3'",
    }  # fmt: skip
    by_time = rows("--where", "state = 'done'", "--sort", "-seconds")
    assert [float(row["seconds"]) for row in by_time] == sorted(
        (float(row["seconds"]) for row in done), reverse=True
    )
    for group in rows("--group", "nodes,size"):
        same = [r for r in done if (r["nodes"], r["size"]) == (group["nodes"], group["size"])]
        assert int(group["cells"]) == len(same)
        assert float(group["seconds"]) == min(float(row["seconds"]) for row in same)
    [best] = (
        rows("--group", "kind_of", "--where", "0")
        if False
        else rows("--group", "state", "--by", "-busbw")
    )
    assert float(best["busbw"]) == max(float(row["busbw"]) for row in done)
    calm = [row for row in done if row["slow"] == "none" and row["size"] == "1024"]
    pivot = rows("--where", "slow = 'none' AND size = 1024", "--pivot", "nodes,strategy,seconds")
    assert [(row["nodes"], row["strategy"], row["seconds"]) for row in calm] == [
        (row["nodes"], strategy, row[strategy])
        for row in pivot
        for strategy in ("ring", "halving_doubling")
    ]


@pytest.mark.parametrize("options", [("--where", "size > 1e12"), ("--limit", "0")])
def test_a_table_without_a_row_has_its_headings(simreduce, db, options):
    plain, csv_too = (simreduce("table", db, *options, *more) for more in ((), ("--csv", "-")))
    document = json.loads(simreduce("table", db, *options, "--json").out)

    assert plain.status == csv_too.status == 0
    assert "strategy  " in plain.out
    assert plain.out.endswith("\n# no row\n")
    assert csv_too.out.count("\n") == 1
    assert csv_too.out.startswith("nodes,strategy,size,slow,state,")
    assert document["rows"] == []


def test_the_document_has_every_digit_and_says_where_it_is_from(simreduce, db):
    document = json.loads(simreduce("table", db, "--json", "--where", "nodes = 4").out)
    [bench] = sr.bench("switch:4", "ring", "1K").rows

    assert document["command"] == "sweep"
    assert document["complete"] is True
    assert document["topology"] == "switch:4"
    assert document["keys"] == ["nodes", "strategy", "size", "slow"]
    assert document["states"] == {"done": 16, "refused": 8}
    assert document["rows"][0]["seconds"] == bench.seconds


def test_a_table_for_people_has_units(simreduce, db):
    out = simreduce("table", db, "--where", "nodes=4 AND slow='none'", "--limit", 1).out

    assert "sweep 1, switch:4: 24 cells\n# 16 done, 8 refused; calibration nominal\n" in out
    assert "#nodes" in out
    assert "(ms)" in out
    assert "(GB/s)" in out


def test_parquet_comes_back_with_types_and_units(simreduce, db, tmp_path):
    """Every cell as the document has it; columns without a value too, and the whole question."""
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "rows.parquet"
    document = json.loads(simreduce("table", db, "--parquet", file, "--json").out)
    found = parquet.read_table(file)

    assert found.to_pylist() == document["rows"]
    types = {field.name: str(field.type) for field in found.schema}
    assert [types[name] for name in ("nodes", "strategy", "seconds", "wrong", "memory", "low")] == [
        "int64", "string", "double", "int64", "int64", "double",
    ]  # fmt: skip
    units = {field.name: (field.metadata or {}).get(b"unit") for field in found.schema}
    assert [units[name] for name in ("seconds", "busbw", "size", "taken", "nodes")] == [
        b"s", b"B/s", b"B", b"s", None,
    ]  # fmt: skip
    about = json.loads(found.schema.metadata[b"simreduce"])
    assert about["specification"]["over"]["nodes"] == [2, 3, 4]
    wide = tmp_path / "wide.parquet"
    assert simreduce("table", db, "--pivot", "nodes,slow,seconds", "--parquet", wide).status == 0
    assert parquet.read_table(wide).column_names == ["nodes", "none", "gpu3=2"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--where", "nodez = 1"], "no such column: nodez (did you mean 'nodes'?)"),
        (["--sort", "secnds"], "no column 'secnds' (did you mean 'seconds'?)"),
        (["--group", "node"], "did you mean 'nodes'?"),
        (["--pivot", "nodes,size"], "must be DOWN,ACROSS,VALUE"),
        (["--sweep", "7"], "no sweep 7; there are 1"),
        (["--where", "1); DROP TABLE rows; --"], "--where"),
        (["--parquet", "x.parquet"], "pyarrow"),
    ],
)
def test_what_a_table_cannot_do_is_said(simreduce, db, options, words, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    found = simreduce("table", db, *options)

    assert found.status == 2
    assert words in found.err
    with sqlite3.connect(db) as file:
        assert file.execute("SELECT count(*) FROM rows").fetchone() == (24,)
    file.close()


def test_a_sweep_of_jobs_keeps_what_loses_least(simreduce, tmp_path):
    """In tables, on pages and in Python; a value of a wrong kind is refused first."""
    file, db = tmp_path / "jobs.toml", tmp_path / "jobs.db"
    job = '[[job]]\nname = "{}"\nnodes = {}\nworkload = "bytes:1M"\ncount = 2\n'
    file.write_text(
        'topology = "dgx1vx4,fabric=fat_tree,radix=2,nics=1"\n'
        + job.format("a", [0, 2]) + job.format("b", [3, 1])
    )  # fmt: skip
    over = "--over", "oversubscription=2,1", "--db", db, "--workers", "1"
    wrong = simreduce("sweep", file, *over, "--set", "job.a.checkpoint.size=1Q")
    done = simreduce("sweep", file, *over)
    best = json.loads(simreduce("table", db, "--group", "calibration", "--json").out)
    page = simreduce("report", db, "--output", tmp_path / "page.html")
    rows = sr.open_sweep(str(db))

    assert wrong.status == 2
    assert "--set job.a.checkpoint.size: '1Q' is not a size" in wrong.err
    assert (done.status, page.status) == (0, 0)
    assert "1.00x" in done.out
    assert best["kind"] == "jobs"
    assert [row["oversubscription"] for row in (*best["rows"], *rows.best())] == [1, 1]
    assert rows.best()[0]["slowdown"] < max(row["slowdown"] for row in rows.rows)
    assert "slowdown" in rows.plot().svg()


def test_rows_from_python(db, tmp_path):
    rows = sr.open_sweep(db)
    again = sr.run_sweep(
        "switch:4", {"size": ["1K", "1M"], "nodes": "2..4"}, {"strategy": "ring"},
        db=str(tmp_path / "mine.db"),
    )  # fmt: skip

    assert repr(again) == "<SweepRows: switch:4: 6 cells over size, nodes>"
    calm = [r for r in rows.rows if (r["slow"], r["strategy"]) == ("none", "ring")]
    assert {r["digest"] for r in again.rows} == {r["digest"] for r in calm}
    assert sorted(r["seconds"] for r in again.rows) == sorted(r["seconds"] for r in calm)
    assert [r["nodes"] for r in again.best("size")] == [2, 2]
    assert again.to_dict()["states"] == {"done": 6}
