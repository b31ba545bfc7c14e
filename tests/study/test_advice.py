"""What to run, and why not the fastest."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace as Row

import pytest
from hypothesis import given, strategies as st

from simreduce.engine.calibrate.intervals import NcclCall
from simreduce.engine.setup import Setup
from simreduce.study.advice import (
    Option,
    Sureness,
    decide,
    difference_error,
    hanging,
    recommend_setting,
    scaled,
)
from simreduce.study.ranking import lasting


def no_doubt(option, today):  # noqa: ARG001 - there is none of any
    return ""


@pytest.mark.parametrize(
    ("saves", "best"), [(0.009, "today"), (0.011, "fast")], ids=["not worth it", "worth it"]
)
def test_a_change_has_to_save_a_part_of_the_time(saves, best):
    today, fast = Option("today", 1.0), Option("fast", 1.0 - saves)
    option, fastest, reason = decide([today, fast], today, 0.01, no_doubt)

    assert (best, "fast") == (option.name, fastest.name)
    assert ("less than the 1 % that a change has to save" if best == "today" else "") == reason


def test_of_settings_that_are_worth_it_the_simplest_is_run():
    today = Option("today", 1.0)
    fastest, simple = Option("fast", 0.900, simplicity=3), Option("simple", 0.908, simplicity=1)
    slow = Option("slow", 0.92, simplicity=0)

    option, found, _ = decide([today, fastest, simple, slow], today, 0.01, no_doubt)
    assert (simple, fastest) == (option, found)
    option, _, _ = decide([today, fastest, simple, slow], None, 0.01, no_doubt)
    assert simple is option


def test_a_doubt_keeps_what_runs_today_and_is_the_reason():
    today, fast = Option("today", 1.0), Option("fast", 0.8)

    assert (today, fast, "who knows") == decide(
        [today, fast], today, 0.01, lambda option, _: "who knows" * (option is fast)
    )
    other = Option("other", 0.805, simplicity=5)
    option, _, reason = decide(
        [today, fast, other], today, 0.01, lambda option, _: "who knows" * (option is fast)
    )
    assert (other, "") == (option, reason)


def test_where_the_best_is_in_doubt_the_best_that_is_sure_is_run():
    """Of those as fast, the simplest; the reason is why it is not the fastest."""
    today, fast, worse = Option("today", 1.0), Option("fast", 0.8), Option("worse", 0.9)
    sure, simple = Option("sure", 0.95, simplicity=2), Option("simple", 0.951, simplicity=1)

    def doubt(option, _):
        return "who knows" * (option in (fast, worse))

    options = [today, fast, worse, sure, simple, Option("slow", 0.98)]
    assert (simple, fast, "who knows") == decide(options, today, 0.01, doubt)
    assert (today, fast, "who knows") == decide(options, today, 0.06, doubt)


def test_what_does_not_fit_is_run_only_if_nothing_fits():
    today, large = Option("today", 1.0, misfit=True), Option("large", 0.1, misfit=True)
    fits = Option("fits", 5.0)

    assert fits is decide([today, large, fits], today, 0.01, no_doubt)[0]
    assert large is decide([today, large], today, 0.01, no_doubt)[0]
    assert fits is decide([large, fits], fits, 0.01, no_doubt)[0]


def test_where_nothing_fits_the_nearest_needs_least_memory():
    today = Option("today", 1.0, misfit=True, needed=3)
    fast = Option("fast", 0.1, misfit=True, needed=2)
    small = Option("small", 5.0, misfit=True, needed=1)

    assert (small, small, "") == decide([today, fast, small], today, 0.01, no_doubt)
    assert (small, small, "") == decide([fast, small], None, 0.01, no_doubt)


def test_of_those_that_miss_as_much_today_is_the_nearest():
    """As a sharded step has it, whose memory no strategy changes."""
    today = Option("fsdp, nccl", 1.0, misfit=True, needed=3)
    same = Option("fsdp, nccl,algorithm=ring", 1.0, misfit=True, needed=3, simplicity=(True, 1))
    other = replace(same, name="fsdp, ring", simplicity=(True, 0))

    assert (today, today, "") == decide([same, today], today, 0.01, no_doubt)
    assert (other, other, "") == decide([same, other], None, 0.01, no_doubt)


def test_a_lower_bound_is_not_run_before_a_time_of_nccl_that_may_be_as_short():
    bound = Option("bound", 3.0, undispatched=True)
    nccl, other = Option("nccl", 4.0, shortest=2.5), Option("other", 3.5)

    assert nccl is decide([bound, nccl], None, 0.01, no_doubt)[0]
    assert bound is decide([bound, other], None, 0.01, no_doubt)[0]


def test_what_is_not_simulated_counts_against_an_option():
    """Beside today's, and beside another that is as fast without."""
    today, other = Option("today", 1.0), Option("other", 0.95)
    shards = Option("shards", 0.9, unsimulated=0.2)

    assert (today, shards) == decide([today, shards], today, 0.01, no_doubt)[:2]
    assert "copies into flat parameters" in decide([today, shards], today, 0.01, no_doubt)[2]
    assert (other, shards, "") == decide([today, other, shards], today, 0.01, no_doubt)
    less = replace(shards, unsimulated=0.01)
    assert (less, less, "") == decide([today, other, less], today, 0.01, no_doubt)


def test_a_lower_bound_is_no_gain_over_a_time():
    today, bound = Option("today", 1.0), Option("bound", 0.5, undispatched=True)

    option, _, reason = decide([today, bound], today, 0.01, no_doubt)
    assert (today, True) == (option, "lacks the dispatch of copies" in reason)
    both = replace(today, undispatched=True)
    assert bound is decide([both, bound], both, 0.01, no_doubt)[0]


@pytest.mark.parametrize(
    ("moved", "best"), [(None, 0), (1.9, 0), (3.0, 1), (0.5, 0)], ids=["no", "still", "not", "less"]
)
def test_no_tie_in_queues_decides(moved, best):
    """A time that hangs on ties counts as the longer of both."""
    options = [Option("a", 1.0, moved), Option("b", 2.0)]

    assert options[best] is decide(options, None, 0.01, no_doubt)[0]
    settings = [
        Row(seconds=each.seconds, moved=each.moved, misfit=False, setting=Row(tie_break=1))
        for each in options
    ]
    assert settings[best] is recommend_setting(settings)


OPTIONS = st.lists(
    st.builds(
        Option,
        st.text("abc", min_size=1, max_size=3),
        st.floats(0.5, 2.0),
        st.none() | st.floats(0.5, 2.0),
        misfit=st.booleans(),
        simplicity=st.integers(0, 3),
    ),
    min_size=1,
    max_size=8,
)


@given(OPTIONS, st.integers(0, 7), st.sampled_from([0.0, 0.01, 0.1]))
def test_what_is_run_fits_is_worth_it_and_is_near_the_fastest(options, place, worth):
    today = options[place % len(options)]
    option, fastest, reason = decide(options, today, worth, no_doubt)

    fitting = [each for each in options if not each.misfit] or options
    assert min(map(lasting, fitting)) == lasting(fastest)
    if option is not today:
        assert option in fitting
        assert lasting(option) <= lasting(fastest) * (1 + worth)
        assert today.misfit or lasting(option) <= lasting(today) * (1 - worth) or not worth
    else:
        assert fastest is today or lasting(fastest) > lasting(today) * (1 - worth) or not worth
        assert bool(reason) == (fastest is not today)


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


def test_a_step_hangs_on_its_last_call_and_those_that_it_queues_behind():
    """The first is over before the second is ready; the third waits for the second."""
    ready, finish = [0.0, 3.0, 4.0], [2.0, 6.0, 8.0]

    assert [2, 1] == hanging(ready, finish)
    assert [0] == hanging([1.0], [2.0])
    assert [] == hanging([], [])


def test_calls_of_a_time_have_their_shares_of_it():
    calls = [NcclCall("all_reduce", "ring", "simple", 8, seconds) for seconds in (1.0, 3.0)]

    assert [2.5, 7.5] == [call.seconds for call in scaled(calls, 10.0)]


def test_the_error_of_a_difference_is_known_of_nccl_alone():
    setup = Setup("dgx-a100")
    times = {"fast": 1.0, "slow": 1.5}

    def calls(name):
        if name not in times:
            return None
        return scaled([setup.call(25 << 20)], times[name])

    error = difference_error(setup, "fast", "slow", calls)
    assert 0.0 < error < 0.5  # of the half second that one call differs from the other
    assert error == pytest.approx(difference_error(setup, "slow", "fast", calls))
    assert difference_error(setup, "fast", "of TensorFlow", calls) is None


def test_sureness_has_a_factor_of_a_time_and_one_of_a_ratio():
    sure = Sureness(0.5, 1.5)

    assert 2.0 == sure.factor
    assert pytest.approx(3.0 ** (0.5**0.5)) == sure.ratio_factor
