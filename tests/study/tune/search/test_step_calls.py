"""Ranges of sizes: the cheapest cut, and where it lies between sizes."""

from __future__ import annotations

from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given, strategies as st

from simreduce.study.tune.search.step_calls import boundary, partition


@st.composite
def tables(draw):
    sizes, choices = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    cells = st.integers(0, 9).map(float)
    rows = st.lists(st.lists(cells, min_size=choices, max_size=choices), min_size=sizes,
                    max_size=sizes)  # fmt: skip
    return np.array(draw(rows))


def every_cut(costs, most):
    """The cost of every cut into ranges with a choice each, and its number of ranges."""
    sizes, choices = costs.shape
    for count in range(1, min(most, sizes) + 1):
        for inner in combinations(range(1, sizes), count - 1):
            ends = [0, *inner, sizes]
            for chosen in product(range(choices), repeat=count):
                yield sum(costs[a:b, c].sum() for a, b, c in zip(ends, ends[1:], chosen,
                          strict=False)), count  # fmt: skip


@given(tables(), st.integers(1, 5))
def test_no_other_cut_is_cheaper_and_none_as_cheap_has_fewer_ranges(costs, most):
    cost, chosen = partition(costs, most)
    ranges = 1 + sum(one != other for one, other in pairwise(chosen))

    assert (cost, ranges) == min(every_cut(costs, most))
    assert cost == sum(costs[range(len(costs)), chosen])
    assert len(chosen) == len(costs)


def test_what_is_impossible_is_not_chosen():
    costs = np.array([[1.0, np.inf], [np.inf, 2.0]])

    assert partition(costs)[1] == [0, 1]
    assert partition(costs, 1)[0] == np.inf


@pytest.mark.parametrize(("sizes", "limit"), [((100, 200), 128), ((100, 120), 100), ((8, 9), 8)])
def test_a_limit_is_a_power_of_two_between_two_sizes_or_the_lower_one(sizes, limit):
    assert boundary(*sizes) == limit
