"""Round the circle of ranks in steps of 1, 2, 4, ..."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.algorithms import bruck
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
from tests.algorithms.transfers import transfers

every = pytest.mark.parametrize("collective", ["all_gather", "all_to_all"])
delays, rates = st.integers(0, 10**7), st.integers(1, 400_000)


@pytest.mark.parametrize("n", RANKS)
@settings(max_examples=5)
@given(delay=delays, rate=rates, part=st.integers(1, 10**5))
def test_closed_form_of_an_all_gather(n, delay, rate, part):
    """ceil(log2 n) a + (n-1)/n M/B."""
    time = (n - 1).bit_length() * delay * 1e-9 + (n - 1) * 4 * part / (rate * 1e6)

    assert time == pytest.approx(
        seconds("all_gather", "bruck", switch(n, delay, rate), n * part), rel=1e-9
    )


def parts_sent(n: int) -> int:
    """In the step of bit k every part goes whose distance from giver to taker has it."""
    return sum(distance.bit_count() for distance in range(n))


@pytest.mark.parametrize("n", RANKS)
@settings(max_examples=5)
@given(delay=delays, rate=rates, part=st.integers(1, 10**5))
def test_closed_form_of_an_all_to_all(n, delay, rate, part):
    """log2 n (a + M/(2B)) for powers of two, at most ceil(log2 n) of them for others."""
    steps, a, b = (n - 1).bit_length(), delay * 1e-9, rate * 1e6
    time = seconds("all_to_all", "bruck", switch(n, delay, rate), n * part)
    most = steps * (a + 4 * n * part / (2 * b))

    assert steps * a + parts_sent(n) * 4 * part / b == pytest.approx(time, rel=1e-9)
    assert time <= most * (1 + 1e-9)
    assert most == pytest.approx(time, rel=1e-9) or n & (n - 1)


@pytest.mark.parametrize("n", RANKS)
@every
def test_what_every_rank_sends(collective, n):
    plan = compiled(collective, "bruck", tasks_of(n), 7 * n)
    parts = n - 1 if collective == "all_gather" else parts_sent(n)

    assert {f"n0.gpu{i}": 7 * parts for i in range(n) if parts} == {
        k: v for k, (_, v) in sent(plan).items()
    }
    assert {} == added(plan)


def test_an_all_gather_of_five():
    """Parts 0-1 and the wrapped 4, 0: one interval or two; then the last step brings one part to
    each.
    """
    received = {}
    for (giver, taker, count), times in transfers(
        compiled("all_gather", "bruck", tasks_of(5), 5)
    ).items():
        received.setdefault((int(giver[-1]) - int(taker[-1])) % 5, []).append(
            (int(taker[-1]), count, times)
        )

    assert {
        1: [(t, 1, 1) for t in range(5)],
        2: [(0, 2, 1), (1, 2, 1), (2, 1, 2), (3, 2, 1), (4, 2, 1)],
        4: [(t, 1, 1) for t in range(5)],
    } == {step: sorted(found) for step, found in received.items()}


def test_an_all_to_all_of_four_goes_far_first():
    plan = compiled("all_to_all", "bruck", tasks_of(4), 4)
    distances = [(int(b[-1]) - int(a[-1])) % 4 for a, b, _ in plan.copies()]

    assert distances == sorted(distances, reverse=True)
    assert {1, 2} == set(distances)


@pytest.mark.parametrize("n", [1, 6, 8])
@every
def test_groups_do_what_one_does_alone(collective, n):
    function, parts = getattr(bruck, collective), collective == "all_gather"
    (alone,) = in_groups(function, 1, n, 29, parts=parts)

    assert [alone] * 3 == in_groups(function, 3, n, 29, parts=parts)
    assert {-1} == {op[4] for op in alone}


def test_a_thousand_ranks_are_few_ops():
    """Two copies a step at most, and fewer than one and a half on average."""
    assert (
        1024 * 10 <= compiled("all_gather", "bruck", tasks_of(1024), 1 << 20).transfers <= 1024 * 15
    )
