"""Plots, read as data: their axes, lines, texts and bars."""

from __future__ import annotations

import math
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.errors import InputError
from simreduce.report.plots import (
    AccuracyPoint,
    TimelineBar,
    check_plot,
    draw_accuracy,
    draw_bars,
    draw_curves,
    draw_timeline,
)
from tests.thorough import examples

pytest.importorskip("matplotlib")


def row(algorithm="ring", size=2**20, measured=1e-3, predicted=1.1e-3) -> AccuracyPoint:
    return AccuracyPoint(algorithm, size, measured, 0.9 * measured, 1.2 * measured, predicted)


def words(plot) -> str:
    """All texts of a plot, as its SVG has them."""
    return "\n".join("".join(e.itertext()) for e in ET.fromstring(plot.svg()).iter())  # noqa: S314


def labels(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels() if label.get_text()]


def errorbars(axes) -> list[tuple[float, float]]:
    """The marks of an axes, without the error bars."""
    return [tuple(float(v[0]) for v in c.lines[0].get_data()) for c in axes.containers]


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
def test_every_row_is_inside_both_panels_at_its_measured_time(rows):
    plot = draw_accuracy(rows, "title", "subtitle", ["note"])
    left, right = plot.figure.axes[:2]

    assert len(rows) == len(right.containers)
    assert sum(r.predicted is not None for r in rows) == len(left.containers)
    assert sorted(y for _, y in errorbars(right)) == sorted(r.measured for r in rows)
    for axes in (left, right):
        if axes.containers:
            (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
            assert all(x0 <= x <= x1 and y0 <= y <= y1 for x, y in errorbars(axes))
    plot.svg()


def test_axes_are_logarithmic_and_their_labels_have_units():
    rows = [row(size=1 << k, measured=1e-6 * 2**k, predicted=1e-6 * 2**k) for k in (2, 10, 20)]
    plot = draw_accuracy(rows, "t")
    plot.png(50)
    left, right = plot.figure.axes[:2]

    assert ["log"] * 3 == [left.get_xscale(), left.get_yscale(), right.get_yscale()]
    assert left.get_xlim() == left.get_ylim()
    assert "1 ms" in labels(left.xaxis)
    assert ["4 B", "32 B", "256 B", "2 KiB"] == labels(right.xaxis)[:4]


def test_the_line_of_no_error_and_the_legend():
    text = words(draw_accuracy([row(), row("nccl")], "t", "of nominal", ["a note", "another"]))

    for word in (
        "no error",
        "20 % error or less",
        "95 % interval",
        "ring",
        "nccl",
        "a note",
        "of nominal",
    ):
        assert word in text


def test_intervals_are_bars_from_low_to_high():
    plot = draw_accuracy([row(measured=1e-3)], "t")
    ((bar,), (upright,)) = (axes.containers[0].lines[2] for axes in plot.figure.axes[:2])

    assert [(0.9e-3, 1.1e-3), (1.2e-3, 1.1e-3)] == [
        pytest.approx(end) for end in bar.get_segments()[0].tolist()
    ]
    assert [0.9e-3, 1.2e-3] == pytest.approx(upright.get_segments()[0][:, 1].tolist())


def test_a_dozen_algorithms_all_look_different_and_the_others_are_grey_and_counted():
    plot = draw_accuracy([row(f"a{i}") for i in range(15)], "t")
    lines = [c.lines[0] for c in plot.figure.axes[1].containers]
    looks = [(line.get_color(), line.get_marker()) for line in lines]

    assert 12 == len(set(looks[:12]))
    assert 1 == len(set(looks[12:]))
    assert "3 more, in grey" in words(plot)


def test_rows_without_prediction_are_on_the_right_only():
    plot = draw_accuracy([row(predicted=None)], "t")

    assert [0, 1] == [len(axes.containers) for axes in plot.figure.axes[:2]]
    assert "nothing is predicted" in words(plot)


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
        draw_accuracy(rows, "t")

    assert all(fault in str(caught.value) for fault in faults)


def test_curves_are_in_gigabytes_a_second_over_sizes_in_order():
    plot = draw_curves({"ring": [(4096, 2e9), (1024, 1e9)]}, "title")
    axes = plot.figure.axes[0]
    (line,) = axes.lines

    assert ([1024, 4096], [1.0, 2.0]) == tuple(v.tolist() for v in line.get_data())
    assert "busbw (GB/s)" == axes.get_ylabel()
    assert 0 == axes.get_ylim()[0]


def test_bars_stand_in_their_order_and_many_are_counted():
    plot = draw_bars([(f"s{i}", 1e-3 * (i + 1)) for i in range(50)], "ranking")
    axes = plot.figure.axes[0]

    assert [1.0, 2.0] == [pytest.approx(bar.get_width()) for bar in axes.patches[:2]]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]
    assert "the first 40 of 50" in words(plot)


def test_a_timeline_has_a_row_for_each_track_and_a_colour_for_each_kind():
    tracks = [
        ("gpu0", [TimelineBar(0, 0.01, "forward"), TimelineBar(0.01, 0.03, "backward")]),
        ("reductions", []),
    ]
    plot = draw_timeline(tracks, "step")

    assert ["gpu0", "reductions"] == labels(plot.figure.axes[0].yaxis)
    assert {"forward", "backward"} <= set(words(plot).split())


@pytest.mark.parametrize(
    "plot",
    [lambda: draw_curves({}, "t"), lambda: draw_bars([], "t"), lambda: draw_timeline([], "t")],
)
def test_nothing_to_draw_is_an_empty_plot(plot):
    assert plot().png(50).startswith(b"\x89PNG")


def test_the_same_data_gives_the_same_svg():
    first, second = (draw_accuracy([row()], "t").svg() for _ in range(2))

    assert first == second


def test_without_matplotlib_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    with pytest.raises(InputError, match=r"^plots need matplotlib: .*'simreduce\[plot\]'$"):
        check_plot()
    with pytest.raises(InputError, match="plots need matplotlib"):
        draw_bars([("a", 1.0)], "t")


def test_matplotlib_loads_only_when_a_plot_is_drawn():
    code = "import sys, simreduce.report.plots; raise SystemExit('matplotlib' in sys.modules)"

    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode
