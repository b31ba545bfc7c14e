"""Plots of sweeps: what they show, with units and bands."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from simreduce.errors import InputError
from simreduce.report.pages.sweep import HEAT, LINES, PARETO, axis, pareto, sweep_plot
from simreduce.study.sweep import BENCH, JOBS, STEP
from simreduce.study.sweep.store import Sweep

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


def _facet(plot):
    (facet,) = plot.facets
    return facet


def _labels(facet):
    return [point.label for series in facet.series for point in series.points if point.label]


def test_lines_are_one_for_each_other_key_that_varies():
    """Bandwidths over the numbers that vary, with the band of those that have one."""
    facet = _facet(sweep_plot(SWEEP, ROWS, LINES))
    lines = {each.name: [(p.x, p.y / 1e9) for p in each.points] for each in facet.series}
    bands = {each.name: [(p.low, p.high) for p in each.points] for each in facet.series}

    assert ("nodes", "busbw (GB/s)") == (facet.x.label, facet.y.label)
    assert {"ring": [(1, 1), (2, 2), (4, 4)], "tree": [(1, 1), (2, 2)]} == lines
    assert [(0.5e9, 2e9), (1e9, 4e9), (2e9, 8e9)] == bands["ring"]
    assert [(None, None)] * 2 == bands["tree"]


def test_words_stand_side_by_side():
    facet = _facet(sweep_plot(SWEEP, ROWS, LINES, x="strategy"))

    assert ["ring", "tree"] == facet.x.names
    assert {"nodes 1", "nodes 2", "nodes 4"} == set(facet.names)


def test_times_have_their_own_ticks():
    """Milliseconds beside a logarithmic axis."""
    plot = sweep_plot(SWEEP, ROWS, LINES, y="seconds")

    assert ">10 ms<" in plot.svg()
    assert "80 % interval" in plot.svg()
    assert "64 MiB" in plot.svg()


def test_a_heat_map_has_a_cell_for_each_pair():
    """With a cross where there is no answer, and in colours of a scale."""
    plot = sweep_plot(SWEEP, ROWS, HEAT, x="nodes", y="strategy", value="seconds")
    facet = _facet(plot)
    cells = {(p.x, p.y): (p.label, each.colour) for each in facet.series for p in each.points}

    assert (["1", "2", "4"], ["ring", "tree"]) == (facet.x.names, facet.y.names)
    assert ["10 ms", "5 ms", "2.5 ms", "20 ms", "10 ms", "x"] == [
        cells[x, y][0] for y in (0, 1) for x in (0, 1, 2)
    ]
    assert cells[0, 0] == cells[1, 1]
    assert 5 == len({colour for _, colour in cells.values()})
    assert all(f">{label}<" in plot.svg() for label, _ in cells.values())


def test_a_pareto_plot_names_what_nothing_beats():
    """Of equal machines the fastest strategy."""
    facet = _facet(sweep_plot(SWEEP, ROWS, PARETO))

    assert {"nodes 1, ring", "nodes 2, ring", "nodes 4, ring"} == set(_labels(facet))
    assert [0.0025, 0.005, 0.01] == [point.x for point in facet.series[-1].points]


def test_steps_show_seconds():
    """Collectives show bandwidth, steps time; shares are in percent."""
    steps = Sweep(1, "mine", STEP, KEYS, {}, "0.1", 4, "2026-01-01")

    assert "time" == _facet(sweep_plot(steps, ROWS, LINES)).y.label
    assert "efficiency (%)" == axis("efficiency").label


def test_jobs_show_their_slowdown():
    """The less the better, in lines, heat maps and Pareto plots; it is no share."""
    jobs = Sweep(1, "mine", JOBS, KEYS, {}, "0.1", 4, "2026-01-01")
    rows = [{**row, "slowdown": 1.0 + row["nodes"] / 4, "seconds": 1.0} for row in ROWS]
    lines, pareto = (_facet(sweep_plot(jobs, rows, kind)) for kind in (LINES, PARETO))
    squares = _facet(sweep_plot(jobs, rows, HEAT, x="nodes", y="strategy"))

    assert ("slowdown", "slowdown") == (lines.y.label, pareto.x.label)
    assert [1.25, 1.5, 2.0] == [point.y for point in lines.series[0].points]
    assert {"1.25", "1.5", "2", "x"} == set(_labels(squares))


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
