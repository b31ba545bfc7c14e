"""Tables of values: rows of one width, each with a dtype of its own."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from simreduce.plan import Value, ValueTable

ROWS = st.integers(1, 4).flatmap(
    lambda width: st.lists(
        st.tuples(
            st.lists(st.tuples(*[st.integers(0, 99)] * 4), min_size=width, max_size=width),
            st.integers(0, 2),
        ),
        min_size=1,
        max_size=6,
    )
)


@given(ROWS, st.data())
def test_it_is_the_rows_that_it_was_made_of(rows, data):
    """By row, by column, in stretches of one dtype, and in parts put together again."""
    plain = [[Value(*value, dtype) for value in row] for row, dtype in rows]
    table = ValueTable.of(plain)
    cut = data.draw(st.integers(0, len(plain)))

    assert [list(row) for row in table] == plain
    columns = list(map(list, zip(*plain, strict=True)))
    assert [table.column(i) for i in range(table.shape[1])] == columns
    flat = [v for values in table.by_dtype() for v in values.reshape(-1)]
    assert flat == [value for row in plain for value in row]
    assert [list(row) for row in ValueTable.of_columns(columns)] == plain
    joined = ValueTable.concatenate([table[:cut], table[cut:]])
    assert [list(row) for row in joined] == plain


def test_a_row_beyond_the_last_is_an_error():
    """As for any sequence."""
    with pytest.raises(IndexError):
        ValueTable.of([[Value(0, 0, 0, 4, 0)]])[1]
