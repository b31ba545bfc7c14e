"""The torus of two and three dimensions, and the factors that it is made of."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import prod

import pytest
from hypothesis import given, strategies as st

from simreduce.planners.algorithms.torus import near_equal, prime_factors
from tests.planners.algorithms.boxes import compiled, tasks_of
from tests.planners.algorithms.transfers import transfers


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
