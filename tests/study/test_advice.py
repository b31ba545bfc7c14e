"""What reports advise, and how sure they are."""

from __future__ import annotations

from types import SimpleNamespace as Row

import pytest

from simreduce.study.advice import (
    Option,
    advise,
    advise_ranking,
    faster_row,
    recommend,
    recommend_for,
    recommend_setting,
    recommend_step,
    recommend_step_for,
)

ERRORS = {"factor": 1.5, "ratio_factor": 1.2}


@pytest.mark.parametrize(("today", "apart"), [(1.25, True), (1.15, False)])
def test_a_gap_is_held_against_the_error_of_a_ratio_and_a_time_against_its_own(today, apart):
    found = advise(Option("nccl", 1.0), [Option("nccl+ddp", today, "PyTorch")], ERRORS)

    assert (1.5, apart) == (found.factor, found.apart)
    assert "within a factor of 1.50" in found.caution("nominal")


def test_of_other_times_than_nccls_nothing_is_known():
    found = advise(Option("ring", 1.0), [Option("nccl", 2.0, "NCCL")], ERRORS)

    assert (None, None) == (found.factor, found.apart)


def _row(seconds, *, wrong=0, runnable=True, undispatched=False, shortest=9.0, also=(), moved=None):
    return Row(
        seconds=seconds, wrong=wrong, runnable=runnable, undispatched=undispatched,
        shortest=shortest, also=also, moved=moved,
    )  # fmt: skip


def test_the_fastest_that_tensorflow_runs_is_recommended_and_what_looks_faster_is_named():
    """A foreign strategy, and a lower bound before NCCL that may be as fast."""
    wrong, foreign = _row(1.0, wrong=3), _row(2.0, runnable=False)
    bound, nccl = _row(3.0, undispatched=True), _row(4.0, shortest=2.5)

    found = recommend([wrong, foreign, bound, nccl])
    assert (nccl, foreign, bound) == (found.best, found.foreign, found.bound)
    found = recommend([foreign])
    assert (foreign, None, None) == (found.best, found.foreign, found.bound)
    assert recommend([wrong]) is None


def test_a_system_gets_the_fastest_name_that_it_has_a_setting_for():
    """Not one whose sums are wrong."""
    name = _row(2.0)
    rows = [_row(1.0, wrong=1), _row(2.0, also=(name,)), _row(3.0)]

    assert recommend_for(rows, lambda row: row in (rows[0], name, rows[2])) is name
    assert recommend_for(rows, lambda _: False) is None


def test_the_first_name_with_a_setting_is_exported():
    """Of what sums right."""
    rows = [Row(wrong=1, names=["a"]), Row(wrong=0, names=["b", "c"]), Row(wrong=0, names=["d"])]

    assert "c" == recommend_step_for(rows, {"a", "c", "d"}.__contains__)
    assert recommend_step_for(rows, {"a"}.__contains__) is None


@pytest.mark.parametrize(
    ("moved", "best"), [(None, 0), (1.9, 0), (3.0, 1), (0.5, 0)], ids=["no", "still", "not", "less"]
)
def test_no_tie_in_queues_decides_what_is_recommended(moved, best):
    """A time that hangs on ties counts as the longer of both; what would be faster is named."""
    rows = [_row(1.0, moved=moved), _row(2.0)]
    found = recommend(rows)

    assert rows[best] is found.best
    assert (rows[0] if best else None) is found.tied
    assert rows[best] is recommend_for(rows, lambda _: True)
    settings = [Row(**vars(row), misfit=False, setting=Row(tie_break=1)) for row in rows]
    assert settings[best] is recommend_setting(settings)


def test_advice_says_what_a_tie_decides_and_keeps_what_runs_today():
    today = [{"strategy": "b", "time_us": 2.0, "wrong": 0, "chosen_by": ["choose_the_best"]}]
    tied = {"strategy": "a", "time_us": 1.0, "moved_us": 3.0, "wrong": 0}
    document = {"candidates": [tied, *today], "recommended": "a", "disturbance": ""}
    row, advice = advise_ranking(document)
    assert ("b", False) == (row["strategy"], advice.changes)

    kept = advise(Option("b", 2.0), [Option("a", 1.0, "PyTorch's DDP", 3.0)], {})
    assert (
        "Run b: 2 us, 1.50 times as fast as PyTorch's DDP today (a, 1 us, or 3 us if starts move "
        "by 0.1% (queues tie))." == kept.sentence("Run b", kept.best.took)
    )


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ([(0, False), (1, True), (0, None), (0, True)], 2),
        ([(1, True), (0, False)], 1),
        ([(1, False), (1, True)], 1),
    ],
)
def test_a_step_is_right_before_it_fits_before_it_is_fast(rows, best):
    found = [Row(wrong=wrong, fits=fits) for wrong, fits in rows]

    assert found[best] is recommend_step(found)


def test_of_settings_as_fast_the_one_with_fewest_words_is_best():
    """As long as all of them fit alike."""
    rows = [
        Row(seconds=seconds, moved=None, misfit=misfit, setting=Row(tie_break=words))
        for seconds, misfit, words in [
            (1.0, False, 3),
            (1.0, False, 2),
            (1.0, True, 1),
            (2.0, False, 0),
        ]
    ]

    assert rows[1] is recommend_setting(rows)


def test_a_faster_row_is_named_unless_measuring_chose():
    rows = [
        {"wrong": 2, "time_us": 1.0},
        {"wrong": 0, "time_us": 2.0},
        {"wrong": 0, "time_us": 3.0},
    ]

    assert rows[1] is faster_row({"candidates": rows}, rows[2])
    assert faster_row({"candidates": rows}, rows[1]) is None
    assert faster_row({"candidates": rows, "measured": [{}]}, rows[2]) is None
