"""Rows in order, and how a ranking ended."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace as Row

import pytest

from simreduce.study.ranking import RankedRows, in_order, lasting, merge_equal, settle_ties


@pytest.mark.parametrize(
    ("untried", "hurried", "complete", "interrupted"),
    [(0, False, True, False), (2, False, False, True), (2, True, False, False)],
)
def test_a_budget_of_time_is_no_interrupt(untried, hurried, complete, interrupted):
    found = RankedRows(None, (), (), untried, hurried=hurried)

    assert (complete, interrupted) == (found.complete, found.interrupted)


def test_what_does_not_fit_is_last():
    rows = [Row(misfit=misfit, seconds=seconds) for misfit in (True, False) for seconds in (2, 1)]

    assert [rows[3], rows[2], rows[1], rows[0]] == in_order(rows)


def test_equal_rows_are_one():
    assert ["ac", "b"] == merge_equal("abc", lambda row: row == "b", lambda a, b: a + "".join(b))


@pytest.mark.parametrize(("most", "tried"), [(10, 3), (2, 2)])
def test_ties_are_settled_once_the_best_is_tried(most, tried):
    """Of five plans the first two take longest where starts are moved."""

    def note(ranking, moved):
        rows = tuple(Row(name=r.name, seconds=r.seconds, moved=moved.get(r.name)) for r in rows_of)
        return replace(ranking, candidates=rows)

    rows_of = tuple(Row(name=i, seconds=1.0 + i, moved=None) for i in range(5))
    found = settle_ties(
        RankedRows(None, rows_of, ()),
        most,
        deciding=lambda ranking: [min(ranking.candidates, key=lasting)],
        plan=lambda row: row.name,
        find=lambda row: 9.0 if row.name < 2 else row.seconds,
        note=note,
    )

    assert [9.0, 9.0, 3.0, None, None][:tried] == [r.moved for r in found.candidates[:tried]]
    assert all(r.moved is None for r in found.candidates[tried:])
