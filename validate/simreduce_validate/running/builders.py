"""Builds the graphs of TensorFlow's own all-reduces.

Each is built in a graph of its own, then imported into the route's. The import replaces copies
between CPU devices of one process, which would share the buffer, by real ones, as in our plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.distribute import cross_device_ops, values

from simreduce import dtypes
from simreduce.errors import InputError
from simreduce.plan import Kind
from simreduce_validate.running.builtin import COLLECTIVE, NCCL, NCCL_COLLECTIVE, Builtin
from simreduce_validate.running.placement import is_cpu, process
from simreduce_validate.running.program import Made, Program

Tensors: TypeAlias = list[list[Any]]
"""By gradient and rank."""

ops = tf.raw_ops


def builtin_program(
    work: Builtin, place: Sequence[str], devices: Sequence[str], key: int
) -> Program:
    """The program of one of `BUILTINS`. `key` tells its collectives from those of other candidates
    of the process.
    """
    ranks = place[: work.ranks]
    if work.name in (NCCL, NCCL_COLLECTIVE) and any(is_cpu(name) for name in ranks):
        raise InputError(f"{work.name}: NCCL is for GPUs, and these devices are CPUs")
    plan = work.plan(devices)
    inputs = [op for op in range(len(plan)) if plan.kind[op] == Kind.INPUT]
    dtype = tf.dtypes.as_dtype(dtypes.NAMES[work.dtype])

    def body(given: Mapping[int, Any]) -> Made:
        read = []
        for op in inputs:
            with tf.device(place[plan.device[op]]):
                read.append(ops.ReadVariableOp(resource=given[op], dtype=dtype, name=f"op{op}"))
        results = _bring_in(lambda own: _BUILDERS[work.name](own, key), read, work, ranks, dtype)
        # Every INPUT is followed by the OUTPUT of its rank.
        return Made({op + 1: [tensor] for op, tensor in zip(inputs, results, strict=True)})

    return Program(plan, tuple(place), body)


def _bring_in(
    build: Callable[[Tensors], Tensors],
    read: Sequence[Any],
    work: Builtin,
    ranks: Sequence[str],
    dtype: Any,
) -> list[Any]:
    """The results of `build` for the tensors `read`, in the current graph; both gradient by
    gradient.
    """
    with tf.Graph().as_default() as graph:
        own: Tensors = []
        for number, count in enumerate(work.elements):
            row = []
            for rank, device in enumerate(ranks):
                with tf.device(device):
                    row.append(tf.compat.v1.placeholder(dtype, [count], name=f"own{number}_{rank}"))
            own.append(row)
        results = [tensor for row in build(own) for tensor in row]
    feeds = {f"own{number}_{rank}:0" for number in range(len(own)) for rank in range(len(ranks))}
    given = dict(zip((t.name for row in own for t in row), read, strict=True))
    names = [tensor.name for tensor in results]
    found: list[Any] = tf.graph_util.import_graph_def(
        _with_real_copies(graph),
        {name: given[name] for name in sorted(feeds)},
        names,
        name="builtin",
    )
    # A result that is what was given is no op of the graph that was brought.
    return [given.get(name, tensor) for name, tensor in zip(names, found, strict=True)]


def find_devices(ops: Iterable[Any]) -> dict[str, str]:
    """The device of every op by name, by the rules of TensorFlow's placer; `ops` in the order of
    their making.

    An op without a device takes that of its first input that has one. Without such an input it is
    "", beside its readers.
    """
    place: dict[str, str] = {}
    for op in ops:
        inherited = (place[tensor.op.name] for tensor in op.inputs)
        place[op.name] = op.device or next((device for device in inherited if device), "")
    return place


def _with_real_copies(graph: Any) -> Any:
    """The `GraphDef` in which a CPU that reads from another of its process has a copy of its own of
    what it reads.
    """
    place = find_devices(graph.get_operations())
    definition = graph.as_graph_def()
    copies: dict[tuple[str, str], str] = {}
    for node in list(definition.node):
        here = place[node.name]
        node.device = here
        for i, name in enumerate(node.input):
            source = place[name.removeprefix("^").partition(":")[0]]
            shares = (
                is_cpu(source)
                and is_cpu(here)
                and process(source) == process(here)
                and source != here
            )
            if not shares or name.startswith("^"):
                continue
            if (name, here) not in copies:
                copies[name, here] = f"copy{len(copies)}"
                output = graph.get_tensor_by_name(name if ":" in name else f"{name}:0")
                made = definition.node.add(
                    name=copies[name, here], op="DeepCopy", device=here, input=[name]
                )
                made.attr["T"].type = output.dtype.as_datatype_enum
            node.input[i] = copies[name, here]
    return definition


def _cross_device(ops_of: Any, own: Tensors) -> Tensors:
    per_replica = [values.PerReplica(list(row)) for row in own]
    reduced = ops_of.batch_reduce(
        tf.distribute.ReduceOp.SUM, [(value, value) for value in per_replica]
    )
    return [list(value.values) for value in reduced]


def _collective(own: Tensors, key: int, hint: str) -> Tensors:
    """A collective per gradient, whose group and instances have numbers of their own. The `hint`
    says what carries it out: ring or nccl.

    On every device they come one after another: if two devices began with different ones, all would
    wait for ever.
    """
    found: Tensors = []
    for number, row in enumerate(own):
        made: list[Any] = []
        for rank, tensor in enumerate(row):
            before = [found[-1][rank].op] if found else []
            with tf.device(tensor.device), tf.control_dependencies(before):
                made.append(
                    ops.CollectiveReduceV2(
                        input=tensor,
                        group_size=tf.constant(len(row)),
                        group_key=tf.constant(1000 + key),
                        instance_key=tf.constant(1_000_000 + key * 1000 + number),
                        ordering_token=[],
                        merge_op="Add",
                        final_op="Id",
                        communication_hint=hint,
                    )
                )
        found.append(made)
    return found


_BUILDERS: Mapping[str, Callable[[Tensors, int], Tensors]] = {
    "HierarchicalCopyAllReduce": lambda own, _: _cross_device(
        cross_device_ops.HierarchicalCopyAllReduce(num_packs=1 if len(own) == 1 else 0), own
    ),
    "ReductionToOneDevice": lambda own, _: _cross_device(
        cross_device_ops.ReductionToOneDevice(), own
    ),
    # Unpacked, as the strategy `nccl` is.
    NCCL: lambda own, _: _cross_device(cross_device_ops.NcclAllReduce(num_packs=0), own),
    COLLECTIVE: partial(_collective, hint="ring"),
    NCCL_COLLECTIVE: partial(_collective, hint="nccl"),
}
