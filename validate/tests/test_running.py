"""Small graphs and plans, carried out: TensorFlow on CPU devices in one process, the plan in numpy.

The graph that runs is the one that is compared: only its devices are renamed, and what has none
gets the one that `find_devices` returns. What TensorFlow's partitioner then sends shows that the
graph is read as TensorFlow reads it.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from simreduce_validate.running.builders import find_devices

from simreduce.engine.lowering.calls import views
from simreduce.plan import ZEROS, Contract, Kind, PlanBuilder
from simreduce.topology import Node
from validate.tests.traffic import elements, graph_traffic, running
from validate.tests.upstream import graph, machine, plan

CASES = [
    ("xring", 1, 2, {}), ("xring", 1, 3, {"shards": 2}), ("xring", 1, 4, {"packs": 2}),
    ("xring", 1, 8, {}),
    ("xring", 2, 2, {"shards": 2}), ("xring", 3, 2, {}),
    ("psgpu", 1, 2, {}), ("psgpu", 1, 4, {"shards": 3}), ("psgpu", 2, 3, {"shards": 2, "packs": 3}),
    ("pscpu", 1, 3, {}), ("pscpu", 2, 2, {"shards": 2}), ("pscpu", 3, 1, {"shards": 2}),
    ("pscpu/pscpu", 1, 2, {}), ("pscpu/pscpu", 2, 2, {}), ("pscpu/pscpu", 3, 2, {"shards": 2}),
    ("rechd", 2, 1, {}), ("rechd", 4, 1, {}), ("rechd", 8, 1, {"packs": 2}),
    ("hierarchical_copy", 1, 2, {}), ("hierarchical_copy", 1, 4, {}),
    ("hierarchical_copy", 1, 8, {"packs": 8}),
    ("reduce_to_one", 1, 2, {}), ("reduce_to_one", 1, 5, {}), ("reduce_to_one", 2, 3, {}),
]  # fmt: skip
SIZES = [10, 1, 37, 8]
PARTS = [(0, 64), (16, 32), (16, 33), (8, 24), (0, 60), (0, 100)]


def inputs_of(layout, sizes):
    generator = np.random.default_rng(1)
    return [generator.uniform(0.5, 1.5, sum(sizes)).astype(np.float32) for _ in layout.ranks]


def run(results):
    """The values of `results`, and the (source, destination, elements) that TensorFlow sent for
    them.
    """
    flat = [tensor for tensors in results for tensor in tensors]
    ops = running(flat)
    place = find_devices(ops)
    for op in reversed(ops):
        for tensor in op.inputs:
            place[tensor.op.name] = place[tensor.op.name] or place[op.name]
    # CPU:0 is where results are fetched to; it takes part in nothing else.
    number = {device: i for i, device in enumerate(sorted(set(place.values())), start=1)}
    kept = flat[0].graph.as_graph_def()
    del kept.node[:]
    for op in ops:
        node = kept.node.add()
        node.CopyFrom(op.node_def)
        node.device = f"/device:CPU:{number[place[op.name]]}"
    config = tf.compat.v1.ConfigProto(device_count={"CPU": len(number) + 1})
    config.graph_options.optimizer_options.opt_level = -1
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    traced = tf.compat.v1.RunOptions(output_partition_graphs=True)
    metadata = tf.compat.v1.RunMetadata()
    with tf.Graph().as_default() as renamed:
        tf.import_graph_def(kept, name="")
        with tf.compat.v1.Session(config=config) as session:
            found = session.run(
                [tensor.name for tensor in flat], options=traced, run_metadata=metadata
            )
    name = {
        f"/job:localhost/replica:0/task:0/device:CPU:{i}": device for device, i in number.items()
    }
    sent = Counter()
    for node in (
        node for part in metadata.partition_graphs for node in part.node if node.op == "_Send"
    ):
        target = name.get(node.attr["recv_device"].s.decode())
        if target:
            tensor = node.input[0] if ":" in node.input[0] else f"{node.input[0]}:0"
            size = elements(renamed.get_tensor_by_name(tensor))
            sent[name[node.attr["send_device"].s.decode()], target, size] += 1
    ranks = len(results[0])
    return [[v.ravel() for v in found[i : i + ranks]] for i in range(0, len(found), ranks)], sent


def evaluate(our_plan, inputs):
    """The values of the OUTPUTs, by gradient and rank: the plan's arithmetic in numpy."""
    held, outputs = [], []
    for op in range(len(our_plan)):
        kind, lo, hi = Kind(int(our_plan.kind[op])), int(our_plan.lo[op]), int(our_plan.hi[op])
        read = [
            held[v][max(lo - our_plan.lo[v], 0) : hi - our_plan.lo[v]]
            for v in our_plan.operands_of(op)
        ]
        if kind == Kind.INPUT:
            own = our_plan.arg[op]
            value = np.zeros(hi - lo, np.float32) if own == ZEROS else inputs[own][lo:hi]
        elif kind == Kind.ADD:
            value = np.sum(read, axis=0, dtype=np.float32)
        else:
            value = np.concatenate(read)
        assert len(value) == hi - lo
        held.append(value)
        if kind == Kind.OUTPUT:
            outputs.append(value)
    ranks = len(inputs)
    return [outputs[i : i + ranks] for i in range(0, len(outputs), ranks)]


def names(case):
    algorithm, tasks, gpus, options = case
    return f"{algorithm}-{tasks}x{gpus}" + "".join(
        f"-{key}{value}" for key, value in options.items()
    )


@pytest.mark.parametrize("case", CASES, ids=names)
def test_both_give_the_sum(case):
    algorithm, tasks, gpus, options = case
    layout = machine(tasks, gpus)
    sizes = [16 * size for size in SIZES] if algorithm == "rechd" else SIZES
    inputs = inputs_of(layout, sizes)
    results = graph(algorithm, layout, sizes, inputs=inputs, **options)
    theirs, sent = run(results)
    ours = evaluate(plan(algorithm, layout, sizes, **options), inputs)
    sums = np.split(np.sum(inputs, axis=0, dtype=np.float64), np.cumsum(sizes)[:-1])

    assert len(sizes) == len(theirs) == len(ours)
    for tensor, (by_them, by_us) in enumerate(zip(theirs, ours, strict=True)):
        for rank in range(len(layout)):
            np.testing.assert_allclose(by_them[rank], sums[tensor], rtol=1e-6)
            np.testing.assert_allclose(by_us[rank], sums[tensor], rtol=1e-6)
    assert sent == graph_traffic([tensor for tensors in results for tensor in tensors]).transfers


@pytest.mark.parametrize("devices", [3, 5, 7])
def test_hierarchical_copy_of_an_odd_number_gives_the_same_wrong_sum(devices):
    """All but the last device's."""
    layout = machine(1, devices)
    inputs = inputs_of(layout, SIZES)
    theirs, _ = run(graph("hierarchical_copy", layout, SIZES, inputs=inputs))
    ours = evaluate(plan("hierarchical_copy", layout, SIZES, faithful=True), inputs)
    sums = np.split(np.sum(inputs[:-1], axis=0, dtype=np.float64), np.cumsum(SIZES)[:-1])

    for by_them, by_us, expected in zip(theirs, ours, sums, strict=True):
        for rank in range(devices):
            np.testing.assert_allclose(by_them[rank], expected, rtol=1e-6)
            np.testing.assert_allclose(by_us[rank], expected, rtol=1e-6)


def test_slices_are_views_where_tensorflow_shares_memory():
    """TensorFlow records where each op's result lies, and the plan says which of them are views."""
    builder = PlanBuilder(("cpu0",))
    value = builder.input(0, 0, 100)
    sliced = [builder.slice(value, *part).op for part in PARTS]
    one = builder.finish(Contract.of("none", []))

    with tf.Graph().as_default():
        given = tf.compat.v1.get_variable("given", initializer=tf.zeros([100]), use_resource=False)
        for lo, hi in PARTS:
            part = tf.raw_ops.Slice(
                input=given, begin=[lo], size=[hi - lo], name=f"from_{lo}_to_{hi}"
            )
            tf.identity(part, name=f"{part.op.name}/kept")
        kept = [op for op in tf.compat.v1.get_default_graph().get_operations()
                if op.name.endswith("/kept")]  # fmt: skip
        traced = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
        metadata = tf.compat.v1.RunMetadata()
        config = tf.compat.v1.ConfigProto()
        config.graph_options.optimizer_options.opt_level = -1
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        with tf.compat.v1.Session(config=config) as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(kept, options=traced, run_metadata=metadata)
    place = {
        node.node_name: node.output[0].tensor_description.allocation_description.ptr
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
        if node.output
    }

    shared = [place[f"from_{lo}_to_{hi}"] == place["given"] for lo, hi in PARTS]
    assert [True, True, False, False, False, True] == shared
    assert shared == views(one, [Node("cpu0", "cpu")])[sliced].tolist()
