"""Halves are swapped until everybody has the sum of a part, which then doubles."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.plan import verify
from tests.planners.algorithms.boxes import RANKS, added, compiled, seconds, switch, tasks_of
from tests.planners.algorithms.transfers import transfers
from tests.thorough import examples

NAME = "halving_doubling"
delays, rates = st.integers(0, 10**7), st.integers(1, 400_000)


@pytest.mark.parametrize("n", [n for n in RANKS if n & (n - 1)])
@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather"])
@settings(max_examples=examples(50, usual=5))
@given(delay=delays, rate=rates, part=st.integers(1, 10**5))
def test_bound_of_its_halves_over_any_n(collective, n, delay, rate, part):
    """(k + 2) a + (1 + 1/n + 2 (2^k - 1)/n) M/B, and no less than fold, halve and hand over take of
    a rank with one.
    """
    k = n.bit_length() - 1
    size, a, b = 4 * part * n, delay * 1e-9, rate * 1e6
    most = (k + 2) * a + (1 + 1 / n + 2 * (2**k - 1) / n) * size / b
    least = (k + 2) * a + (1 + (n - 1) / n) * size / b

    assert (
        least * (1 - 1e-9)
        <= seconds(collective, NAME, switch(n, delay, rate), size // 4)
        <= most * (1 + 1e-9)
    )


def test_far_partners_swap_large_halves():
    plan = compiled("reduce_scatter", NAME, tasks_of(4), 40)

    assert {
        (f"n0.gpu{i}", f"n0.gpu{i ^ d}", 10 * d): 1 for i in range(4) for d in (1, 2)
    } == transfers(plan)
    assert transfers(plan) == transfers(compiled("all_gather", NAME, tasks_of(4), 40))


def test_a_rank_stands_for_the_one_that_is_folded_into_it():
    """3 = 2 + 1: rank 1 gives all to 0, which swaps with 2 for two parts and hands over the second;
    and back.
    """
    expected = {
        ("n0.gpu1", "n0.gpu0", 30): 1,
        ("n0.gpu0", "n0.gpu2", 10): 1,
        ("n0.gpu2", "n0.gpu0", 20): 1,
        ("n0.gpu0", "n0.gpu1", 10): 1,
    }
    there = compiled("reduce_scatter", NAME, tasks_of(3), 30)
    back = compiled("all_gather", NAME, tasks_of(3), 30)

    assert expected == transfers(there)
    assert {(b, a, count): times for (a, b, count), times in expected.items()} == transfers(back)
    assert {"n0.gpu0": 30 + 20, "n0.gpu2": 10} == added(there)


@pytest.mark.parametrize("n", [6, 8])
@pytest.mark.parametrize("then", ["ring", "direct", NAME])
def test_what_is_scattered_can_be_gathered_by_another(n, then):
    """Every part is a value of its own, not a view of a larger one."""
    plan = compiled("all_reduce", f"{NAME}/{then}", tasks_of(n, n), 100)

    assert [] == verify(plan)
