"""`simreduce capacity`, `plot` and `compare` on real databases of sweeps."""

from __future__ import annotations

import json

import pytest

from simreduce.study.sweep.running import CellRunner
from tests.study.capacity.test_copies import MIX, PLAN

FILE = """
workload = "alexnet"
[prices.machines.v100-mesh-4]
price = "10 USD/h"
[prices.machines.a100-mesh-4]
price = "16 USD/h"
[target]
samples = 1e6
[step]
batch = 32
[[options]]
machine = "v100-mesh-4"
step.rate = "5 TFLOP/s"
[[options]]
machine = "a100-mesh-4"
step.rate = "10 TFLOP/s"
"""


@pytest.fixture
def question(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(FILE, "utf-8")
    return path


@pytest.mark.slow
def test_a_second_run_with_other_prices_simulates_nothing(
    simreduce, question, tmp_path, monkeypatch
):
    """The database has all rows, and the choice flips where the first run says."""
    kept = tmp_path / "kept.db"
    first = simreduce("capacity", question, "--db", kept, "--workers", "1", "--json")
    document = json.loads(first.out)
    flips = {each["assumption"]: each for each in document["sensitivity"]}
    above = flips["machines.a100-mesh-4.price"]["above"]
    monkeypatch.setattr(CellRunner, "run", None)

    assert (0, "a100-mesh-4") == (first.status, document["choice"]["machine"])
    table = json.loads(simreduce("table", kept, "--json", "--where", "nodes = 1").out)
    assert [each["step_time_s"] for each in document["options"]] == [
        row["seconds"] for row in table["rows"]
    ]
    for price, machine in ((0.999, "a100-mesh-4"), (1.001, "v100-mesh-4")):
        prices = tmp_path / "prices.toml"
        prices.write_text(
            '[machines.v100-mesh-4]\nprice = "10 USD/h"\n'
            f'[machines.a100-mesh-4]\nprice = "{price * above["at"]} USD/h"\n'
        )
        again = simreduce(
            "capacity", question, "--db", kept, "--prices", prices, "--no-sensitivity",
            "--workers", "1", "--json",
        )  # fmt: skip
        assert machine == json.loads(again.out)["choice"]["machine"]


@pytest.mark.slow
def test_the_table_and_the_picture(simreduce, question, tmp_path):
    """A table in the terminal, and cost against time in a file."""
    done = simreduce(
        "capacity", question, "--workers", "1", "--no-sensitivity", "--svg", tmp_path / "cost.svg"
    )

    assert 0 == done.status
    assert "(USD/h)" in done.out
    answer = done.out.splitlines()[1]
    assert answer.startswith(
        "Rent 1 a100-mesh-4, batch 32 a GPU: 16 USD/h, 0.576 USD per 1M samples"
    )
    assert "; the run takes 2.1" in answer
    assert "in the words of the file, 1 x a100-mesh-4, ddp, nccl, batch 32.\n" in done.out
    assert "When does the choice change?  not asked." in done.out
    assert "cost of 1,000,000 samples (USD)" in (tmp_path / "cost.svg").read_text("utf-8")


@pytest.mark.slow
def test_ctrl_c_leaves_what_is_known(simreduce, question, monkeypatch):
    """While options are simulated, and while rates are searched; with status 130."""
    real = CellRunner.run
    left = [0]

    def run(self, cells):
        for answer in real(self, cells):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            yield answer

    monkeypatch.setattr(CellRunner, "run", run)
    found = []
    for count in (0, 1, 3):
        left[0] = count
        found.append(simreduce("capacity", question, "--workers", "1", "--json"))
    nothing, one, most = found

    assert [130] * 3 == [each.status for each in found]
    assert nothing.out == ""
    document = json.loads(one.out)
    assert (1, 1) == (len(document["options"]), len(document["waiting"]))
    assert document["sensitivity"] == []
    document = json.loads(most.out)
    assert [] == document["waiting"]
    assert (False, False) == (document["complete"], document["sensitivity"][-1]["complete"])
    left[0] = 3
    assert "Stopped before all was known of compute" in simreduce("capacity", question).out


def test_a_target_that_nothing_meets(simreduce, question):
    """Exit status 1, and what is missed."""
    question.write_text(FILE.replace("[target]", '[target]\ntime = "1 s"'), "utf-8")
    done = simreduce("capacity", question, "--workers", "1")

    assert 1 == done.status
    assert "time: missed by 2 of 2" in done.out


def test_faults_end_with_status_2(simreduce, question, tmp_path):
    """All of them, before any work."""
    question.write_text(FILE.replace("alexnet", "alexnt"), "utf-8")
    done = simreduce("capacity", question, "--svg", tmp_path / "no" / "cost.svg")

    assert (2, "") == (done.status, done.out)
    assert "there is no such folder" in done.err
    assert "did you mean 'alexnet'" in done.err


def test_sweeps_are_drawn_and_compared(simreduce, tmp_path):
    """Two sweeps that differ in their calibration, as a plot of each kind and as a comparison."""
    files = [tmp_path / name for name in ("a.db", "b.db")]
    for file, calibration in zip(files, ("nominal", "dgx1p-tf2018"), strict=True):
        done = simreduce(
            "sweep", "v100-mesh-4", "--over", "strategy=ring,direct", "--over", "size=1M,64M",
            "--over", f"calibration={calibration}", "--db", file, "--workers", "1",
        )  # fmt: skip
        assert 0 == done.status
    for kind in ("lines", "heat", "pareto"):
        picture = tmp_path / f"{kind}.svg"
        assert (0, "", "") == simreduce("plot", files[0], "--kind", kind, "--svg", picture)
        assert picture.read_text("utf-8").startswith("<svg")
    same = simreduce("compare", files[0], files[0])
    other = simreduce("compare", *files, "--json")

    assert (0, True) == (same.status, "4 cells in both, 0 changed" in same.out)
    document = json.loads(other.out)
    assert (1, 4) == (other.status, document["cells"])
    assert {"strategy", "size"} == set(document["changed"][0]["cell"])
    slow = simreduce("compare", *files, "--json", "--choose", "size")
    assert (1, []) == (slow.status, json.loads(slow.out)["flipped"])


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ((), "is missing; say where to write the plot"),
        (("--svg", "{folder}/x.svg", "--value", "seconds"), "is for --kind heat"),
    ],
)
def test_plots_that_cannot_be(simreduce, tmp_path, more, fault):
    """Before the database is opened."""
    done = simreduce("plot", "none.db", *(each.format(folder=tmp_path) for each in more))

    assert 2 == done.status
    assert fault in done.err


@pytest.mark.slow
def test_without_a_run_a_million_is_priced(simreduce, question):
    """No run is made up: it has neither a time nor a cost, on paper, in the document, on a page."""
    question.write_text(FILE.replace("samples = 1e6", "samples_per_second = 1"), "utf-8")
    done = simreduce("capacity", question, "--workers", "1", "--no-sensitivity")
    document = json.loads(
        simreduce("capacity", question, "--workers", "1", "--no-sensitivity", "--json").out
    )
    choice = document["choice"]

    assert "run" not in done.out
    assert "per 1M samples" in done.out
    assert done.out.splitlines()[1] == f"{document['headline']}."
    assert (None, None, None) == (document["target"]["samples"], choice["time_s"], choice["cost"])
    rate = choice["samples_per_second"]
    assert choice["per_million"] == pytest.approx(choice["hourly"] / 3600 / rate * 1e6)
    assert choice["tokens_per_second"] is None


@pytest.mark.slow
def test_several_lists_are_given_on_the_command_line(simreduce, question, tmp_path):
    """The first price of a thing counts, and a note names the other one."""
    lists = []
    for name, v100, a100 in (("cheap", 10, 16), ("dear", 20, 16)):
        lists.append(tmp_path / f"{name}.toml")
        lists[-1].write_text(
            f'[machines.v100-mesh-4]\nprice = "{v100} USD/h"\n'
            f'[machines.a100-mesh-4]\nprice = "{a100} USD/h"\n'
        )
    options = [word for each in lists for word in ("--prices", each)]
    done = simreduce("capacity", question, "--workers", "1", "--no-sensitivity", "--json", *options)

    document = json.loads(done.out)
    assert [10.0, 16.0] == [each["hourly"] for each in document["options"]]
    note = "of machines.v100-mesh-4.price, 10 USD/h counts, not 20 USD/h of 'dear'"
    assert note in document["notes"]


@pytest.mark.slow
def test_rent_and_buy_are_told_apart(simreduce, question):
    """By the kind of price; where both are compared, a sentence says how."""
    question.write_text(FILE.replace('"16 USD/h"', '"35040 USD"'), "utf-8")
    both = simreduce("capacity", question, "--workers", "1", "--no-sensitivity").out
    question.write_text(FILE, "utf-8")
    rented = simreduce("capacity", question, "--workers", "1", "--no-sensitivity").out

    assert both.splitlines()[1].startswith("Buy 1 a100-mesh-4, batch 32 a GPU: 1 USD/h, ")
    assert "Rented machines are compared with bought ones; rented: v100-mesh-4; bought: " in both
    assert "a100-mesh-4 at 35,040 USD, paid off over 4 years, without energy" in both
    assert rented.splitlines()[1].startswith("Rent 1 a100-mesh-4")
    assert "paid off" not in rented


def test_price_lists_are_printed(simreduce):
    """All that are shipped by name; one with sources and dates; several as one."""
    names = json.loads(simreduce("prices", "--json").out)["lists"]
    listed = simreduce("prices").out

    assert all(each["name"] in listed for each in names)
    one = simreduce("prices", "aws-on-demand").out
    assert "55.04  USD/h  2026-11-09  p5.48xlarge" in one
    assert "Source: AWS EC2 price catalogue" in one
    document = json.loads(simreduce("prices", "servers-2026", "h100-cluster-2024", "--json").out)
    prices = {each["name"]: each for each in document["prices"]["items"]}
    assert 285000.0 == prices["machines.dgx-h100.price"]["value"]
    assert "4 years, 80% of them in use" == prices["networks.ib_ndr.port"]["spread"]
    (note,) = document["notes"]
    assert note.startswith(
        "of machines.dgx-h100.price, 285,000 USD counts, not 310,000 USD of 'An "
    )
    amd = json.loads(simreduce("prices", "oci-on-demand", "tensorwave", "--json").out)["prices"]
    assert {(each["name"], each["value"], each["date"]) for each in amd["items"]} == {
        ("machines.oci-h100.price", 80.0, "2026-09-18"),
        ("machines.oci-mi300x.price", 48.0, "2026-09-18"),
        ("machines.oci-mi355x.price", 68.8, "2026-09-18"),
        ("machines.mi300x.price", 12.0, "2026-05-18"),
        ("machines.mi325x.price", 15.6, "2026-05-18"),
    }
    wrong = simreduce("prices", "aws-on-demnd")
    assert (2, "") == (wrong.status, wrong.out)
    assert "did you mean 'aws-on-demand'?" in wrong.err


@pytest.mark.slow
def test_what_nearly_meets_the_target_for_less_is_in_the_answer(simreduce, question, tmp_path):
    """On the terminal, in the document and on the page; further away it is in none."""
    kept, page = tmp_path / "kept.db", tmp_path / "page.html"
    text = FILE.replace("10 USD/h", "5 USD/h")
    more = ("--db", kept, "--workers", "1", "--no-sensitivity")
    document = json.loads(simreduce("capacity", question, *more, "--json").out)
    time = document["options"][0]["time_s"]

    question.write_text(text.replace("samples = 1e6", f'samples = 1e6\ntime = "{time / 1.04} s"'))
    done = simreduce("capacity", question, *more)
    assert done.out.splitlines()[1].startswith("Rent 1 ")
    said = done.out.splitlines()[1].partition(" Nearly: ")[2]
    assert "misses the time by 4.0% and costs " in said
    assert said.endswith(" less.")
    result = tmp_path / "result.json"
    result.write_text(simreduce("capacity", question, *more, "--json").out)
    simreduce("report", result, "-o", page)
    assert said in page.read_text("utf-8")

    question.write_text(text.replace("samples = 1e6", f'samples = 1e6\ntime = "{time / 1.2} s"'))
    assert "Nearly" not in simreduce("capacity", question, *more).out


def test_a_second_run_simulates_nothing_and_a_stopped_one_keeps_what_it_has(
    simreduce, tmp_path, monkeypatch
):
    """Copies of jobs on each machine, which the database has."""
    (tmp_path / "mix.toml").write_text(MIX, "utf-8")
    (tmp_path / "plan.toml").write_text(PLAN, "utf-8")
    real, left = CellRunner.run, [3]

    def run(self, cells):
        for each in real(self, cells):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            yield each

    monkeypatch.setattr(CellRunner, "run", run)
    line = ("capacity", tmp_path / "plan.toml", "--workers", "1", "--db", tmp_path / "k.db")
    stopped = simreduce(*line, "--json")
    left[0] = 2
    done = simreduce(*line, "--json")
    monkeypatch.setattr(CellRunner, "run", None)
    text = simreduce(*line)

    assert (130, 0) == (stopped.status, done.status)
    document = json.loads(stopped.out)
    assert (False, 2) == (document["complete"], len(document["waiting"]))
    whole = json.loads(done.out)
    assert ([], True) == (whole["waiting"], whole["complete"])
    assert text.out.splitlines()[1] == f"{whole['headline'].rstrip('.')}."
    assert whole["headline"].startswith("Rent 5 DGX-1 (dgx1v), 4:1 fat tree (nics 1, radix 4): 1 ")
