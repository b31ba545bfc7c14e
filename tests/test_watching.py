"""Work that ends when its budget is spent, of time or of work, with what there is."""

from __future__ import annotations

import gc
import os
import signal
import time
from functools import cache
from itertools import count

import pytest

from simreduce.computing.workers import (
    answering,
    as_piece,
    charge,
    is_overdue,
    time_is_up,
    time_left,
    until_stopped,
    within,
)
from simreduce.study.ranking import answer_all

SHORT, LONG = 0.05, 30.0


def test_work_ends_in_the_middle_of_a_piece_once_it_has_an_answer():
    def pieces():
        yield 1
        time.sleep(LONG)
        yield 2

    begun = time.monotonic()
    with within(SHORT):
        assert until_stopped(pieces()) == [1]
        assert time_is_up()
    assert time.monotonic() - begun < LONG / 2
    assert not time_is_up()


def test_work_without_an_answer_goes_on_until_it_has_one():
    def pieces():
        time.sleep(4 * SHORT)
        yield from count()

    with within(SHORT):
        assert until_stopped(pieces()) == [0]
    with within(SHORT):
        assert until_stopped(pieces(), due=lambda found: len(found) > 2) == [0, 1, 2]


def test_an_interrupt_goes_to_who_has_an_answer():
    with within(SHORT), pytest.raises(KeyboardInterrupt), answering(lambda: True):
        until_stopped(time.sleep(LONG) or () for _ in range(1))


def test_work_ends_where_time_was_up_in_a_collection_of_garbage():
    """Python drops what its collector's callbacks and finalizers raise."""
    came = []

    def collected(phase, _info):
        came.append(phase)
        signal.raise_signal(signal.SIGALRM)

    def pieces():
        yield 1
        gc.callbacks.append(collected)
        try:
            gc.collect()
        finally:
            gc.callbacks.remove(collected)
        yield 2
        time.sleep(LONG)
        yield 3

    with within(LONG):
        assert until_stopped(pieces()) in ([1], [1, 2])
    assert came[:2] == ["start", "stop"]


def test_an_inner_time_ends_before_the_outer_and_never_after_it():
    with within(LONG):
        with within(SHORT):
            assert time_left() <= SHORT
            assert until_stopped(count()) != []
        assert SHORT < time_left() <= LONG
        with within(2 * LONG):
            assert time_left() <= LONG
    assert time_left() == float("inf")


def test_time_that_is_not_up_ends_nothing():
    with within(LONG):
        assert until_stopped(range(5)) == [0, 1, 2, 3, 4]
        assert not time_is_up()


def test_ctrl_c_within_a_time_is_no_end_of_it():
    def pieces():
        yield 1
        os.kill(os.getpid(), signal.SIGINT)
        yield 2

    with within(LONG):
        assert until_stopped(pieces()) == [1]
        assert not time_is_up()


def test_the_timer_of_others_is_as_before():
    before = signal.getsignal(signal.SIGALRM), signal.setitimer(signal.ITIMER_REAL, 10 * LONG)
    with within(LONG):
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= LONG
    assert signal.getsignal(signal.SIGALRM) == before[0]
    assert LONG < signal.setitimer(signal.ITIMER_REAL, *before[1])[0] <= 10 * LONG


def test_a_budget_of_work_ends_at_the_same_piece_whatever_the_clock_says(monkeypatch):
    """A piece counts for its ops and for 3,000 more; 1,400,000 are a second."""

    def pieces():
        for number in count():
            charge(697_000)
            yield number

    for clock in (lambda: 0.0, count(0.0, LONG).__next__):
        monkeypatch.setattr(time, "monotonic", clock)
        with within(1.4, of_work=True):
            assert until_stopped(pieces()) == [0, 1]
            assert time_is_up()
            assert time_left() == 0.0
        assert not time_is_up()


def test_an_inner_budget_of_work_is_a_part_of_the_outer():
    with within(10.0, of_work=True):
        with within(0.25 * time_left()):
            charge(1_397_000)
            assert time_left() == pytest.approx(1.5)
        assert time_left() == pytest.approx(9.0)
    with within(LONG), within(1.0, of_work=True):
        charge(1 << 40)
        assert not time_is_up()


def test_work_ends_in_the_middle_of_a_piece_only_with_an_answer():
    ended = []

    def pieces():
        for number in count():
            charge(1 << 30)
            ended.append(number)
            yield number

    with within(1.0, of_work=True):
        assert until_stopped(pieces()) == [0]
        assert until_stopped(pieces(), due=lambda found: len(found) > 1) == [0, 1]
    assert ended == [0, 0, 1]


def test_what_a_cache_keeps_is_a_piece_of_work_each_time():
    kept = as_piece(cache(charge))
    with within(1.0, of_work=True):
        for left in (1 - 3e3 / 1.4e6, 1 - 6e3 / 1.4e6):
            kept(1 << 30)
            assert time_left() == pytest.approx(left)


def test_a_budget_waits_for_what_runs_today_but_not_for_long():
    def evaluate(number, _limit):
        return time.sleep(LONG * number) or number

    begun = time.monotonic()
    with within(SHORT):
        found, _, untried, hurried = answer_all(
            (0, 1), ("a", "b"), evaluate, by_name=False, waited=(0, 1)
        )
    assert (found, untried, hurried) == ({0: 0}, 1, True)
    assert time.monotonic() - begun < LONG / 2
    assert not is_overdue()
