"""Packs against TensorFlow's packers.

Left of them in TensorFlow 2: concat-and-split (`num_packs`) and `bytes_per_pack`. The packer of
small tensors went with version 1; it has no counterpart here.
"""

from __future__ import annotations

import pytest
import tensorflow as tf
from hypothesis import given, strategies as st
from tensorflow.python.distribute import collective_util, cross_device_ops, cross_device_utils

from simreduce import dtypes
from simreduce.planners.packing import group_by_size
from simreduce.workload.loader import load_workload
from validate.tests.traffic import graph_traffic, plan_traffic
from validate.tests.upstream import (
    MOVES,
    PACKING,
    batch_reduce,
    differences,
    gradients,
    machine,
    plan,
)

LISTS = [[8], [4, 1, 3, 9], [10, 10, 10, 10, 10], [1, 2], [1000, 3, 64, 17, 1, 5]]


@pytest.mark.parametrize("sizes", LISTS)
@pytest.mark.parametrize("packs", [0, 1, 2, 3, 8, 13])
@pytest.mark.parametrize("algorithm", ["hierarchical_copy", "nccl", "psgpu"])
def test_concat_and_split(algorithm, packs, sizes):
    """Parts of every concat and split, before and after; with fewer elements than packs the first
    are empty.
    """
    assert {} == differences(algorithm, machine(1, 4), sizes, packs=packs, of=MOVES + PACKING)


def test_concat_and_split_of_a_model():
    sizes = [gradient.elements for gradient in load_workload("resnet50").gradients]

    assert {} == differences("hierarchical_copy", machine(1, 8), sizes, packs=8, of=MOVES + PACKING)


TYPES = [tf.float32, tf.float16, tf.float64]


@given(
    st.lists(st.tuples(st.integers(0, 300), st.sampled_from(TYPES)), min_size=1, max_size=40),
    st.integers(0, 2000),
)
def test_group_by_size(tensors, limit):
    """The same packs, in any mix of dtypes."""
    specs = [tf.TensorSpec([count], dtype, name=str(i)) for i, (count, dtype) in enumerate(tensors)]
    theirs = cross_device_utils.group_by_size(specs, limit)
    ours = group_by_size(
        [count * dtypes.SIZES[dtypes.code(dtype.name)] for count, dtype in tensors], limit
    )

    assert [[int(spec.name) for spec in pack] for pack in theirs] == ours


@pytest.mark.parametrize("model", ["resnet50", "vgg16", "inception3"])
@pytest.mark.parametrize("limit", [2**20, 25 * 2**20, 50 * 2**20])
def test_group_by_size_of_a_model(model, limit):
    found = list(reversed(load_workload(model).gradients))
    specs = [tf.TensorSpec([g.elements], tf.float32, name=g.name) for g in found]
    theirs = cross_device_utils.group_by_size(specs, limit)
    ours = group_by_size([g.nbytes for g in found], limit)

    assert [[spec.name for spec in pack] for pack in theirs] == [
        [found[i].name for i in p] for p in ours
    ]


@pytest.mark.parametrize("sizes", LISTS)
@pytest.mark.parametrize("limit", [0, 15, 16, 40, 100, 4000])
def test_bytes_per_pack(sizes, limit):
    """CollectiveAllReduce reverses the list, and joins and cuts as the plan does. Its ring is not
    in the graph.
    """
    layout = machine(1, 3)
    options = collective_util.Options(bytes_per_pack=limit)
    keys = cross_device_utils.CollectiveKeys()
    with tf.Graph().as_default():
        ops = cross_device_ops.CollectiveAllReduce(layout.ranks, len(layout), options, keys)
        results = batch_reduce(ops, [gradients(device, sizes) for device in layout.ranks], options)
    theirs = graph_traffic([tensor for tensors in results for tensor in tensors])
    ours = plan_traffic(plan(f"collective+bucket={limit}", layout, sizes))

    assert theirs.joins == ours.joins
    assert theirs.cuts == ours.cuts
    assert not theirs.transfers
