"""The torus of two and three dimensions, and the factors that it is made of."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import prod

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.algorithms import FAMILIES
from simreduce.algorithms.levels import near_equal, prime_factors
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

NAMES = {"torus_2d": 2, "torus_3d": 3}
ROUNDS = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}
both = pytest.mark.parametrize("name", NAMES)
every = pytest.mark.parametrize("collective", ROUNDS)


FORMS = [
    ("torus_2d", (2, 2)),
    ("torus_2d", (2, 3)),
    ("torus_2d", (1, 7)),
    ("torus_2d", (3, 4)),
    ("torus_2d", (4, 8)),
    ("torus_2d", (8, 8)),
    ("torus_3d", (2, 2, 2)),
    ("torus_3d", (2, 2, 3)),
    ("torus_3d", (1, 1, 5)),
    ("torus_3d", (2, 3, 4)),
    ("torus_3d", (1, 2, 5)),
    ("torus_3d", (4, 4, 4)),
]


@pytest.mark.parametrize(("name", "axes"), FORMS)
@every
@settings(max_examples=5)
@given(delay=st.integers(0, 10**7), rate=st.integers(1, 400_000), part=st.integers(1, 10**5))
def test_closed_form(name, axes, collective, delay, rate, part):
    """A round takes p-1 + q-1 (+ r-1) steps, and every rank's port carries (n-1)/n S."""
    n = prod(axes)
    a, b, size = delay * 1e-9, rate * 1e6, 4 * n * part
    round_trip = sum(p - 1 for p in axes) * a + (n - 1) / n * size / b

    assert ROUNDS[collective] * round_trip == pytest.approx(
        seconds(collective, name, switch(n, delay, rate), size // 4), rel=1e-9
    )


@pytest.mark.parametrize(("name", "axes"), FORMS)
@every
def test_every_rank_sends_and_adds_the_least_there_is(name, axes, collective):
    n, part = prod(axes), 7
    plan = compiled(collective, name, tasks_of(n), n * part)
    steps = ROUNDS[collective] * sum(p - 1 for p in axes)
    moved, summed = ROUNDS[collective] * (n - 1) * part, (n - 1) * part

    assert {f"n0.gpu{i}": (steps, moved) for i in range(n)} == sent(plan)
    assert (
        {} if collective == "all_gather" else {f"n0.gpu{i}": summed for i in range(n)}
    ) == added(plan)


def test_an_all_reduce_starts_in_the_rows():
    """2 x 3: thirds of 60 elements go round rows of neighbours, halves of a third go to the other
    row, and back.
    """
    expected: Counter[tuple[str, str, int]] = Counter()
    for row, place in product(range(2), range(3)):
        me = f"n0.gpu{3 * row + place}"
        expected[me, f"n0.gpu{3 * row + (place + 1) % 3}", 20] = 4
        expected[me, f"n0.gpu{3 * (1 - row) + place}", 10] = 2

    assert expected == transfers(compiled("all_reduce", "torus_2d", tasks_of(6), 60))


def test_a_reduce_scatter_starts_in_the_columns():
    """2 x 3: what rank 3 row + place must keep is one interval at every time: a half, then a third
    of it.
    """
    expected: Counter[tuple[str, str, int]] = Counter()
    for row, place in product(range(2), range(3)):
        me = f"n0.gpu{3 * row + place}"
        expected[me, f"n0.gpu{3 * (1 - row) + place}", 30] = 1
        expected[me, f"n0.gpu{3 * row + (place + 1) % 3}", 10] = 2

    assert expected == transfers(compiled("reduce_scatter", "torus_2d", tasks_of(6), 60))
    assert expected == transfers(compiled("all_gather", "torus_2d", tasks_of(6), 60))


@pytest.mark.parametrize("n", [1, 6, 8])
@every
@both
def test_groups_do_what_one_does_alone(name, collective, n):
    function, parts = getattr(FAMILIES[name], collective), collective == "all_gather"
    (alone,) = in_groups(function, 1, n, 29, parts=parts)

    assert [alone] * 3 == in_groups(function, 3, n, 29, parts=parts)


@both
def test_streams_are_those_that_the_family_declares(name):
    ops = in_groups(FAMILIES[name].all_reduce, 1, 8, 29, parts=False)[0]

    assert set(range(FAMILIES[name].channels)) >= {op[4] for op in ops} - {-1}


@both
def test_a_thousand_ranks_are_few_ops(name):
    steps = {"torus_2d": 62, "torus_3d": 7 + 7 + 15}[name]
    plan = compiled("all_reduce", name, tasks_of(1024), 1 << 20)

    assert 2 * 1024 * steps == plan.transfers


@given(st.integers(1, 400), st.integers(1, 3))
def test_factors_are_those_of_least_sum(n, axes):
    found = near_equal(n, axes)
    divisors = [p for p in range(1, n + 1) if n % p == 0]

    assert (axes, n, sorted(found)) == (len(found), prod(found), list(found))
    assert min(sum(some) for some in product(divisors, repeat=axes) if prod(some) == n) == sum(
        found
    )


@pytest.mark.parametrize(
    ("n", "two", "three", "primes"),
    [(1, (1, 1), (1, 1, 1), ()), (7, (1, 7), (1, 1, 7), (7,)), (12, (3, 4), (2, 2, 3), (2, 2, 3)),
     (64, (8, 8), (4, 4, 4), (2,) * 6), (90, (9, 10), (3, 5, 6), (2, 3, 3, 5))],
)  # fmt: skip
def test_factors(n, two, three, primes):
    assert (two, three, primes) == (near_equal(n, 2), near_equal(n, 3), prime_factors(n))
