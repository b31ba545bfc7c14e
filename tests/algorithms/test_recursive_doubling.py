"""Everything is swapped with partners 1, 2, 4, ... away."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.algorithms import recursive_doubling
from tests.algorithms.boxes import (
    RANKS,
    added,
    compiled,
    in_groups,
    seconds,
    sent,
    switch,
    tasks_of,
)
from tests.algorithms.transfers import formulas, plan_for

NAME = "recursive_doubling"


@pytest.mark.parametrize("n", RANKS)
@settings(max_examples=5)
@given(delay=st.integers(0, 10**7), rate=st.integers(1, 400_000), elements=st.integers(1, 10**6))
def test_closed_form(n, delay, rate, elements):
    """log2 n (a + M/B), and two more steps to fold surplus ranks in and out."""
    steps = n.bit_length() - 1 + (2 if n & (n - 1) else 0)
    one = delay * 1e-9 + 4 * elements / (rate * 1e6)

    assert steps * one == pytest.approx(
        seconds("all_reduce", NAME, switch(n, delay, rate), elements), rel=1e-9
    )


@pytest.mark.parametrize("n", [2, 4, 8, 64])
def test_every_rank_sends_and_adds_everything_in_every_step(n):
    steps = n.bit_length() - 1
    plan = compiled("all_reduce", NAME, tasks_of(n), 10)

    assert {f"n0.gpu{i}": (steps, 10 * steps) for i in range(n)} == sent(plan)
    assert {f"n0.gpu{i}": 10 * steps for i in range(n)} == added(plan)


def test_ranks_too_many_are_folded_into_those_before_them():
    """6 = 4 + 2: ranks 1 and 3 give all to 0 and 2; then 0, 2, 4, 5 swap; then 1 and 3 are told."""
    plan = compiled("all_reduce", NAME, tasks_of(6), 10)

    assert {0: (3, 30), 1: (1, 10), 2: (3, 30), 3: (1, 10), 4: (2, 20), 5: (2, 20)} == {
        int(name[-1]): messages for name, messages in sent(plan).items()
    }
    assert {"n0.gpu0": 30, "n0.gpu2": 30, "n0.gpu4": 20, "n0.gpu5": 20} == added(plan)


def test_the_order_of_sums():
    """Each rank adds what arrives to what it has."""
    plan = plan_for(NAME, "switch:4", 1)

    assert [
        "((x0+x1)+(x2+x3))", "((x1+x0)+(x3+x2))", "((x2+x3)+(x0+x1))", "((x3+x2)+(x1+x0))",
    ] == list(formulas(plan).values())[-4:]  # fmt: skip


@pytest.mark.parametrize("n", [1, 6, 8])
def test_groups_do_what_one_does_alone(n):
    (alone,) = in_groups(recursive_doubling.all_reduce, 1, n, 29, parts=False)

    assert [alone] * 3 == in_groups(recursive_doubling.all_reduce, 3, n, 29, parts=False)
    assert {0, -1} >= {op[4] for op in alone}


def test_a_thousand_ranks_are_few_ops():
    assert 1024 * 10 == compiled("all_reduce", NAME, tasks_of(1024), 1 << 20).transfers
