"""A figure is declared once: one key more is seen in each rendering of its record."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from dataclasses import replace

import pytest

from simreduce.app.api import run_sweep
from simreduce.engine.setup import Setup
from simreduce.files.formats.documents import (
    MICROSECONDS,
    Document,
    Key,
    Record,
    list_of,
    output_schema,
)
from simreduce.files.tables import Column
from simreduce.planners.strategy import parse_strategy
from simreduce.report import bench, capacity, ranking, steps, sweeps
from simreduce.report.schemas import outputs
from simreduce.report.sweeps import csv_text
from simreduce.study.capacity import load_question
from simreduce.study.capacity.answer import answer
from simreduce.study.scenario_files import load_scenario
from simreduce.study.sweep.running import running
from simreduce.study.tune.rank import rank
from simreduce.study.tune.sizes import bench as over_sizes
from simreduce.study.tune.steps import rank_steps
from tests.report.pages.documents import MODEL, SCENARIO

PLAN = """
workload = "alexnet"
runtime = "ideal"
prices.machines.v100-mesh-4.price = "10 USD/h"
[[options]]
machine = "v100-mesh-4"
step.batch = 32
step.rate = "5 TFLOP/s"
"""
NEW = Key(
    "warm_up_us",
    MICROSECONDS,
    "The first one.",
    lambda _: 1.25e-3,
    column=Column("warm up", "(ms)"),
)


def _scenario(folder, text):
    path = folder / "question.toml"
    path.write_text(text.replace("{machine}", "switch:4"))
    return load_scenario(str(path))


def _ranking(folder):
    found = rank(_scenario(folder, SCENARIO))
    return ranking.CANDIDATE, found.candidates, found


def _step(folder):
    found = rank_steps(_scenario(folder, MODEL))
    return steps.CANDIDATE, found.candidates, found


def _bench(_folder):
    setup = Setup("switch:4")
    rows = tuple(over_sizes(setup, [parse_strategy("ring")], [1024, 65536]))
    return bench.ROW, rows, bench.SizeTimes(setup, rows)


def _sweep(_folder):
    found = run_sweep("switch:4", {"size": "1K,64K"})
    return sweeps.ROW, found.rows, found


def _capacity(folder):
    (folder / "plan.toml").write_text(PLAN, "utf-8")
    with running(None) as runner:
        found = answer(load_question(str(folder / "plan.toml")), runner.rows)
    return capacity.OFFER, found.offers, found


ASKED = [_ranking, _step, _bench, _sweep, _capacity]


@pytest.mark.parametrize("asked", ASKED, ids=lambda each: each.__name__[1:])
def test_a_figure_added_in_one_edit_is_in_every_rendering(asked, tmp_path):
    """Text, JSON, schema, CSV and HTML, each with its unit; in tables behind all others."""
    record, values, around = asked(tmp_path)
    longer = Record(record.name, record.about, *record.keys, NEW)
    document = Document("question", "Rows.", Key("rows", list_of(longer), "All."))
    rows = [longer.write(value, around, place) for place, value in enumerate(values, 1)]
    properties = output_schema(document)["$defs"][record.name]["properties"]
    [first, *_] = csv.DictReader(io.StringIO(csv_text(list(rows[0]), rows)))
    text, page = longer.table(rows), longer.table(rows, on="html")

    assert json.loads(json.dumps(rows))[0]["warm_up_us"] == pytest.approx(1250.0)
    assert properties["warm_up_us"]["unit"] == "us"
    assert float(first["warm_up_us"]) == pytest.approx(1250.0)
    for table in (text, page):
        assert (table.columns[-1].name, table.columns[-1].unit) == ("warm up", "(ms)")
        assert {row[-1] for row in table.rows} == {"1.250"}
    assert ">1.250</td>" in page.html()


ONE_MORE = """
import sys
from importlib.machinery import SourceFileLoader
usual = SourceFileLoader.get_code
def edited(self, name):
    if name != "simreduce.study.sweep":
        return usual(self, name)
    key = 'Key("warm_up", SECONDS, "The first.", lambda _: 0.25, column=Column("warm up", "(s)")),'
    before, after = self.get_source(name).split('_figure("algbw"')
    return compile(f'{before}{key} _figure("algbw"{after}', self.path, "exec")
SourceFileLoader.get_code = edited
from click.testing import CliRunner
from simreduce.app.cli import cli
for line in sys.argv[1:]:
    done = CliRunner().invoke(cli, line.split(), standalone_mode=False, catch_exceptions=False)
    print(done.stdout, end="\\0")
"""


@pytest.mark.slow
def test_a_figure_of_a_sweep_is_computed_kept_and_shown_by_one_declaration(tmp_path):
    """By workers, in the database, and from there in every rendering."""
    lines = (
        "sweep switch:4 --over size=1K,64K --db a.db --workers 1",
        "table a.db --json", "schema sweep", "table a.db --csv -", "report a.db -o -",
    )  # fmt: skip
    command = [sys.executable, "-c", ONE_MORE, *lines]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    text, document, schema, table, page, _ = done.stdout.split("\0")
    properties = json.loads(schema)["$defs"]["row"]["properties"]

    assert (1, 2) == (text.count("  warm up\n"), text.count(" 0.25\n"))
    assert [0.25] * 2 == [row["warm_up"] for row in json.loads(document)["rows"]]
    assert "s" == properties["warm_up"]["unit"]
    assert ["0.25"] * 2 == [row["warm_up"] for row in csv.DictReader(io.StringIO(table))]
    assert 2 == page.count(">0.25</td>")


def _records() -> list[Record]:
    found = {}
    for output in outputs().values():
        tops = output.records
        inside = [record for top in tops for key in top.keys for record in key.kind.records]
        found |= {id(record): record for record in (*tops, *inside)}
    return [record for record in found.values() if any(key.columns for key in record.keys)]


@pytest.mark.parametrize("record", _records(), ids=lambda record: record.name)
def test_text_and_pages_show_the_same_value_with_the_same_unit(record):
    """A column for both media has one text; units of headings fit those of keys."""
    fits = {"(us)": {"us"}, "(ms)": {"us", "s"}, "(GB/s)": {"GB/s", "B/s"}, "(GB)": {"B"}}
    for key in record.keys:
        for column in key.columns:
            if not key.kind.records:  # the column of an object shows one of its figures
                assert key.kind.unit in fits.get(column.unit, {key.kind.unit}), key.name
        if key.kind.unit in ("us", "GB/s") and not any(c.cell for c in key.columns):
            shown = {column.text(key.name, {key.name: 1234.5}) for column in key.columns}
            assert len(shown) <= 1, key.name


def test_a_key_for_tables_only_is_in_no_document():
    """Nor in its schema; the table of a row has it."""
    shown = Record("row", "A row.", replace(NEW, written=False))

    assert shown.write(None) == {}
    assert shown.row(None) == {"warm_up_us": 1250.0}
    assert shown.keys == ()
