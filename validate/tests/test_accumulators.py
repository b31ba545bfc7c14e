"""Our accumulators beside TensorFlow's, through any sequence of gradients and means."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from hypothesis import given, settings, strategies as st

from simreduce.training.replicas.network import DenseAccumulator, Slices, UpstreamSparseAccumulator

v1 = tf.compat.v1

ROWS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(-64, 64).map(float)), min_size=1, max_size=5
)
STEP = st.integers(0, 3)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(-64, 64).map(float), STEP, st.integers(1, 3)), min_size=1, max_size=10
    )
)
def test_dense_gradients(sequence):
    """After each gradient, as many as are required are taken if there are."""
    ours = DenseAccumulator(())
    with tf.Graph().as_default(), v1.Session() as session:
        theirs = v1.ConditionalAccumulator(tf.float64, shape=())
        number, step, count = (
            v1.placeholder(tf.float64, ()),
            v1.placeholder(tf.int64, ()),
            theirs.num_accumulated(),
        )
        apply = theirs.apply_grad(number, step)
        take = {required: theirs.take_grad(required) for required in (1, 2, 3)}
        for value, local_step, required in sequence:
            ours.apply(np.array(value), local_step)
            session.run(apply, {number: value, step: local_step})

            assert session.run(count) == ours.count
            if ours.ready(required):
                assert session.run(take[required]) == ours.take()


@settings(max_examples=40)
@given(st.lists(st.tuples(ROWS, STEP, st.integers(1, 3)), min_size=1, max_size=8))
def test_sparse_gradients(sequence):
    """In any order, with doubles: row by row what TensorFlow makes of them."""
    ours = UpstreamSparseAccumulator((6,))
    with tf.Graph().as_default(), v1.Session() as session:
        theirs = v1.SparseConditionalAccumulator(tf.float64, shape=())
        rows, numbers = v1.placeholder(tf.int64, (None,)), v1.placeholder(tf.float64, (None,))
        step, count = v1.placeholder(tf.int64, ()), theirs.num_accumulated()
        apply = theirs.apply_grad(rows, numbers, local_step=step)
        take = {required: theirs.take_indexed_slices_grad(required) for required in (1, 2, 3)}
        for gradient, local_step, required in sequence:
            indices, values = zip(*gradient, strict=True)
            ours.apply(Slices(indices, np.array(values)), local_step)
            session.run(apply, {rows: indices, numbers: values, step: local_step})

            assert session.run(count) == ours.count
            if ours.ready(required):
                found, mean = session.run(take[required]), ours.take()
                assert list(mean.indices) == found.indices.tolist()
                assert mean.values.tolist() == found.values.tolist()
