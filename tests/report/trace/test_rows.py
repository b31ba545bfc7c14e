"""Rows of a track: nothing overlaps, and no more rows than needed."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, strategies as st

from simreduce.report.trace import rows

intervals = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda p: (float(p[0]), float(sum(p)))),
    max_size=30,
)


@given(intervals)
def test_rows_hold_every_slice_once_and_none_overlap(given_intervals):
    begin = np.array([a for a, _ in given_intervals])
    end = np.array([b for _, b in given_intervals])
    found = rows(np.arange(len(begin)), begin, end)

    assert sorted(slice_ for row in found for slice_ in row) == [
        (op, *interval) for op, interval in enumerate(given_intervals)
    ]
    for row in found:
        assert all(a[2] <= b[1] for a, b in pairwise(row))
    most = max((int(np.sum((begin <= t) & (t < end))) for t in begin), default=0)
    assert len(found) <= most + 1


def test_two_computations_of_one_instant_touch():
    later = np.nextafter(1.0, 2.0)
    found = rows(np.array([0, 1]), np.array([0.0, 1.0]), np.array([later, 2.0]))

    assert found == [[(0, 0.0, 1.0), (1, 1.0, 2.0)]]
