"""Coverings have every pair in fewer rows than the product."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.covering import covering


@pytest.mark.parametrize("sizes", [(3,), (2, 3), (2, 2, 2), (4, 4, 2, 3), (5, 3, 5, 1)])
def test_every_two_values_meet(sizes):
    lists = [[f"{place}{value}" for value in range(size)] for place, size in enumerate(sizes)]
    rows = covering(*lists)

    for i, j in combinations(range(len(lists)), 2):
        assert set(product(lists[i], lists[j])) == {(row[i], row[j]) for row in rows}
    assert set(rows) <= set(product(*lists))
    assert len(set(rows)) == len(rows) <= len(list(product(*lists)))
    assert rows == covering(*lists)


def test_a_covering_is_short():
    assert len(covering(range(4), range(4), range(2), range(3))) <= 18 < 4 * 4 * 2 * 3
