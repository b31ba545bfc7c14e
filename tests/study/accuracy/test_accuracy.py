"""Errors of predictions, by group; bounds that no prediction may beat."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest
from hypothesis import given, strategies as st

from simreduce.engine.calibrate.intervals import ELSEWHERE, spread
from simreduce.engine.setup import Setup
from simreduce.files.published import PublishedTable, published_tables
from simreduce.report.accuracy import NCCL
from simreduce.study.accuracy import (
    AccuracyComparison,
    PointGroup,
    TablePoint,
    cells,
    count_machines,
    cover,
    find_typical_miss,
    group_predicted,
    impossible,
    inside,
    machines,
    order_machines,
    predict,
    regrets,
    site_of,
    too_fast,
    unseen,
)
from simreduce.study.accuracy.hold_out import predict_without_generations
from simreduce.topology import copies_of, machine_of

TABLE = PublishedTable(
    "mine", "a page", "v100-mesh-4", None, "all_reduce", 0, "2.8", (), "", "gpu", True, "",
    ((1 << 20, 80e-6),),
)  # fmt: skip


def point(nbytes: int, seconds: float, predicted: float, **changes: object) -> TablePoint:
    return replace(TablePoint(TABLE, seconds, predicted, nbytes, 1, 4, False), **changes)


def test_errors_of_a_group():
    points = [point(1, 1.0, 1.1), point(2, 1.0, 0.7), point(3, 1.0, 1.2), point(4, 1.0, nan)]
    (group,) = group_predicted(points, lambda p: p.machine).values()

    assert group.count == 3
    assert group.median == pytest.approx(0.2)
    assert group.bias == pytest.approx(0.1)
    assert group.p90 == pytest.approx(0.28)
    assert group.worst == pytest.approx(0.3)
    assert inside(group) is None
    assert not group_predicted([point(4, 1.0, nan)], lambda p: p.machine)


def test_the_interval_covers_some_points():
    sure = {"low": 0.9, "high": 1.1}
    group = PointGroup([point(1, 1.0, 1.0, **sure), point(1, 2.0, 1.0, **sure)])
    assert inside(group) == 0.5


def test_coverage_is_by_cells_of_several_machines_and_by_machines_of_no_fit():
    def on(machine: str, seconds: float, **changes: object) -> TablePoint:
        table = replace(TABLE, topology=machine, name=machine)
        return replace(point(8, seconds, 1.0, low=0.9, high=1.1, **changes), of=table)

    points = [
        on("dgx2", 1.0),
        on("alps", 2.0),
        on("ndv4", 1.0),
        on("polarisx2", 9.0, bracketed=True),
    ]
    found = cover(points)
    assert found is not None
    assert found.inside == pytest.approx(2 / 3)
    assert found.unseen == pytest.approx(1.0)  # constants were fitted to tables of alps and dgx2
    assert [*map(count_machines, found.cells)] == [3]
    assert found.kept == 0
    assert cover([point(8, 1.0, 1.0)]) is None


def test_points_are_grouped_by_collective_machines_and_size():
    small, large = point(1 << 10, 1.0, 1.3), point(1 << 30, 1.0, 1.2)
    apart = replace(point(1 << 30, 1.0, 1.2), nodes=2, bracketed=True)
    found = [
        (c.points[0].nodes > 1, c.points[0].bracketed, c.band.name, c.missed)
        for c in cells([small, large, apart])
    ]

    assert found == [
        (False, False, "< 64 KiB", True),
        (False, False, "> 64 MiB", True),
        (False, False, "> 1 MiB", False),
        (True, True, "> 64 MiB", False),
        (True, True, "> 1 MiB", False),
    ]


def test_the_worst_machine_stands_first():
    other = replace(TABLE, topology="dgx2", name="other")
    found = machines([point(1, 1.0, 1.1), replace(point(1, 1.0, 2.0), of=other)])

    assert [group.points[0].machine for group in found] == ["dgx2", "v100-mesh-4"]
    assert [find_typical_miss(group) for group in found] == [group.points[0] for group in found]


def test_what_contradicts_physics_is_found():
    fine, fast, wrong = (
        point(1, 1.0, 1.0, bound=0.9),
        point(1, 1.0, 0.8, bound=0.9),
        point(1, 0.8, 1.0, bound=0.9),
    )
    assert impossible([fine, fast, wrong]) == [fast]
    assert too_fast([fine, fast, wrong]) == [wrong]


def test_regret_is_of_the_predicted_fastest_setting():
    ring, tree = (replace(TABLE, name=n, settings=(f"NCCL_ALGO={n}",)) for n in ("RING", "TREE"))
    found = regrets([replace(point(8, 2.0, 1.0), of=ring), replace(point(8, 1.0, 3.0), of=tree)])

    assert [point.regret for point in found] == [pytest.approx(1.0)]


def test_names_of_machines():
    assert machine_of("abci-vx32,nic=ib_hdr") == "abci-v"
    assert machine_of("dgx2") == "dgx2"
    assert (copies_of("abci-vx32,nic=ib_hdr"), copies_of("dgx2")) == (32, 1)


@pytest.mark.thorough
def test_no_published_time_is_below_the_links_of_its_machine():
    """Nor is any prediction. 3 % are for what a machine's figures leave out.

    Tables of more machines take minutes each; `accuracy --most-machines 540` has them.
    """
    tables = [
        table
        for table in published_tables()
        if not table.library and copies_of(table.topology) <= 64
    ]
    points = [point for found in predict(tables) for point in found]

    assert len(points) > 1600
    assert sum(point.bound > 0.0 for point in points) > 0.98 * len(points)
    assert too_fast(points) == []
    assert impossible(points) == []


def test_a_published_table_is_predicted():
    (found,) = predict([TABLE])
    (only,) = found

    assert only.predicted == pytest.approx(80e-6, rel=0.5)
    assert only.low < only.predicted < only.high
    assert only.terms
    assert only.bound < only.predicted


def test_the_report_and_the_document_say_the_same():
    table = next(t for t in published_tables() if t.name == "abci_v_all_reduce_n1_g4")
    (points,) = predict([replace(table, times=table.times[::8])])
    about = {"calibration": "nominal", "tables": "fit", "notes": []}
    found = AccuracyComparison(points, about=about)
    text = "\n".join(NCCL.lines(found))
    document = NCCL.document.write(found)

    assert "abci-v" in text
    assert len(document["points"]) == len(points) == 3
    assert document["groups"][0]["collective"] == "all_reduce"


SECONDS = st.lists(st.floats(1e-5, 1.0), min_size=2, max_size=6, unique=True)


@given(SECONDS, st.floats(0.1, 10.0))
def test_machines_are_in_order_however_far_off_all_times_are(seconds, factor):
    def on(number: int, time: float, predicted: float) -> TablePoint:
        table = replace(TABLE, topology=f"machine{number}")
        return replace(point(1 << 24, time, predicted), of=table)

    right = order_machines([on(i, s, factor * s) for i, s in enumerate(seconds)])
    wrong = order_machines([on(i, s, factor / s) for i, s in enumerate(seconds)])

    assert right.pairs == right.right == wrong.pairs == len(seconds) * (len(seconds) - 1) // 2
    assert wrong.right == 0
    assert right.regrets == [0.0]
    assert wrong.regrets == [pytest.approx(max(seconds) / min(seconds) - 1)]
    assert order_machines([point(1 << 10, 1.0, 1.0)]).pairs == 0


def test_what_is_left_out_has_no_part_in_its_prediction_or_interval():
    """Constants of the generations beside a machine's own, and errors of other sites."""
    (table,) = (t for t in published_tables() if t.name == "bessemer_v100pcie_0")
    (points,) = predict_without_generations([replace(table, times=table.times[:2])])

    assert [p.nbytes for p in points] == [*(n for n, _ in table.times[:2])] * 2
    assert points[0].predicted != points[2].predicted
    ((cell, _),) = unseen(points)
    assert cell == ("all_reduce", "one", 0)
    for p in points:
        low, high = spread("all_reduce", Setup(table.topology).link_class, p.nbytes, frozenset(
            ["v100-pcie-4", "nccl-volta", table.site]), ELSEWHERE)  # fmt: skip
        assert (p.low, p.high) == (pytest.approx(low * p.predicted), p.predicted * high)


def test_sites_that_measured_one_machine_count_as_one():
    tables = published_tables()
    for table in tables:
        alike = {site_of(t) for t in tables if machine_of(t.topology) == machine_of(table.topology)}
        assert alike == {site_of(table)}
        assert site_of(table) in {t.site for t in tables}
    assert len({site_of(table) for table in tables}) > 10
