"""The ring both ways round at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.algorithms import bidirectional_ring
from tests.algorithms.boxes import (
    added,
    compiled,
    in_groups,
    seconds,
    sent,
    switch,
    tasks_of,
)
from tests.algorithms.transfers import transfers

ROUNDS = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}


@pytest.mark.parametrize("n", [2, 3, 5, 8, 16])
@pytest.mark.parametrize("collective", ROUNDS)
@settings(max_examples=5)
@given(delay=st.integers(0, 10**7), rate=st.integers(1, 400_000), half=st.integers(1, 10**5))
def test_on_one_port_both_halves_take_the_time_of_a_ring(collective, n, delay, rate, half):
    """Rounds of n-1 steps in which each half of a chunk has half of the port: (n-1)(a + S/(nB))
    each.
    """
    a, b, size = delay * 1e-9, rate * 1e6, 4 * 2 * n * half

    assert ROUNDS[collective] * (n - 1) * (a + size / (n * b)) == pytest.approx(
        seconds(collective, "bidirectional_ring", switch(n, delay, rate), size // 4), rel=1e-9
    )


@pytest.mark.parametrize("n", [3, 4, 7, 16])
@pytest.mark.parametrize("collective", ROUNDS)
def test_on_links_both_ways_round_it_has_twice_the_bandwidth_of_a_ring(collective, n):
    """(n-1)(a + S/(2nB)) a round."""
    a, b, size = 3e-6, 7e9, 4 * 2 * n * 12345
    machine = switch(n, 3000, 7000, "ring")

    assert ROUNDS[collective] * (n - 1) * (a + size / (2 * n * b)) == pytest.approx(
        seconds(collective, "bidirectional_ring", machine, size // 4), rel=1e-9
    )
    assert ROUNDS[collective] * (n - 1) * (a + size / (n * b)) == pytest.approx(
        seconds(collective, "ring", machine, size // 4), rel=1e-9
    )


@pytest.mark.parametrize("n", [2, 3, 6, 8])
@pytest.mark.parametrize("collective", ROUNDS)
def test_every_rank_sends_half_of_every_step_to_each_neighbour(collective, n):
    plan = compiled(collective, "bidirectional_ring", tasks_of(n), 2 * n * 10)
    steps = ROUNDS[collective] * (n - 1)
    each_way = {}
    for d in range(n):
        for way in (1, -1):
            pair = (f"n0.gpu{d}", f"n0.gpu{(d + way) % n}", 10)
            each_way[pair] = each_way.get(pair, 0) + steps

    assert each_way == transfers(plan)
    assert {f"n0.gpu{d}": (2 * steps, 20 * steps) for d in range(n)} == sent(plan)
    assert (
        {} if collective == "all_gather" else {f"n0.gpu{d}": 20 * (n - 1) for d in range(n)}
    ) == added(plan)


@pytest.mark.parametrize("collective", ROUNDS)
def test_one_rank_has_its_result_already(collective):
    plan = compiled(collective, "bidirectional_ring", tasks_of(1), 10)

    assert (1, 1) == (int((plan.kind == 0).sum()), len(plan) - 1)


@pytest.mark.parametrize("collective", ROUNDS)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_groups_do_what_one_does_alone(collective, n):
    function, parts = getattr(bidirectional_ring, collective), collective == "all_gather"
    (alone,) = in_groups(function, 1, n, 23, parts=parts)

    assert [alone] * 3 == in_groups(function, 3, n, 23, parts=parts)
