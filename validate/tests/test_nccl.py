"""NCCL's ops as TensorFlow would run them on eight GPUs: their graphs, since no GPU is needed to
build one.
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
import tensorflow as tf
from simreduce_validate.running.builders import builtin_program
from simreduce_validate.running.builtin import NCCL, NCCL_COLLECTIVE, Builtin
from simreduce_validate.running.execution import find_missing, read_execution
from simreduce_validate.running.placement import device

import simreduce as sr

GPUS = [device("GPU", i) for i in range(8)]
DEVICES = sr.layout(sr.load_topology("dgx-h100")).devices
GRADIENTS = (1000, 7)


def graph_of(name, number):
    """The ops of one step of a candidate, those that it needs without running it."""
    work = Builtin(name, GRADIENTS, 8)
    program = builtin_program(work, GPUS, DEVICES[:8], number)
    with tf.Graph().as_default() as graph:
        given = {}
        for op, variable in program.given.items():
            with tf.device(variable.device):
                given[op] = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[variable.elements])
        made = program.body(given)
    return work, graph, made, program


def collectives(graph, kind):
    return [op for op in graph.get_operations() if op.type == kind]


def waits_for(op):
    """The collectives that an op's control edges, or those of its keys, let it wait for."""
    befores = [*op.control_inputs, *(w for t in op.inputs for w in t.op.control_inputs)]
    return list(dict.fromkeys(w for w in befores if w.type == op.type))


def constant(op, place):
    return int(tf.make_ndarray(op.inputs[place].op.get_attr("value")))


def test_nccl_all_reduce_is_one_op_on_every_gpu_for_each_gradient():
    """Of one name and as many devices as there are, unpacked; every result is that of its own
    GPU's op.
    """
    _, graph, made, program = graph_of(NCCL, 1)
    ops = collectives(graph, "NcclAllReduce")
    named = Counter(op.get_attr("shared_name") for op in ops)

    assert [8, 8] == list(named.values())
    for name, elements in zip(named, GRADIENTS, strict=True):
        mine = [op for op in ops if op.get_attr("shared_name") == name]
        assert sorted(GPUS) == sorted(op.device for op in mine)
        assert {(8, b"sum")} == {
            (op.get_attr("num_devices"), op.get_attr("reduction")) for op in mine
        }
        assert {elements} == {op.inputs[0].shape.num_elements() for op in mine}
    for op, (result,) in made.results.items():
        assert "NcclAllReduce" == result.op.type
        assert program.place[program.plan.device[op]] == result.op.device
    assert {"ReadVariableOp"} == {op.inputs[0].op.type for op in ops}


def test_candidates_of_nccl_do_not_meet():
    names = [
        {op.get_attr("shared_name") for op in collectives(graph_of(NCCL, i)[1], "NcclAllReduce")}
        for i in (1, 2)
    ]

    assert 4 == len(names[0] | names[1])


@pytest.mark.parametrize(
    ("name", "hint"), [(NCCL_COLLECTIVE, b"nccl"), ("CollectiveReduceV2", b"ring")]
)
def test_collectives_have_a_group_of_their_own(name, hint):
    """All GPUs are in one group, each gradient is an instance, and on every GPU they come in the
    same order.
    """
    graphs = [graph_of(name, number)[1] for number in (1, 2)]
    both = [collectives(graph, "CollectiveReduceV2") for graph in graphs]
    keys = [{constant(op, 2) for op in ops} for ops in both]
    instances = [Counter(constant(op, 3) for op in ops) for ops in both]

    assert [16, 16] == [len(ops) for ops in both]
    assert {8} == {constant(op, 1) for ops in both for op in ops}
    assert [1, 1] == [len(each) for each in keys]
    assert not keys[0] & keys[1]
    assert [8, 8] == list(instances[0].values())
    assert not instances[0].keys() & instances[1].keys()
    for ops in both:
        assert {hint} == {op.get_attr("communication_hint") for op in ops}
        assert {b"Add"} == {op.get_attr("merge_op") for op in ops}
        for gpu in GPUS:
            first, second = sorted(
                (op for op in ops if op.device == gpu), key=lambda op: constant(op, 3)
            )
            assert [first] == waits_for(second)


@pytest.mark.parametrize("name", [NCCL, NCCL_COLLECTIVE])
def test_an_op_that_did_not_run_is_found(name):
    """The ops of a step are read from what devices executed. One GPU fewer is no measurement of
    NCCL.
    """
    work, graph, _, _ = graph_of(name, 1)
    nodes = graph.as_graph_def().node
    fewer = SimpleNamespace(node=[node for node in nodes if "GPU:3" not in node.device])

    assert [] == find_missing(work, GPUS, read_execution([SimpleNamespace(node=nodes)], graph))
    assert [f"collective only in the plan, 2 times: {(GPUS[3], name)}"] == find_missing(
        work, GPUS, read_execution([fewer], graph)
    )


def test_a_ring_is_not_nccl():
    """The same op with another hint."""
    _, graph, _, _ = graph_of("CollectiveReduceV2", 1)
    ran = read_execution([graph.as_graph_def()], graph)

    assert [] == find_missing(Builtin("CollectiveReduceV2", GRADIENTS, 8), GPUS, ran)
    assert 16 == len(find_missing(Builtin(NCCL_COLLECTIVE, GRADIENTS, 8), GPUS, ran))


def test_what_is_made_of_copies_misses_no_collective():
    assert [] == find_missing(
        Builtin("ReductionToOneDevice", (4,), 2), GPUS, read_execution([], None)
    )
