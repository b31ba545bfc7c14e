"""Two sweeps compared: what changed, and which winners did."""

from __future__ import annotations

import json

import pytest

from simreduce.errors import InputError
from simreduce.report.sweeps import COMPARE, ComparedSweeps, compared_text
from simreduce.study.sweep import BENCH, JOBS
from simreduce.study.sweep.running import compare
from simreduce.study.sweep.store import Sweep

SWEEP = Sweep(1, "mine", BENCH, ("nodes", "strategy", "calibration"), {}, "0.1", 4, "2026-01-01")


def _rows(calibration, **seconds):
    return [
        {
            "nodes": nodes,
            "strategy": name,
            "calibration": calibration,
            "state": "done" if each is not None else "refused",
            "reason": "" if each is not None else "no route",
            "seconds": each,
        }
        for name, times in seconds.items()
        for nodes, each in times.items()
    ]


BEFORE = _rows("old", ring={1: 1.0, 2: 2.0}, tree={1: 3.0, 2: 2.5, 4: 1.0})
AFTER = _rows("new", ring={1: 1.0, 2: 3.0}, tree={1: 3.0, 2: 2.4, 4: None, 8: 1.0})


def test_changes_and_winners():
    """The calibration that was changed tells no cells apart; the largest change comes first."""
    found = compare((SWEEP, BEFORE), (SWEEP, AFTER))

    assert (("nodes", "strategy"), "strategy") == (found.keys, found.chosen)
    assert (5, (0, 1)) == (found.both, found.only)
    assert [(4, "tree"), (2, "ring"), (2, "tree")] == [each.place for each in found.changed]
    assert [1.5, 0.96] == [each.ratio for each in found.changed[1:]]
    assert ("done", "refused") == found.changed[0].states
    (flip,) = found.flipped
    assert ((2,), ("ring", "tree"), 2) == (flip.place, flip.choice, found.questions)
    assert 0.25 == pytest.approx(flip.worth)


def test_a_sweep_is_equal_to_itself():
    """Nothing changed, no winner either."""
    found = compare((SWEEP, BEFORE), (SWEEP, BEFORE))

    assert ((), (), {1.0}) == (found.changed, found.flipped, set(found.ratios))


def test_jobs_are_compared_by_their_slowdowns():
    """Whatever the one that loses most takes: it may be another job."""
    sweep = Sweep(1, "mine", JOBS, ("oversubscription",), {}, "0.1", 2, "2026-01-01")
    earlier, later = (
        [
            {"oversubscription": n, "state": "done", "seconds": 1.0 / n, "slowdown": slowdown}
            for n, slowdown in zip((1, 4), slowdowns, strict=True)
        ]
        for slowdowns in ((1.0, 2.0), (3.0, 2.0))
    )
    both = compare((sweep, earlier), (sweep, later), "oversubscription")
    text = compared_text(ComparedSweeps(both, [(name, sweep) for name in ("a.db", "b.db")]))

    assert both.figure == "slowdown"
    assert [each.figures for each in both.changed] == [(1.0, 3.0)]
    assert both.flipped[0].choice == (1, 4)
    for words in (
        "slowdown of the second over the first: 1 to 3",
        "3.00x",
        "Best oversubscription",
    ):
        assert words in text


def test_small_changes_are_none_within_a_tolerance():
    """Up and down alike; a state that changed always counts."""
    found = compare((SWEEP, BEFORE), (SWEEP, AFTER), tolerance=0.05)

    assert [(4, "tree"), (2, "ring")] == [each.place for each in found.changed]


def test_what_cannot_be_compared():
    """A key that only one of the two varies, and one that nobody varies."""
    other = Sweep(2, "other", BENCH, ("nodes",), {}, "0.1", 4, "2026-01-01")
    with pytest.raises(InputError, match="only the first sweep has the key strategy"):
        compare((SWEEP, BEFORE), (other, AFTER))
    with pytest.raises(InputError, match=r"no key 'stratgy' varies.*'strategy'"):
        compare((SWEEP, BEFORE), (SWEEP, AFTER), "stratgy")


def test_the_report_names_cells_times_and_winners():
    """As text and as JSON."""
    found = compare((SWEEP, BEFORE), (SWEEP, AFTER))
    both = ComparedSweeps(found, [("a.db", SWEEP), ("b.db", SWEEP)])
    text, document = compared_text(both), COMPARE.write(both)

    for part in ("5 cells in both, 3 changed", "+50.00%", "no route", "1 of 2 changed", "25.00%"):
        assert part in text
    assert document == json.loads(json.dumps(document))
    assert {"nodes": 2} == document["flipped"][0]["cell"]
