"""Sweeps over meshes: rows are what `step` says, with what a step waits for by axis."""

from __future__ import annotations

import pytest

from simreduce.errors import InputError
from simreduce.study.scenario_files import load_meshes
from simreduce.study.sweep.evaluate import evaluate
from simreduce.study.sweep.grid import read_specification
from simreduce.study.sweep.question import read_question
from simreduce.study.tune.meshes import rank_meshes

SCENARIO = """
topology = "dgx-a100"
workload = "transformer:layers=8,hidden=1024,heads=16,vocab=51200,seq=512"
[step]
mesh = ["tp=2,pp=2", "dp=8"]
global_batch = 16
"""
AXES = (
    "compute", "tensor", "context", "expert", "pipeline", "data", "interference", "update",
    "launch",
)  # fmt: skip


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SCENARIO, "utf-8")
    return str(path)


def test_a_cell_is_the_best_of_step(scenario):
    """To the bit, and all of its time is accounted for."""
    best = rank_meshes(load_meshes(scenario)).recommended
    step, row = best.step, evaluate(read_question(scenario).cell({}))

    assert "done" == row.state
    assert (best.seconds, best.job.text, "mesh", 8) == (
        row.seconds, row.chosen, row.method, row.ranks,
    )  # fmt: skip
    assert (step.tokens_per_second, best.mfu, step.limit, step.memory.needed) == (
        row.tokens_per_second, row.mfu, row.bound, row.memory,
    )  # fmt: skip
    assert row.seconds == pytest.approx(sum(getattr(row, axis) for axis in AXES), rel=1e-9)
    assert row.samples_per_second == pytest.approx(16 / row.seconds)
    assert row.efficiency == pytest.approx(1.0 - row.exposed / row.seconds)


@pytest.mark.parametrize(
    ("settings", "bubble"),
    [
        ({"mesh": "pp=4", "schedule": "1f1b"}, 3 / (8 + 3)),  # (p - 1) / (m + p - 1)
        ({"mesh": "pp=4", "schedule": "interleaved", "virtual": 2}, 3 / (2 * 8 + 3)),
        ({"mesh": "dp=8"}, 0.0),
    ],
)
def test_the_bubble_of_a_schedule(scenario, settings, bubble):
    """Of a step whose passes take as long; half the batch on each of two replicas."""
    row = evaluate(read_question(scenario).cell(settings))

    assert row.bubble == pytest.approx(bubble, rel=1e-12)


def test_every_key_of_a_mesh_may_vary(scenario):
    """And the machine; meshes have commas."""
    over = {
        "mesh": "tp=2,pp=2;pp=4", "global_batch": "16,32", "micro_batch": "1,2",
        "recompute": "none,full", "nodes": "1,2",
    }  # fmt: skip
    planned = read_specification(scenario, over, {"virtual": 1, "order": "tp-cp-ep-pp-dp"}).plan()
    found = [each.cell.table for each in planned]

    assert 32 == len(found)
    assert {"tp=2,pp=2", "pp=4"} == {each["step"]["mesh"] for each in found}
    assert {"dgx-a100", "dgx-a100x2"} == {each["topology"] for each in found}
    assert {1} == {each["step"]["pipeline"]["virtual"] for each in found}
    assert {(16, 1, "none"), (32, 2, "full")} < {
        (each["step"]["global_batch"], each["step"]["micro_batch"], each["step"]["recompute"])
        for each in found
    }
    slow, fast = (evaluate(read_question(scenario).cell({"model": model})).seconds
                  for model in (SMALL.replace("layers=8", "layers=16"), SMALL))  # fmt: skip
    assert slow > 1.5 * fast


SMALL = "transformer:layers=8,hidden=1024,heads=16,vocab=51200,seq=512"


def test_faults_are_all_of_them(scenario):
    """Keys and values, with the nearest spelling."""
    over = {"mesh": "tpp=2;tp=2,pp=2", "schedule": "1f1b,zbw", "recompute": "ful", "bach": "1,2",
            "optimizer": "fsdb", "micro_batch": "0,1", "framework": "megatorn"}  # fmt: skip
    with pytest.raises(InputError) as error:
        read_specification(scenario, over, {})
    text = "\n".join(error.value.problems)

    assert "over.mesh: mesh: unknown axis 'tpp' (did you mean 'tp'?)" in text
    assert "over.recompute: must be one of none, selective, full, op, got 'ful'" in text
    assert "(did you mean 'fsdp'?)" in text
    assert "over.bach: unknown key" in text
    assert "over.micro_batch: must be" in text
    assert "over.framework: megatorn: takes no mesh (did you mean 'megatron'?)" in text


def test_what_cannot_be_says_why(scenario):
    """A mesh that does not fill the machine is a row with the reason."""
    row = evaluate_outcome(scenario, {"mesh": "tp=3"})

    assert "refused" == row.state
    assert "tp x cp x pp is 3, and the machine has 8" in row.reason
    with pytest.raises(InputError, match="ask for its step"):
        read_question(scenario, "run")


def evaluate_outcome(scenario, settings):
    return evaluate(read_question(scenario).cell(settings))


def test_files_of_schedules_are_part_of_the_question(scenario, tmp_path):
    """Another schedule in the file is another cell."""
    (tmp_path / "mine.csv").write_text("0F0,0B0\n", "utf-8")
    settings = {"mesh": "dp=8", "schedule": "mine.csv"}
    before = read_question(scenario).cell(settings)

    assert "step.pipeline.schedule" in before.contents
