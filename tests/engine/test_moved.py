"""Times that hang on ties in queues: `find_moved` says what the least difference makes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simreduce.engine.disturbance import Disturbance, Fault
from simreduce.engine.setup import Setup
from simreduce.engine.simulator import TELLING
from simreduce.planners.strategy import parse_strategy
from simreduce.report.ranking import TUNE, ranking_table, tuned_text
from simreduce.study.ranking import moved_lines
from simreduce.study.scenario_files import load_scenario
from simreduce.study.tune.rank import rank
from simreduce.study.tune.search.tune import tune
from simreduce.study.tune.sizes import bench
from simreduce.workload import Gradient, Workload


def times(machine: str, strategy: str, nbytes: int, runtime: str) -> tuple[float, float | None]:
    setup = Setup(machine, runtime)
    plan = setup.compile(strategy, Workload("one", (Gradient("one", nbytes // 4),)))
    seconds = setup.find_seconds(plan)
    return seconds, setup.find_moved(plan, seconds)


@pytest.mark.parametrize(
    ("machine", "nbytes"), [("dgx1vx3", 12_345_600), ("dgx-h100x6", 268_435_200)]
)
def test_equal_parts_tie_where_one_element_more_scatters_them(machine, nbytes):
    seconds, moved = times(machine, "direct", nbytes, "tensorflow")
    ragged, _ = times(machine, "direct", nbytes + 4, "tensorflow")

    assert ragged > (1 + TELLING) * seconds
    assert moved is not None
    assert moved > (1 + TELLING) * seconds


@pytest.mark.parametrize(
    ("strategy", "runtime"), [("ring", "tensorflow"), ("direct", "ideal"), ("direct", "nccl")]
)
def test_what_does_not_hang_on_ties_is_not_said_to(strategy, runtime):
    assert times("dgx1vx3", strategy, 12_345_600, runtime)[1] is None


@pytest.mark.parametrize("factor", [0.0, 0.5])
def test_a_fault_after_the_end_is_no_tie(factor):
    """A plan that is done before a fault keeps its time, though later starts would meet it."""
    setup = Setup("switch:4")
    plan = setup.compile("ring", Workload("one", (Gradient("one", 1 << 20),)))
    seconds = setup.find_seconds(plan)
    fault = Fault(seconds * 1.0001, "gpu0>switch0", factor=factor)
    faulty = setup.but(disturbance=Disturbance(faults=(fault,)))
    (row,) = bench(faulty, [parse_strategy("ring")], [4 << 20])

    assert row.seconds == seconds
    assert row.moved is None


def test_a_row_has_both_times():
    rows = bench(Setup("dgx1vx3"), [parse_strategy(text) for text in ("direct", "ring")],
                 [12_345_600])  # fmt: skip
    direct, ring = rows

    assert ring.moved is None
    assert direct.moved == times("dgx1vx3", "direct", 12_345_600, "tensorflow")[1]
    assert moved_lines(28.7e-3) == ["or 28.7 ms if starts move by 0.1% (queues tie)"]


def test_no_strategy_is_recommended_as_its_copies_tie(tmp_path, monkeypatch):
    """One after the other is tried until one is found that takes less however starts move."""
    path = tmp_path / "run.toml"
    path.write_text('topology = "switch:4"\nworkload = "bytes:1MiB"\nruntime = "tensorflow"\n')
    texts = ("ring", "direct", "trees", "double_tree")
    strategies = tuple(parse_strategy(text) for text in texts)
    scenario = replace(load_scenario(str(path)), strategies=strategies)
    first, second, third, last = rank(scenario).candidates
    slow = {first.strategy: last.seconds * 2, second.strategy: last.seconds}
    monkeypatch.setattr(
        "simreduce.study.tune.rank.find_moved", lambda _, strategy, __: slow.get(strategy)
    )
    found = rank(scenario)

    assert third.strategy == found.recommended.strategy
    assert [*slow.values(), None, None] == [c.moved for c in found.candidates]
    assert f"  {first.strategy.text} takes" in ranking_table(found)
    assert "if starts move" in ranking_table(found)


@pytest.mark.slow
def test_a_setting_is_not_the_best_as_its_copies_tie(monkeypatch):
    """Both times are in the table, the document and the advice."""
    shipped = load_scenario("dgx1v-resnet50").but(machine="switch:4", runtime="tensorflow")
    scenario = replace(shipped, workload=Workload("few", shipped.workload.gradients[:8]))
    plain = tune(scenario, "tf_cnn_benchmarks", "time")
    slow, fast = 3.0 * plain.default.seconds, plain.best.setting
    monkeypatch.setattr(
        "simreduce.study.tune.search.tune.find_moved",
        lambda _, strategy, __: slow if strategy == fast.parsed else None,
    )
    found = tune(scenario, "tf_cnn_benchmarks", "time")

    assert found.best.setting != plain.best.setting
    assert (plain.best.seconds, slow) == (found.rows[0].seconds, found.rows[0].moved)
    [row] = [r for r in TUNE.write(found)["rows"] if "moved_us" in r]
    assert slow * 1e6 == pytest.approx(row["moved_us"])
    assert "if starts move" in tuned_text(found)


def test_long_plans_are_not_tried(monkeypatch):
    monkeypatch.setattr("simreduce.engine.simulator.MOST_MOVED", 100)
    assert times("dgx1vx3", "direct", 12_345_600, "tensorflow")[1] is None
    (row,) = bench(Setup("dgx1vx3"), [parse_strategy("direct")], [12_345_600], fold=False)
    assert row.moved is None


def test_jitter_has_broken_ties_already():
    jitter = Setup("dgx1vx3", disturbance=Disturbance(jitter=0.1))
    (row,) = bench(jitter, [parse_strategy("direct")], [12_345_600], fold=False)
    assert row.moved is None
