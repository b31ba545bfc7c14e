"""Plots of sweeps: what they show, with units and bands."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from simreduce.errors import InputError
from simreduce.report.plots import PlotPoint, draw_frontier
from simreduce.report.plots.sweeps import pareto
from simreduce.report.sweep_plots import HEAT, LINES, PARETO, axis, sweep_plot
from simreduce.study.sweep import BENCH, JOBS, STEP, Sweep

KEYS = ("nodes", "strategy", "size")
SWEEP = Sweep(1, "mine", BENCH, KEYS, {}, "0.1", 4, "2026-01-01")
ROWS = [
    {
        "nodes": nodes,
        "strategy": strategy,
        "size": "64M",
        "nbytes": 1 << 26,
        "state": "done" if (nodes, strategy) != (4, "tree") else "refused",
        "seconds": factor / nodes,
        "low": factor / nodes / 2 if strategy == "ring" else None,
        "high": factor / nodes * 2 if strategy == "ring" else None,
        "busbw": nodes * 1e9,
        "ranks": 8 * nodes,
        "calibration": "nominal",
        "version": "0.1+abc",
    }
    for strategy, factor in (("ring", 0.01), ("tree", 0.02))
    for nodes in (1, 2, 4)
]


def _axes(plot):
    return plot.figure.axes[0]


def test_lines_are_one_for_each_other_key_that_varies():
    """Bandwidths in GB/s over the numbers that vary, with the band of those that have one."""
    axes = _axes(sweep_plot(SWEEP, ROWS, LINES))
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}

    assert ("nodes", "busbw (GB/s)") == (axes.get_xlabel(), axes.get_ylabel())
    assert {"ring": [[1, 1], [2, 2], [4, 4]], "tree": [[1, 1], [2, 2]]} == lines
    (band,) = axes.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (0.5, 8.0) == (heights.min(), heights.max())


def test_times_have_their_own_ticks():
    """Milliseconds beside a logarithmic axis."""
    plot = sweep_plot(SWEEP, ROWS, LINES, y="seconds")

    assert "10 ms" in plot.svg()
    assert "80 % interval" in plot.svg()
    assert "64 MiB" in plot.svg()


def test_a_heat_map_has_a_square_for_each_pair():
    """With a cross where there is no answer."""
    plot = sweep_plot(SWEEP, ROWS, HEAT, x="nodes", y="strategy", value="seconds")
    texts = [text.get_text() for text in _axes(plot).texts]

    assert ["10 ms", "5 ms", "2.5 ms", "20 ms", "10 ms", "x"] == texts


def test_a_pareto_plot_names_what_nothing_beats():
    """Of equal machines the fastest strategy."""
    plot = sweep_plot(SWEEP, ROWS, PARETO)

    assert {"nodes 1, ring", "nodes 2, ring", "nodes 4, ring"} == {
        text.get_text() for text in _axes(plot).texts
    }


def test_steps_show_seconds():
    """Collectives show bandwidth, steps time; shares are in percent."""
    steps = Sweep(1, "mine", STEP, KEYS, {}, "0.1", 4, "2026-01-01")

    assert "time" == _axes(sweep_plot(steps, ROWS, LINES)).get_ylabel()
    assert "efficiency (%)" == axis("efficiency").label


def test_jobs_show_their_slowdown():
    """The less the better, in lines, heat maps and Pareto plots; it is no share."""
    jobs = Sweep(1, "mine", JOBS, KEYS, {}, "0.1", 4, "2026-01-01")
    rows = [{**row, "slowdown": 1.0 + row["nodes"] / 4, "seconds": 1.0} for row in ROWS]
    lines, pareto = (_axes(sweep_plot(jobs, rows, kind)) for kind in (LINES, PARETO))
    squares = _axes(sweep_plot(jobs, rows, HEAT, x="nodes", y="strategy"))

    assert ("slowdown", "slowdown") == (lines.get_ylabel(), pareto.get_xlabel())
    assert [1.25, 1.5, 2.0] == lines.get_lines()[0].get_ydata().tolist()
    assert {"1.25", "1.5", "2", "x"} == {text.get_text() for text in squares.texts}


@pytest.mark.parametrize(
    ("kind", "more", "fault"),
    [
        (LINES, {"y": "busbv"}, "no column 'busbv' .did you mean 'busbw'"),
        (HEAT, {"x": "nodez"}, "no column 'nodez' .did you mean 'nodes'"),
    ],
)
def test_columns_that_are_not_there(kind, more, fault):
    with pytest.raises(InputError, match=fault):
        sweep_plot(SWEEP, ROWS, kind, **more)


def test_a_sweep_without_answers_has_no_plot():
    refused = [{**row, "state": "refused"} for row in ROWS]
    with pytest.raises(InputError, match="no cell is done"):
        sweep_plot(SWEEP, refused, LINES)


points = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12)


@given(points, st.tuples(st.booleans(), st.booleans()))
def test_the_frontier_is_what_nothing_beats(values, best):
    """By comparing all pairs."""
    signs = [-1 if more else 1 for more in best]
    scaled = [(signs[0] * x, signs[1] * y) for x, y in values]
    unbeaten = {
        p for p in scaled if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in scaled)
    }

    assert unbeaten == {scaled[i] for i in pareto(values, best)}
    assert len(unbeaten) == len(pareto(values, best))


def test_cost_against_time_marks_the_choice_and_what_meets_the_target():
    """Filled marks meet it, and the axes have the units that they are given."""
    series = {
        "a": [
            PlotPoint(1.0, 10.0, 0.9, 1.2, "1"),
            PlotPoint(2.0, 8.0, None, None, "2", meets=False),
        ],
        "b": [PlotPoint(3.0, 9.0, None, None, "1")],
    }
    text = draw_frontier(
        series, [(1.0, 10.0), (2.0, 8.0)], (1.0, 10.0), ("time (h)", "cost (USD)"), "mine"
    ).svg()

    for part in ("time (h)", "cost (USD)", "frontier", "choice"):
        assert part in text
    with pytest.raises(InputError, match="nothing to draw"):
        draw_frontier({}, [], None, ("", ""), "mine")
