"""An all-to-all in which every rank sends to one partner after another."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.algorithms import pairwise
from simreduce.plan import Kind
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


@pytest.mark.parametrize("n", RANKS)
@settings(max_examples=5)
@given(delay=st.integers(0, 10**7), rate=st.integers(1, 400_000), part=st.integers(1, 10**5))
def test_closed_form(n, delay, rate, part):
    """(n-1)(a + M/(nB))."""
    time = (n - 1) * (delay * 1e-9 + 4 * part / (rate * 1e6))

    assert time == pytest.approx(
        seconds("all_to_all", "pairwise", switch(n, delay, rate), n * part), rel=1e-9
    )


@pytest.mark.parametrize("n", [2, 3, 8, 17])
def test_every_rank_sends_one_part_to_each(n):
    plan = compiled("all_to_all", "pairwise", tasks_of(n), 7 * n)

    assert {f"n0.gpu{i}": (n - 1, 7 * (n - 1)) for i in range(n)} == sent(plan)
    assert {} == added(plan)


def test_every_step_is_a_ring():
    """To the next rank, then to the one after that, ...; one after another from one rank."""
    plan = compiled("all_to_all", "pairwise", tasks_of(5), 5)
    copies = plan.kind == Kind.COPY

    assert [(s, (s + d) % 5) for d in range(1, 5) for s in range(5)] == list(
        zip(plan.source[copies].tolist(), plan.device[copies].tolist(), strict=True)
    )
    assert plan.source[copies].tolist() == plan.stream[copies].tolist()


@pytest.mark.parametrize("n", [1, 6, 8])
def test_groups_do_what_one_does_alone(n):
    (alone,) = in_groups(pairwise.all_to_all, 1, n, 29, parts=False)

    assert [alone] * 3 == in_groups(pairwise.all_to_all, 3, n, 29, parts=False)
    assert {0, -1} >= {op[4] for op in alone}
