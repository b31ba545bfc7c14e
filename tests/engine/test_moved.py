"""Times that hang on ties in queues: `find_moved` says what the least difference makes of them."""

from __future__ import annotations

import pytest

from simreduce.engine.setup import Setup
from simreduce.engine.simulation import TELLING
from simreduce.planners.strategy import parse_strategy
from simreduce.report.headings import moved_lines
from simreduce.study.tune.bench import bench
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


def test_a_row_has_both_times():
    rows = bench(Setup("dgx1vx3"), [parse_strategy(text) for text in ("direct", "ring")],
                 [12_345_600])  # fmt: skip
    direct, ring = rows

    assert ring.moved is None
    assert direct.moved == times("dgx1vx3", "direct", 12_345_600, "tensorflow")[1]
    assert moved_lines(28.7e-3) == ["hangs on ties in queues: 28.7 ms if starts move by 0.1%"]


def test_long_plans_are_not_tried(monkeypatch):
    monkeypatch.setattr("simreduce.engine.simulation.MOST_MOVED", 100)
    assert times("dgx1vx3", "direct", 12_345_600, "tensorflow")[1] is None
    (row,) = bench(Setup("dgx1vx3"), [parse_strategy("direct")], [12_345_600], fold=False)
    assert row.moved is None
