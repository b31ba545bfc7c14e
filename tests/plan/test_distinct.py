"""Distinct numbers of columns, by sorting or by a hash table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from simreduce.plan import residues
from tests.thorough import examples

COLUMNS = st.lists(
    st.lists(st.integers(0, 9) | st.integers(0, (1 << 62) - 1), max_size=30), min_size=2, max_size=4
)


@pytest.mark.parametrize("compiled", [False, True])
@given(COLUMNS)
@settings(max_examples=examples(60), deadline=None)
def test_numbers_and_places_are_those_of_unique(compiled, columns):
    """Of several columns, whose numbers need not be in the others."""
    arrays = [np.array(column, dtype=np.int64) for column in columns]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(residues, "worth_compiling", lambda *_: compiled)
        numbers, places = residues.number_distinct(arrays[:-1], arrays[-1:])

    assert numbers.tolist() == np.unique(np.concatenate(arrays)).tolist()
    assert [numbers[place].tolist() for place in places] == columns[:-1]


def test_a_table_grows_with_its_numbers():
    """Over half of the first table, and more than one growth."""
    column = np.random.default_rng(1).permutation(50_000)
    table = residues._hash([column])

    assert np.sort(table[table != residues._FREE]).tolist() == list(range(50_000))
