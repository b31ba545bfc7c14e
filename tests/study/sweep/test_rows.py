"""Rows are what the other commands say of the same question."""

from __future__ import annotations

import pytest

from simreduce.app import api
from simreduce.engine.setup import BY_STRATEGY, Setup
from simreduce.planners.strategy import parse_strategy
from simreduce.study.scenario_files import load_scenario
from simreduce.study.sweep.engine import Here
from simreduce.study.sweep.evaluate import evaluate
from simreduce.study.sweep.question import read_question
from simreduce.study.tune.rank import rank
from simreduce.study.tune.sizes import bench
from simreduce.study.tune.steps import rank_steps


@pytest.mark.parametrize("strategy", ["ring", "nccl", "halving_doubling", "direct"])
@pytest.mark.parametrize("machine", ["dgx-a100x4", "switch:8", "dgx1v"])
def test_a_bench_cell_is_a_row_of_bench(machine, strategy):
    """To the bit; but where machines are folded, to the last bits."""
    size = 1 << 20
    [row] = bench(Setup(machine, BY_STRATEGY), [parse_strategy(strategy)], [size])
    found = evaluate(read_question(machine).cell({"strategy": strategy, "size": size}))

    assert found.state == "done"
    assert found.seconds == pytest.approx(row.seconds, rel=1e-12)
    if found.machines == 1:
        assert found.seconds == row.seconds
        assert (found.low, found.high) == (row.interval or (None, None))
    assert found.machines == (4 if "x4" in machine and strategy != "nccl" else 1)
    assert found.chosen == row.algorithm
    assert found.wrong == 0
    assert found.floor <= found.seconds


def test_a_run_cell_is_the_recommendation_of_run():
    names = ["nccl", "hierarchical_copy+packs=8", "xring"]
    scenario = load_scenario("dgx1p-step-of-five", strategies=names)
    best = rank(scenario).recommended
    question = read_question("dgx1p-step-of-five")
    rows = [evaluate(question.cell({"strategy": name})) for name in [*names, names]]

    assert rows[3].seconds == best.seconds
    assert rows[3].chosen == best.strategy.text
    assert len({row.chosen for row in rows[:3]}) == 3  # each its own, not what runs today


@pytest.mark.slow
def test_a_step_cell_is_the_recommendation_of_step():
    scenario = load_scenario("step-dgx1p-resnet50", 32, strategies=["nccl"])
    best = rank_steps(scenario, with_today=False).recommended
    cell = read_question("step-dgx1p-resnet50").cell({"strategy": "nccl", "batch": 32})
    row = evaluate(cell)

    assert (row.seconds, row.exposed, row.efficiency) == (
        best.step.seconds, best.step.exposed, best.efficiency,
    )  # fmt: skip
    assert row.seconds == pytest.approx(row.launch + row.compute + row.update + row.exposed)
    assert row.low <= row.seconds <= row.high
    assert row.samples_per_second == pytest.approx(8 * 32 / row.seconds)


def test_a_disturbed_cell_is_slower():
    question = read_question("dgx1v")
    calm = evaluate(question.cell({"slow": "none"}))
    slow = evaluate(question.cell({"slow": "gpu3=2"}))
    cut = evaluate(question.cell({"fault": "gpu0>gpu3@0=10%", "strategy": "direct"}))

    assert calm.seconds == evaluate(question.cell({})).seconds
    assert slow.seconds > calm.seconds
    assert cut.seconds > evaluate(question.cell({"strategy": "direct"})).seconds


@pytest.mark.parametrize(
    ("text", "settings", "state", "words"),
    [
        ("switch:6", {"strategy": "ring", "collective": "broadcast"}, "refused", "ring"),
        ("switch:4", {"slow": "gpu9=2"}, "refused", "no device 'gpu9' (did you mean 'gpu"),
        ("dgx1v", {"fault": "gpu0@0=0"}, "stuck", "can never finish"),
        ("dgx-a100x2", {"fabric": "fat_tree", "oversubscription": 0}, "refused", "above 0"),
    ],
)
def test_what_cannot_be_has_a_reason(text, settings, state, words):
    row = evaluate(read_question(text).cell(settings))

    assert row.state == state
    assert words in row.reason
    assert row.seconds is None


@pytest.mark.slow
def test_what_would_not_fit_is_refused_before_it_starts():
    cell = read_question("switch:4096,bandwidth=9GB/s").cell(
        {"strategy": "ring", "jitter": "0.1", "size": "1G"}
    )
    [[answer]] = Here(64 << 20).run([cell])

    assert answer.row.state == "too_large"
    assert "more than the 67,108,864 bytes there are" in answer.row.reason
    assert answer.taken < 10


def test_a_row_knows_its_kinds_of_values():
    row = evaluate(read_question("switch:4").cell({"size": "1M"}))

    assert row == type(row)(**row.values)
    assert row.busbw == pytest.approx(1.5 * row.algbw)
    assert row.seconds == api.bench("switch:4", sizes="1M").rows[0].seconds


@pytest.mark.parametrize(
    ("gpus", "state", "ranks"),
    [(6, "done", 6), ([0, 2], "done", 2), ("0-2,5", "done", 4), ("0..5", "refused", None)],
)
def test_gpus_are_how_many_or_which(gpus, state, ranks):
    settings = {"strategy": "nccl", "size": "1M", "gpus": gpus}
    row = evaluate(read_question("mi355x").cell(settings))

    assert (row.state, row.ranks) == (state, ranks)


def test_a_cell_of_a_strategy_has_its_own_step(tmp_path):
    """Not that of what runs today, which the command `step` compares with."""
    path = tmp_path / "mine.toml"
    path.write_text(
        'topology = "dgx-h100"\nworkload = "alexnet"\n[step]\nbatch = 8\ntime = "9 ms"\n', "utf-8"
    )
    question = read_question(str(path))
    rows = [evaluate(question.cell({"strategy": text})) for text in ("nccl+ddp", "nccl+ddp=100")]

    assert [row.state for row in rows] == ["done", "done"]
    assert rows[0].seconds != rows[1].seconds
