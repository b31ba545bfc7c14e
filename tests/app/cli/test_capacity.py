"""`simreduce capacity`, `plot` and `compare` on real databases of sweeps."""

from __future__ import annotations

import json

import pytest

from simreduce.study.sweep import Runner

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


def test_a_second_run_with_other_prices_simulates_nothing(
    simreduce, question, tmp_path, monkeypatch
):
    """The database has all rows, and the choice flips where the first run says."""
    kept = tmp_path / "kept.db"
    first = simreduce("capacity", question, "--db", kept, "--workers", "1", "--json")
    document = json.loads(first.out)
    flips = {each["assumption"]: each for each in document["sensitivity"]}
    above = flips["machines.a100-mesh-4.price"]["above"]
    monkeypatch.setattr(Runner, "run", None)

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


def test_the_table_and_the_picture(simreduce, question, tmp_path):
    """A table in the terminal, and cost against time in a file."""
    done = simreduce(
        "capacity", question, "--workers", "1", "--no-sensitivity", "--svg", tmp_path / "cost.svg"
    )

    assert 0 == done.status
    assert "(USD/h)" in done.out
    assert "1 x a100-mesh-4, ddp, nccl, batch 32: the run takes" in done.out
    assert "cost of 1,000,000 samples (USD)" in (tmp_path / "cost.svg").read_text("utf-8")


def test_ctrl_c_leaves_what_is_known(simreduce, question, monkeypatch):
    """While options are simulated, and while rates are searched; with status 130."""
    real = Runner.run
    left = [0]

    def run(self, cells):
        for answer in real(self, cells):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            yield answer

    monkeypatch.setattr(Runner, "run", run)
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
    assert "stopped before all was known of compute" in simreduce("capacity", question).out


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
        assert picture.read_text("utf-8").startswith("<?xml")
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
