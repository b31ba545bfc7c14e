"""Bars of what differs from today's setting."""

from __future__ import annotations

import pytest

from simreduce.files import tables
from simreduce.report.blocks import BEST, TODAY, Section, differences, section_lines
from simreduce.report.headings import mark

NONE = tables.texts("a|b", ())


def chart(times, marks, most=10):
    rows = [{"name": f"s{i}", "us": us} for i, us in enumerate(times)]
    found = differences("Time", NONE, rows, "name", "us", marks, most)
    bars = {
        found.drawn.y.names[point.y]: (pytest.approx(point.x * 1e6), point.label, series.colour)
        for series in found.drawn.series
        for point in series.points
    }
    return found, bars


def test_today_is_zero_and_bars_lead_to_both_sides_of_it():
    """In microseconds and parts of today's time; the axis ends at twice that."""
    found, bars = chart([90.0, 100.0, 125.0, 400.0], [BEST, TODAY, 0, 0])

    assert bars == {
        "s0": (-10.0, "-10.0%, -10 us", "best"),
        "s1": (0.0, "100 us", "today"),
        "s2": (25.0, "+25.0%, +25 us", "others"),
        "s3": (300.0, "+300.0%, +300 us", "others"),
    }
    assert [-10e-6, 100e-6] == pytest.approx(found.drawn.x.ends)
    assert "orange: what runs today" in found.words
    assert "faster than today (100 us)" in found.words
    assert "cut at twice" in found.words


def test_without_today_differences_are_from_the_fastest():
    """Which is zero, so nothing is to the left of it."""
    found, bars = chart([80.0, 100.0], [0, 0])

    assert [(0.0, "80 us"), (20.0, "+25.0%, +20 us")] == [bar[:2] for bar in bars.values()]
    assert "faster than the fastest" not in found.words
    assert "today" not in found.words
    assert 0.0 == found.drawn.x.ends[0]


def test_marked_rows_are_shown_however_slow():
    """With how many others the table has."""
    found, bars = chart([80.0, 90.0, 95.0, 99.0], [BEST, 0, 0, TODAY], most=2)

    assert ["s0", "s1", "s3"] == list(found.drawn.y.names)
    assert "3 of 4 rows" in found.words
    assert -19.0 == bars["s0"][0]


def test_one_bar_may_be_what_to_run_and_what_runs_today():
    """By any of its names."""
    advice = {"strategy": "a", "today_strategy": "b"}

    assert [BEST, TODAY, BEST + TODAY, 0] == [
        mark(advice, *names) for names in (["a"], ["c", "b"], ["b", "a"], ["d"])
    ]
    assert 0 == mark({**advice, "today_strategy": None}, "None")
    _, bars = chart([50.0, 60.0], [0, BEST + TODAY])
    assert (0.0, "60 us", "best") == bars["s1"]


def test_a_terminal_has_no_words_on_bars_that_it_does_not_draw():
    """There the table stands below the first sentence."""
    found, _ = chart([90.0, 100.0], [BEST, TODAY])

    assert "to the left: faster than today" in found.words
    assert ["", "Time"] == [*section_lines(Section("key", "Title", (found,)), 10)][:2]
