"""Horovod's fusion buffers, by hand-worked examples and what must always hold."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, strategies as st

from simreduce import dtypes
from simreduce.planners.packing import Fusion
from tests.planners.packing.lists import gradients, of_dtypes


def groups(threshold, *elements):
    return Fusion(threshold).arrange(gradients(*elements)).groups


def test_gradients_are_fused_up_to_the_threshold_last_first():
    assert groups(40, 5, 5, 5, 5, 5) == ((4, 3), (2, 1), (0,))


def test_one_that_would_overflow_starts_the_next_buffer():
    assert groups(40, 8, 1, 9, 2) == ((3,), (2, 1), (0,))


def test_one_larger_than_the_threshold_goes_alone():
    assert groups(40, 1, 1, 100, 1, 1) == ((4, 3), (2,), (1, 0))


def test_nothing_waits_for_a_smaller_one_further_on():
    """Buffers hold neighbours: the gradient that did not fit is not passed over."""
    assert groups(40, 1, 3, 8) == ((2,), (1, 0))


def test_zero_fuses_nothing():
    assert groups(0, 1, 1, 1) == ((2,), (1,), (0,))


def test_the_default_is_128_mib():
    fits = 128 * 2**20 // 4

    assert Fusion.parse("128M") == Fusion.parse(None) == Fusion()
    assert Fusion().arrange(gradients(fits - 1, 1)).groups == ((1, 0),)
    assert Fusion().arrange(gradients(fits, 1)).groups == ((1,), (0,))


def test_other_dtypes_are_passed_over_while_they_fit():
    listed = of_dtypes((2, "float32"), (2, "float16"), (2, "float32"), (2, "float16"))

    assert Fusion(64).arrange(listed).groups == ((3, 1), (2, 0))


def test_the_look_ahead_ends_where_what_is_passed_over_does_not_fit():
    listed = of_dtypes((2, "float32"), (16, "float16"), (2, "float32"))

    assert Fusion(40).arrange(listed).groups == ((2, 0), (1,))
    assert Fusion(39).arrange(listed).groups == ((2,), (1,), (0,))


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from(dtypes.NAMES)), min_size=1, max_size=200
    ),
    st.integers(0, 400),
)
def test_buffers_are_of_one_dtype_in_ready_order_and_within_the_threshold(pairs, threshold):
    listed = of_dtypes(*pairs)
    buffers = Fusion(threshold).arrange(listed).groups

    assert list(range(len(listed))) == sorted(i for b in buffers for i in b)
    for buffer in buffers:
        assert list(buffer) == sorted(buffer, reverse=True)
        assert len({listed[i].dtype for i in buffer}) == 1
        assert len(buffer) == 1 or sum(listed[i].nbytes for i in buffer) <= threshold
    firsts = [buffer[0] for buffer in buffers]
    assert firsts == sorted(firsts, reverse=True)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=200), st.integers(0, 400))
def test_with_one_dtype_no_two_buffers_in_a_row_could_be_one(elements, threshold):
    listed = gradients(*elements)
    buffers = Fusion(threshold).arrange(listed).groups

    assert list(reversed(range(len(listed)))) == [i for b in buffers for i in b]
    for buffer, after in pairwise(buffers):
        assert sum(listed[i].nbytes for i in (*buffer, after[0])) > threshold
