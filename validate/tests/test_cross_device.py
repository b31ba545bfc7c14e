"""The calls of TensorFlow 2's CrossDeviceOps, to any destinations, against our plans of them."""

from __future__ import annotations

import pytest
import tensorflow as tf
from hypothesis import assume, given, strategies as st
from tensorflow.python.distribute import cross_device_ops, values

from simreduce.training import cross_device
from simreduce.training.cross_device.one_device import PerDevice, PerDeviceSlices
from validate.tests.traffic import graph_traffic, plan_traffic
from validate.tests.upstream import MOVES, PACKING, gradients, machine, traffic_differences

LAYOUT = machine(2, 3)
GPUS, DEVICES = range(LAYOUT.n), range(len(LAYOUT.devices))

METHODS = st.sampled_from(["nccl", "hierarchical_copy", None])
"""None is ReductionToOneDevice."""


def some(devices, least=1):
    """`least` or more of `devices`, each once, in any order."""
    return st.lists(st.sampled_from(devices), min_size=least, max_size=6, unique=True)


def methods(algorithm, packs=1):
    """Theirs and ours."""
    if algorithm is None:
        return cross_device_ops.ReductionToOneDevice(), cross_device.ReductionToOneDevice()
    return (
        cross_device_ops.AllReduceCrossDeviceOps(algorithm, packs),
        cross_device.AllReduceCrossDeviceOps(algorithm, packs),
    )


def reduce_op(*, mean):
    return tf.distribute.ReduceOp.MEAN if mean else tf.distribute.ReduceOp.SUM


def value_on(devices, size=1):
    """A distributed value, as TensorFlow holds it."""
    return values.PerReplica([gradients(LAYOUT.devices[d], [size])[0] for d in devices])


def slices_on(places, dimensions):
    """IndexedSlices of 3 elements a row, on (device, rows) as in `places`."""

    def local(device, rows):
        with tf.device(LAYOUT.devices[device]):
            return tf.IndexedSlices(
                tf.compat.v1.placeholder(tf.float32, [rows, 3]),
                tf.compat.v1.placeholder(tf.int64, [rows]),
                tf.compat.v1.placeholder(tf.int64, [dimensions]) if dimensions else None,
            )

    return values.PerReplica([local(device, rows) for device, rows in places])


def compared(results, plan):
    """What only TensorFlow's `results` and what only our plan takes, packing included."""
    held = [r.values if isinstance(r, values.DistributedValues) else r for r in results]
    theirs = graph_traffic(tf.nest.flatten(held, expand_composites=True))
    return traffic_differences(theirs, plan_traffic(plan), MOVES + PACKING)


def differences(theirs, ours, sources, destinations, size, *, mean):
    """Of one `reduce`."""
    with tf.Graph().as_default():
        found = theirs.reduce(reduce_op(mean=mean), value_on(sources, size), value_on(destinations))
    value, how = PerDevice.on(sources, size), "mean" if mean else "sum"
    return compared(
        [found], cross_device.reduce(ours, how, value, destinations, LAYOUT, version="2.x")
    )


def differences_of_slices(algorithm, places, destinations, *, mean, dimensions=0):
    """Of one `reduce` of IndexedSlices."""
    theirs, ours = methods(algorithm)
    with tf.Graph().as_default():
        found = theirs.reduce(
            reduce_op(mean=mean), slices_on(places, dimensions), value_on(destinations)
        )
    value, how = PerDeviceSlices(tuple(places), 3, dimensions=dimensions), "mean" if mean else "sum"
    return compared(
        [found], cross_device.reduce(ours, how, value, destinations, LAYOUT, version="2.x")
    )


@given(
    METHODS,
    some(GPUS, 2),
    some(DEVICES) | st.none(),
    st.booleans(),
    st.integers(1, 50),
    st.sampled_from([0, 1, 2, 3]),
)
def test_reduce(algorithm, sources, destinations, mean, size, packs):
    """To the devices of the value itself, or to any."""
    assume(algorithm != "hierarchical_copy" or len(sources) % 2 == 0)
    theirs, ours = methods(algorithm, packs)

    assert {} == differences(theirs, ours, sources, destinations or sources, size, mean=mean)


@given(
    some(DEVICES, 2),
    some(DEVICES),
    st.booleans(),
    st.integers(1, 50),
    st.none() | st.sampled_from(DEVICES),
)
def test_reduction_to_one_device(sources, destinations, mean, size, root):
    """To the first destination, or to a device of its own."""
    theirs = cross_device_ops.ReductionToOneDevice(None if root is None else LAYOUT.devices[root])
    ours = cross_device.ReductionToOneDevice(root)

    assert {} == differences(theirs, ours, sources, destinations, size, mean=mean)


@given(
    st.sampled_from(["nccl", "hierarchical_copy"]),
    st.lists(st.tuples(st.integers(1, 50), some(DEVICES) | st.none()), min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from([0, 1, 3]),
)
def test_batch_reduce(algorithm, items, mean, packs):
    """One batch if every value stays where it is, else one reduction after another."""
    sources = [0, 1, 2, 4]
    theirs, ours = methods(algorithm, packs)
    with tf.Graph().as_default():
        pairs = [(value_on(sources, size), value_on(to or sources)) for size, to in items]
        found = theirs.batch_reduce(reduce_op(mean=mean), pairs)
    pairs = [(PerDevice.on(sources, size), to or sources) for size, to in items]
    plan = cross_device.batch_reduce(ours, "mean" if mean else "sum", pairs, LAYOUT, version="2.x")

    assert {} == compared(found, plan)


@given(st.sampled_from(DEVICES), some(DEVICES), st.integers(1, 50))
def test_broadcast(source, destinations, size):
    with tf.Graph().as_default():
        tensor = gradients(LAYOUT.devices[source], [size])[0]
        found = cross_device_ops.ReductionToOneDevice().broadcast(tensor, value_on(destinations))
    plan = cross_device.broadcast(PerDevice.on([source], size), destinations, LAYOUT)

    assert {} == compared([found], plan)


PLACES = st.tuples(st.sampled_from(DEVICES), st.integers(1, 9))


@given(
    METHODS,
    st.lists(PLACES, min_size=1, max_size=6, unique_by=lambda place: place[0]),
    some(DEVICES),
    st.booleans(),
)
def test_slices(algorithm, places, destinations, mean):
    """IndexedSlices are concatenated on one device, whatever the method; those of one device stay
    where they are.
    """
    sources = {device for device, _ in places}
    assume(sources != set(destinations) or sources <= set(GPUS))

    assert {} == differences_of_slices(algorithm, places, destinations, mean=mean)


@pytest.mark.parametrize("algorithm", ["nccl", "hierarchical_copy"])
def test_slices_that_stay_on_devices_with_a_cpu_among_them(algorithm):
    """All-reduces do not take a CPU, so it is a reduction to one device, and to the first
    destination.
    """
    assert {} == differences_of_slices(algorithm, [(0, 3), (6, 5)], [6, 0], mean=False)


@pytest.mark.parametrize(
    "destinations",
    [[2], [2, 3], [1], [0, 2], [1, 2],
     [0, 3, 6]],
)  # fmt: skip
def test_slices_with_a_dense_shape(destinations):
    """The shape of the first device is that of the result."""
    assert {} == differences_of_slices(
        None, [(2, 3), (0, 5)], destinations, mean=True, dimensions=2
    )


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("root", [None, 1, 2])
@pytest.mark.parametrize("destinations", [[0], [0, 3], [2, 1]])
def test_slices_on_one_device(destinations, root, mean):
    """Only the rows, and only where they are divided, go to the device that reduces."""
    theirs = cross_device_ops.ReductionToOneDevice(None if root is None else LAYOUT.devices[root])
    with tf.Graph().as_default():
        found = theirs.reduce(reduce_op(mean=mean), slices_on([(2, 3)], 2), value_on(destinations))
    ours, how = cross_device.ReductionToOneDevice(root), "mean" if mean else "sum"
    value = PerDeviceSlices(((2, 3),), 3, dimensions=2)

    assert {} == compared(
        [found], cross_device.reduce(ours, how, value, destinations, LAYOUT, version="2.x")
    )


@pytest.mark.parametrize("algorithm", ["nccl", "hierarchical_copy", None])
@pytest.mark.parametrize(
    ("destinations", "mean"),
    [([0], False), ([0], True), ([0, 1], False), ([2, 0], True), ([3], False),
     ([1, 0], False), ([6, 2], False)],
)  # fmt: skip
def test_a_value_on_one_device(algorithm, destinations, mean):
    """It is divided at the first destination, but not taken there to be summed."""
    theirs, ours = methods(algorithm)

    assert {} == differences(theirs, ours, [0], destinations, 7, mean=mean)
