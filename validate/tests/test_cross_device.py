"""The calls of TensorFlow 2's CrossDeviceOps, to any destinations, against our plans of them."""

from __future__ import annotations

import pytest
import tensorflow as tf
from hypothesis import given, strategies as st
from simreduce_validate.graphs import graph_traffic, plan_traffic
from tensorflow.python.distribute import cross_device_ops, values

from simreduce import cross_device
from simreduce.cross_device import PerDevice, PerDeviceSlices
from validate.tests.upstream import MOVES, PACKING, gradients, machine, traffic_differences

LAYOUT = machine(2, 3)
GPUS, DEVICES = range(LAYOUT.n), range(len(LAYOUT.devices))
EVERYTHING = MOVES + PACKING
ADD_N_OF_ONE = pytest.mark.xfail(reason="TensorFlow's add_n of one tensor is that tensor, where it is")


def some(devices, least=1):
    """`least` or more of `devices`, each once, in any order."""
    return st.lists(st.sampled_from(devices), min_size=least, max_size=6, unique=True)


def of_rank(devices, size):
    """A distributed value, as TensorFlow holds it."""
    return values.PerReplica([gradients(LAYOUT.devices[d], [size])[0] for d in devices])


def traffic(*results):
    held = [r.values if isinstance(r, values.DistributedValues) else r for r in results]
    return graph_traffic(tf.nest.flatten(held, expand_composites=True))


@given(some(DEVICES, 2), some(DEVICES), st.booleans(), st.data(), st.sampled_from(["one", "nccl"]))
def test_slices(sources, destinations, mean, data, method):
    """IndexedSlices are concatenated on one device, whatever the method."""
    rows = data.draw(st.lists(st.integers(1, 9), min_size=len(sources), max_size=len(sources)))
    with_shape = data.draw(st.booleans())
    how = tf.distribute.ReduceOp.MEAN if mean else tf.distribute.ReduceOp.SUM
    theirs, ours = {
        "one": (cross_device_ops.ReductionToOneDevice(), cross_device.ReductionToOneDevice()),
        "nccl": (cross_device_ops.NcclAllReduce(), cross_device.AllReduceCrossDeviceOps()),
    }[method]
    with tf.Graph().as_default():
        value = values.PerReplica(
            [
                slices(LAYOUT.devices[d], count, with_shape=with_shape)
                for d, count in zip(sources, rows, strict=True)
            ]
        )
        found = theirs.reduce(how, value, of_rank(destinations, 1))
    value = PerDeviceSlices(tuple(zip(sources, rows, strict=True)), 3, dimensions=2 * with_shape)
    plan = cross_device.reduce(ours, "mean" if mean else "sum", value, destinations, LAYOUT, version="2.x")

    assert {} == traffic_differences(traffic(found), plan_traffic(plan), EVERYTHING)


def slices(device, rows, *, with_shape):
    """IndexedSlices of 3 elements a row."""
    with tf.device(device):
        return tf.IndexedSlices(
            tf.compat.v1.placeholder(tf.float32, [rows, 3]),
            tf.compat.v1.placeholder(tf.int64, [rows]),
            tf.compat.v1.placeholder(tf.int64, [2]) if with_shape else None,
        )


@pytest.mark.parametrize(
    ("destinations", "mean"),
    [
        ([0], False),
        ([0], True),
        ([0, 1], False),
        ([2, 0], True),
        ([3], False),
        pytest.param([1, 0], False, marks=ADD_N_OF_ONE),
        pytest.param([6, 2], False, marks=ADD_N_OF_ONE),
    ],
)
@pytest.mark.parametrize("algorithm", ["nccl", "hierarchical_copy", None])
def test_a_value_on_one_device(algorithm, destinations, mean):
    """TensorFlow divides it at the first destination, but does not take it there to sum it."""
    if algorithm:
        theirs = cross_device_ops.AllReduceCrossDeviceOps(algorithm)
        ours = cross_device.AllReduceCrossDeviceOps(algorithm)
    else:
        theirs = cross_device_ops.ReductionToOneDevice()
        ours = cross_device.ReductionToOneDevice()

    assert {} == differences(theirs, ours, [0], destinations, 7, mean=mean)


def differences(theirs, ours, sources, destinations, size, *, mean):
    """Of one `reduce`."""
    how = tf.distribute.ReduceOp.MEAN if mean else tf.distribute.ReduceOp.SUM
    with tf.Graph().as_default():
        found = theirs.reduce(how, of_rank(sources, size), of_rank(destinations, 1))
    plan = cross_device.reduce(
        ours, "mean" if mean else "sum", PerDevice.on(sources, size), destinations, LAYOUT, version="2.x"
    )
    return traffic_differences(traffic(found), plan_traffic(plan), EVERYTHING)


@given(st.sampled_from(DEVICES), some(DEVICES), st.integers(1, 50))
def test_broadcast(source, destinations, size):
    with tf.Graph().as_default():
        tensor = gradients(LAYOUT.devices[source], [size])[0]
        found = cross_device_ops.ReductionToOneDevice().broadcast(tensor, of_rank(destinations, 1))
    plan = cross_device.broadcast(PerDevice.on([source], size), destinations, LAYOUT)

    assert {} == traffic_differences(traffic(found), plan_traffic(plan), EVERYTHING)


@given(
    st.sampled_from(["nccl", "hierarchical_copy"]),
    st.lists(st.tuples(st.integers(1, 50), some(DEVICES) | st.none()), min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from([0, 1, 3]),
)
def test_batch_reduce(algorithm, items, mean, packs):
    """One batch if every value stays where it is, else one reduction after another."""
    sources = [0, 1, 2, 4]
    how = tf.distribute.ReduceOp.MEAN if mean else tf.distribute.ReduceOp.SUM
    theirs = cross_device_ops.AllReduceCrossDeviceOps(algorithm, packs)
    ours = cross_device.AllReduceCrossDeviceOps(algorithm, packs)
    with tf.Graph().as_default():
        pairs = [(of_rank(sources, size), of_rank(to or sources, 1)) for size, to in items]
        found = theirs.batch_reduce(how, pairs)
    plan = cross_device.batch_reduce(
        ours,
        "mean" if mean else "sum",
        [(PerDevice.on(sources, size), to or sources) for size, to in items],
        LAYOUT,
        version="2.x",
    )

    assert {} == traffic_differences(traffic(*found), plan_traffic(plan), EVERYTHING)
