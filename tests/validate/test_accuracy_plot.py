"""The plot of measured beside predicted times."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings, strategies as st
from simreduce_validate.report.accuracy_plot import AccuracyPoint, accuracy_plot

from simreduce.errors import InputError
from tests.thorough import examples


def row(algorithm="ring", size=2**20, measured=1e-3, predicted=1.1e-3) -> AccuracyPoint:
    return AccuracyPoint(algorithm, size, measured, 0.9 * measured, 1.2 * measured, predicted)


def shown(facet, names):
    """The points with marks of the algorithms."""
    return [p for s in facet.series if s.name in names and s.mark == "dot" for p in s.points]


@settings(deadline=None, max_examples=examples(15, usual=5))
@given(
    st.lists(
        st.builds(
            row,
            st.sampled_from(["ring", "nccl", "pscpu:32k:xring", "a $_{x} \x07\u202e" * 9]),
            st.sampled_from([1, 4, 2**20, 2**40]),
            st.floats(1e-9, 1e5),
            st.one_of(st.none(), st.floats(1e-9, 1e5)),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_every_row_is_inside_both_facets_at_its_measured_time(rows):
    plot = accuracy_plot(rows, "title", "subtitle", ["note"])
    names = {row.algorithm for row in rows}
    left, right = plot.facets

    predicted = sorted((r.measured, r.predicted) for r in rows if r.predicted)
    assert predicted == sorted((p.x, p.y) for p in shown(left, names))
    assert sorted(r.measured for r in rows) == sorted(p.y for p in shown(right, names))
    if predicted:
        low, high = left.x.ends
        assert all(low <= end <= high for p in shown(left, names) for end in p[:4])
        assert left.x.ends == left.y.ends
    assert plot.svg().count("<circle") + plot.svg().count("<polygon") >= len(rows)


def test_the_line_of_no_error_and_the_legend():
    text = accuracy_plot([row(), row("nccl")], "t", "of nominal", ["a note", "another"]).svg()

    words = ("no error", "20% or less", "95 % interval", "ring", "nccl", "a note", "of nominal")
    assert all(word in text for word in words)


def test_intervals_are_bars_from_low_to_high():
    left, right = accuracy_plot([row(measured=1e-3)], "t").facets

    for facet, way in ((left, "across"), (right, "up")):
        (point,) = shown(facet, {"ring"})
        assert (0.9e-3, 1.2e-3) == pytest.approx((point.low, point.high))
        assert way in {series.interval for series in facet.series if series.name == "ring"}


def test_rows_without_prediction_are_on_the_right_only():
    plot = accuracy_plot([row(predicted=None)], "t")

    assert [0, 1] == [len(shown(facet, {"ring"})) for facet in plot.facets]
    assert "nothing is predicted" in plot.svg()


def test_rows_of_one_size_stand_side_by_side_under_their_names():
    _, right = accuracy_plot([row("a"), row("b")], "t").facets

    assert (["a", "b"], [0, 1]) == (right.x.names, [p.x for p in shown(right, {"a", "b"})])
    assert "Time at 1 MiB" == right.title


@pytest.mark.parametrize(
    ("rows", "faults"),
    [
        ([], ["nothing was measured"]),
        (
            [row(size=0), row(measured=math.inf)],
            ["ring, 0 B: the size", "ring, 1048576 B: measured: inf s"],
        ),
        (
            [AccuracyPoint("x", 4, 2.0, 3.0, 1.0, -1.0)],
            ["x, 4 B: predicted: -1.0 s", "x, 4 B: low: 3.0 s is more than high"],
        ),
    ],
)
def test_rows_without_a_place_on_the_axes_are_all_named(rows, faults):
    with pytest.raises(InputError) as caught:
        accuracy_plot(rows, "t")

    assert all(fault in str(caught.value) for fault in faults)
