"""Kernels beside blocks that hold SMs: predicted factors beside measured ones."""

from __future__ import annotations

import pytest

from simreduce.errors import InputError
from simreduce.files.published import MOVES, slowed_kernels
from simreduce.report.accuracy import INTERFERENCE
from simreduce.study.accuracy import AccuracyComparison, PointGroup, group_predicted
from simreduce.study.accuracy.kernels import predict_interference

HEADER = "gpu,kind,shape,beside,blocks,alone_us,beside_us,low_us,high_us,copied_GBps\n"


@pytest.fixture(scope="module")
def points():
    return predict_interference(slowed_kernels())


def test_half_of_the_factors_are_within_5_percent_and_90_percent_within_12(points):
    for some in (points, [point for point in points if point.of.blocks]):
        group = PointGroup(some)
        assert group.median < 0.05
        assert group.p90 < 0.12


def test_a_share_of_the_sms_says_less(points):
    """Twice the part of the SMs that blocks hold, for whatever kernel."""
    beside = [point for point in points if point.of.blocks]
    errors = [1.0 / (1.0 - 2 * p.of.blocks / 132) / p.published - 1.0 for p in beside]
    assert sorted(map(abs, errors))[len(errors) // 2] > 0.1


def test_blocks_that_wait_slow_nothing_that_moves_bytes(points):
    waits = [p for p in points if p.of.group == MOVES and p.of.beside == "wait"]
    assert len(waits) == 14
    assert all(point.predicted == 1.0 for point in waits)


def test_each_kind_is_near_what_was_measured(points):
    groups = group_predicted(points, lambda point: (point.of.group, point.of.what))
    assert len(groups) == 12
    for group in groups.values():
        assert group.median < 0.06


def test_a_file_of_another_gpu_is_compared(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text(HEADER + "NVIDIA A100-SXM4-80GB,residual,8x8,copy,8,100,110,109,112,100\n")
    (point,) = predict_interference(slowed_kernels(str(file)))
    assert point.predicted == pytest.approx(1 / (1 - 200e9 / 2.039e12))
    assert point.published == pytest.approx(1.1)
    found = AccuracyComparison([point], about={"source": "here"})
    assert any("blocks that copy" in line for line in INTERFERENCE.lines(found))
    assert INTERFERENCE.document.write(found)["points"][0]["blocks"] == 8


def test_blocks_that_leave_no_sm_are_refused(tmp_path):
    """All of H200's 132, or more; one fewer may be."""
    file = tmp_path / "mine.csv"
    rows = [f"H200,product,8x{rows}x8,wait,{130 + rows},1,1,1,1," for rows in (1, 2, 3)]
    file.write_text(HEADER + rows[0] + "\n")
    assert predict_interference(slowed_kernels(str(file)))[0].predicted >= 1.0
    file.write_text(HEADER + "\n".join(rows) + "\n")
    with pytest.raises(InputError) as caught:
        predict_interference(slowed_kernels(str(file)))
    assert caught.value.problems == tuple(
        f"H200, product 8x{rows}x8: {130 + rows} blocks leave none of 132 SMs" for rows in (2, 3)
    )


def test_every_fault_of_a_file_is_said_at_once(tmp_path):
    file = tmp_path / "bad.csv"
    rows = (
        "H200,prodct,8x8x8,wait,1,1,1,1,1,", "H200,product,8x8,wait,0,1,1,x,1,a",
        "H200,gelu,8x8,h2d,3,1,1,1,1,",
    )  # fmt: skip
    file.write_text(HEADER + "\n".join(rows) + "\n")
    with pytest.raises(InputError) as caught:
        slowed_kernels(str(file))
    words = str(caught.value)
    for each in ("line 2: kind", "line 3: shape", "line 3: blocks", "line 3: low_us",
                 "line 3: copied_GBps", "line 4: blocks"):  # fmt: skip
        assert each in words
