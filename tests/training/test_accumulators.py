"""TensorFlow's conditional accumulators, by what the real ones gave."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from simreduce.errors import InputError
from simreduce.training.replicas.network import (
    DenseAccumulator,
    Slices,
    SparseAccumulator,
    UpstreamSparseAccumulator,
)


def slices(rows):
    return Slices(tuple(i for i, _ in rows), np.array([float(v) for _, v in rows]))


def test_a_dense_accumulator_divides_by_what_it_got_and_drops_what_is_old():
    """Measured: three gradients where two are enough; steps 0, 1 and 5; then step set to 10."""
    a = DenseAccumulator(())

    assert [True, True, True] == [a.apply(np.array(x), 0) for x in (1.0, 3.0, 8.0)]
    assert a.ready(2)
    assert 4.0 == a.take()
    assert [False, True, True] == [
        a.apply(np.array(x), s) for x, s in ((100.0, 0), (2.0, 1), (4.0, 5))
    ]
    assert 3.0 == a.take()
    a.step = 10
    assert [False, True, True] == [a.apply(np.array(1.0), s) for s in (9, 10, 11)]
    assert not a.ready(3)


@pytest.mark.parametrize(
    ("gradients", "mean"),
    [
        ([[(1, 10), (3, 20)], [(3, 40), (5, 6)]], [(1, 10), (3, 30), (5, 6)]),
        ([[(3, 10), (1, 20)], [(1, 40), (3, 6)]], [(1, 40), (3, 8), (1, 20)]),
        ([[(2, 10), (2, 20)], [(2, 40)]], [(2, 25), (2, 20)]),
    ],
)
def test_upstream_s_sparse_accumulator(gradients, mean):
    """Measured: rows are divided by how many gradients had them; what is not ascending is not
    merged.
    """
    a = UpstreamSparseAccumulator((6,))
    for gradient in gradients:
        a.apply(slices(gradient), 0)
    found = a.take()

    assert mean == list(zip(found.indices, found.values.tolist(), strict=True))


ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(-8, 8)), max_size=6)


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_a_sparse_mean_is_that_of_the_dense_gradients(gradients):
    """Whatever the order of rows, and however often one comes."""
    sparse, dense = SparseAccumulator((5,)), DenseAccumulator((5,))
    for gradient in gradients:
        rows = slices(gradient)
        sparse.apply(rows, 0)
        whole = np.zeros(5)
        np.add.at(whole, np.array(rows.indices, dtype=int), rows.values)
        dense.apply(whole, 0)
    mean, found = sparse.take(), np.zeros(5)
    found[list(mean.indices)] = mean.values

    assert dense.take() == pytest.approx(found)
    assert sorted(set(mean.indices)) == list(mean.indices)


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match=r"shape \(2,\) for a variable of shape \(3,\)"):
        DenseAccumulator((3,)).apply(np.zeros(2), 0)
    with pytest.raises(InputError, match="1 indices for 2 rows"):
        SparseAccumulator((3,)).apply(Slices((1,), np.zeros(2)), 0)
    with pytest.raises(InputError, match="row 3 of a variable whose rows are 0 to 2"):
        SparseAccumulator((3,)).apply(Slices((1, 3), np.zeros(2)), 0)
    with pytest.raises(InputError, match=r"rows of shape \(2,\) for a variable of shape \(3, 4\)"):
        UpstreamSparseAccumulator((3, 4)).apply(Slices((1,), np.zeros((1, 2))), 0)
    with pytest.raises(InputError, match="a number has no rows"):
        SparseAccumulator(())
