"""Errors of predictions, by group; bounds that no prediction may beat."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simreduce.files.published import PublishedTable, published_tables
from simreduce.planners.layouts import layout
from simreduce.report.accuracy import ACCURACY, Comparison, accuracy_lines
from simreduce.study.accuracy.assess import (
    cells,
    cover,
    impossible,
    machines,
    regrets,
    summarize,
    too_fast,
)
from simreduce.study.accuracy.predict import Point, bound, copies_of, machine_of, predict
from simreduce.topology import load_topology

TABLE = PublishedTable(
    "mine", "a page", "v100-mesh-4", None, "all_reduce", 0, "2.8", (), "", "gpu", True, "",
    ((1 << 20, 80e-6),),
)  # fmt: skip


def point(nbytes: int, seconds: float, predicted: float | None, **changes: object) -> Point:
    return replace(Point(TABLE, nbytes, seconds, 1, 4, False), predicted=predicted, **changes)


def test_errors_of_a_group():
    group = summarize(
        [point(1, 1.0, 1.1), point(2, 1.0, 0.7), point(3, 1.0, 1.2), point(4, 1.0, None)]
    )

    assert (group.points, group.tables) == (3, 1)
    assert group.median == pytest.approx(0.2)
    assert group.bias == pytest.approx(0.1)
    assert group.p90 == pytest.approx(0.28)
    assert group.inside is None
    assert summarize([point(4, 1.0, None)]) is None


def test_the_interval_covers_some_points():
    sure = {"low": 0.9, "high": 1.1}
    assert 0.5 == summarize([point(1, 1.0, 1.0, **sure), point(1, 2.0, 1.0, **sure)]).inside


def test_coverage_is_by_cells_of_several_machines_and_by_machines_of_no_fit():
    def on(machine: str, seconds: float, **changes: object) -> Point:
        table = replace(TABLE, topology=machine, name=machine)
        return replace(point(8, seconds, 1.0, low=0.9, high=1.1, **changes), table=table)

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
    assert [cell.group.machines for cell in found.cells] == [3]
    assert found.worst == found.cells[0]
    assert found.kept == 0
    assert cover([point(8, 1.0, 1.0)]) is None


def test_points_are_grouped_by_collective_machines_and_size():
    small, large = point(1 << 10, 1.0, 1.3), point(1 << 30, 1.0, 1.2)
    apart = replace(point(1 << 30, 1.0, 1.2), nodes=2, bracketed=True)
    found = [(c.several, c.bracketed, c.band.name, c.missed) for c in cells([small, large, apart])]

    assert found == [
        (False, False, "< 64 KiB", True),
        (False, False, "> 64 MiB", True),
        (False, False, "> 1 MiB", False),
        (True, True, "> 64 MiB", False),
        (True, True, "> 1 MiB", False),
    ]


def test_the_worst_machine_stands_first():
    other = replace(TABLE, topology="dgx2", name="other")
    found = machines([point(1, 1.0, 1.1), replace(point(1, 1.0, 2.0), table=other)])

    assert [name for name, _, _ in found] == ["dgx2", "v100-mesh-4"]


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
    found = regrets(
        [replace(point(8, 2.0, 1.0), table=ring), replace(point(8, 1.0, 3.0), table=tree)]
    )

    assert [point.regret for point in found] == [pytest.approx(1.0)]


def test_names_of_machines():
    assert machine_of("abci-vx32,nic=ib_hdr") == "abci-v"
    assert machine_of("dgx2") == "dgx2"
    assert (copies_of("abci-vx32,nic=ib_hdr"), copies_of("dgx2")) == (32, 1)


def test_a_bound_is_that_of_the_narrowest_cut():
    """Every GPU has 3 x 2 NVLinks of 24 GB/s and a PCIe link of 12 GB/s."""
    machine = load_topology("v100-mesh-4")
    port = 6 * 24e9 + 12e9
    shape = layout(machine)

    assert bound(machine, shape, "broadcast", 1 << 30) == pytest.approx((1 << 30) / port)
    assert bound(machine, shape, "all_reduce", 1 << 30) == pytest.approx(1.5 * (1 << 30) / port)
    assert bound(machine, shape, "all_to_all", 1 << 30) == pytest.approx(0.75 * (1 << 30) / port)


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
    found = Comparison(points, "nominal", "fit")
    text = "\n".join(accuracy_lines(found))
    document = ACCURACY.write(found)

    assert "abci-v" in text
    assert len(document["points"]) == len(points) == 3
    assert document["groups"][0]["collective"] == "all_reduce"
