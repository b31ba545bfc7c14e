"""Published times of kernels: how far off predictions are, and that the constants shipped are the
fitted ones.
"""

from __future__ import annotations

from statistics import median

import pytest

from simreduce.engine.calibrate import load_calibration, to_toml
from simreduce.files.published import KERNEL_SETS, published_kernels
from simreduce.planners.strategy import parse_strategy
from simreduce.report.accuracy import KERNELS
from simreduce.study.accuracy import AccuracyComparison
from simreduce.study.accuracy.kernels import BEFORE, fit_kernels, predict_kernels


@pytest.fixture(scope="module")
def points():
    return list(predict_kernels(published_kernels()))


def _errors(points, *, held: bool) -> list[float]:
    kernels = [point for point in points if point.of.strategy != "nccl"]
    return [abs(point.error) for point in kernels if point.of.held == held]


def test_rows_name_sets_and_strategies_that_there_are():
    for call in published_kernels():
        assert call.set in KERNEL_SETS
        assert parse_strategy(call.strategy)
        assert 1e-6 < call.seconds < 1e-3
        assert 0 <= call.copies <= 2


def test_kernels_that_took_part_in_no_fit_are_within_20_percent_in_the_median(points):
    """H100, H200 and B200, on 2 and 8 GPUs, none of which the fit has seen."""
    held = {(p.of.machine, p.of.gpus) for p in points if p.of.held}
    fitted = {(p.of.machine, p.of.gpus) for p in points if not p.of.held}
    assert held == {("dgx-h100", 8), ("hgx-h200", 8), ("hgx-b200", 2)}
    assert not held & fitted
    errors = _errors(points, held=True)
    assert len(errors) == 25
    assert median(errors) < 0.2
    assert max(errors) < 0.35


def test_kernels_that_were_fitted_are_near(points):
    errors = _errors(points, held=False)
    assert median(errors) < 0.08
    assert sorted(errors)[int(0.9 * len(errors))] < 0.2


def test_the_order_of_kernels_is_the_published_one_where_they_differ_by_more_than_their_error(
    points,
):
    """At each size, of any two kernels on a machine of which one took over 1.4 times as long."""
    pairs = [
        (one, other)
        for one in points
        for other in points
        if one.of[:4] == other.of[:4]
        and one.of.seconds > 1.4 * other.of.seconds
        and "nccl" not in (one.of.strategy, other.of.strategy)
    ]
    assert len(pairs) > 40
    right = sum(one.predicted > other.predicted for one, other in pairs)
    assert right >= 0.95 * len(pairs)


@pytest.mark.thorough
@pytest.mark.parametrize("generation", list(BEFORE))
def test_the_constants_shipped_are_fitted_to_what_is_not_held(generation):
    shipped = load_calibration(generation)
    found = fit_kernels(generation)
    for key in ("launch", "barrier", "release", "release_multicast", "load", "block"):
        assert getattr(found, key) == pytest.approx(getattr(shipped.nccl.kernels, key), rel=0.02)
    assert found.efficiency == pytest.approx(shipped.nccl.kernels.efficiency, rel=0.02)
    assert "kernels.csv" in shipped.provenance["kernels"]


def test_constants_of_kernels_are_written_and_read(tmp_path):
    calibration = load_calibration("nccl-blackwell")
    place = tmp_path / "mine.toml"
    place.write_text(to_toml(calibration), "utf-8")
    assert calibration.nccl == load_calibration(str(place)).nccl


def test_the_report_has_a_row_for_each_implementation(points):
    found = AccuracyComparison(points)
    document = KERNELS.document.write(found)
    assert len(document["groups"]) == 25
    assert sum(group["held"] for group in document["groups"]) == 8
    assert any("held out: " in line for line in KERNELS.lines(found))
    assert len(document["points"]) == len(published_kernels())
