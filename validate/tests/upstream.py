"""TensorFlow's own all-reduce graphs, for layouts whose names are TensorFlow's device names.

tf_cnn_benchmarks calls TensorFlow's builders; which devices it gives them for which tensor is
restated here.
"""

from __future__ import annotations

import tensorflow as tf
from simreduce_validate.running.builders import find_devices
from tensorflow.python.distribute import cross_device_ops, values
from tensorflow.python.distribute.v1 import all_reduce
from tensorflow.python.ops import math_ops

from simreduce.planners.layouts import Layout
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.workload import Gradient, Workload
from validate.tests.traffic import graph_traffic, plan_traffic, running

CROSS_DEVICE_OPS = {
    "nccl": cross_device_ops.NcclAllReduce,
    "hierarchical_copy": cross_device_ops.HierarchicalCopyAllReduce,
    "reduce_to_one": lambda _: cross_device_ops.ReductionToOneDevice(),
}
"""What TensorFlow 2 offers to a distribution strategy, by our name. The argument is the number of
packs.
"""


def machine(tasks: int, gpus: int, job: str = "/job:worker/replica:0/task:{}") -> Layout:
    """`tasks` workers of `gpus` GPUs each, and one CPU."""
    n = tasks * gpus
    return Layout(
        ranks=tuple(f"{job.format(t)}/device:GPU:{g}" for t in range(tasks) for g in range(gpus)),
        tasks=tuple(tuple(range(t * gpus, (t + 1) * gpus)) for t in range(tasks)),
        hosts=tuple(f"{job.format(t)}/device:CPU:0" for t in range(tasks)),
        links=((0,) * n,) * n,
    )


def graph(algorithm, layout, sizes, *, shards=1, packs=0, faithful=False, inputs=None):
    """The results by gradient and rank, in a graph of their own.

    `inputs[r]` are the gradients of rank r end to end; without, they are placeholders. Where
    tf_cnn_benchmarks and TensorFlow 1.14 differ (`pscpu/pscpu#k`), `faithful` is the former.
    """
    with tf.Graph().as_default():
        own = [
            gradients(device, sizes, None if inputs is None else inputs[r])
            for r, device in enumerate(layout.ranks)
        ]
        if algorithm in CROSS_DEVICE_OPS:
            return batch_reduce(CROSS_DEVICE_OPS[algorithm](packs), own)
        packer = cross_device_ops._ConcatAndSplitPacker(packs) if packs else None
        tensors = zip(*(_packed(packer, own) if packer else own), strict=True)
        reduced = [
            _reduce(algorithm, layout, i, list(tensor), shards, faithful=faithful)
            for i, tensor in enumerate(tensors)
        ]
        return _unpacked(packer, reduced) if packer else reduced


def gradients(device, sizes, held=None):
    """The gradients of one device; those of even size are matrices."""
    found, lo = [], 0
    for size in sizes:
        shape = [size] if size % 2 else [2, size // 2]
        with tf.device(device):
            if held is None:
                found.append(tf.compat.v1.placeholder(tf.float32, shape))
            else:
                found.append(tf.constant(held[lo : lo + size].reshape(shape)))
        lo += size
    return found


def _packed(packer, own):
    packs = packer.pack([[(gradient, None) for gradient in gradients] for gradients in own])
    return [[tensor for tensor, _ in tensors] for tensors in packs]


def _unpacked(packer, reduced):
    by_device = [[(tensor, None) for tensor in tensors] for tensors in zip(*reduced, strict=True)]
    gradients = packer.unpack(by_device)
    return [[gradient for gradient, _ in pairs] for pairs in zip(*gradients, strict=True)]


def batch_reduce(ops, own, options=None):
    """`own[r]` are the gradients of rank r; the results are by gradient and rank."""
    per_replica = [values.PerReplica(list(tensor)) for tensor in zip(*own, strict=True)]
    reduced = ops.batch_reduce(
        tf.distribute.ReduceOp.SUM, [(value, value) for value in per_replica], options
    )
    return [list(getattr(value, "values", (value,))) for value in reduced]


def _reduce(algorithm, layout, index, tensor, shards, *, faithful):
    """Tensor `index`, as `sum_gradients_all_reduce` has it built."""
    cpus = list(layout.hosts)
    devices = _gpus_by_number(layout) if algorithm == "psgpu" else cpus
    group = gather_group(devices, shards, index) if "ps" in algorithm else []
    match algorithm:
        case "xring":
            order = layout.order or range(len(layout.tasks[0]))
            return all_reduce.build_ring_all_reduce(
                tensor, len(layout.tasks), shards, list(order), math_ops.add
            )
        case "pscpu" | "psgpu":
            return all_reduce.build_shuffle_all_reduce(tensor, group, math_ops.add_n)
        case "nccl/xring":
            return all_reduce.build_nccl_then_ring(tensor, shards, math_ops.add)
        case "rechd":
            return all_reduce.build_recursive_hd_all_reduce(tensor, math_ops.add)
        case "nccl/rechd":
            return all_reduce.build_nccl_then_recursive_hd(tensor, math_ops.add)
        case "nccl/pscpu":
            return all_reduce.build_nccl_then_shuffle(tensor, cpus, math_ops.add, math_ops.add_n)
        case "pscpu/pscpu":
            second = cpus[: 1 if faithful else shards]
            return all_reduce.build_shuffle_then_shuffle(tensor, cpus, second, math_ops.add_n)
    raise ValueError(algorithm)


def _gpus_by_number(layout):
    """GPU 0 of every task, then GPU 1 of every task, and so on."""
    return [layout.ranks[task[i]] for i in range(len(layout.tasks[0])) for task in layout.tasks]


def gather_group(devices, shards, index):
    """The gather devices of tensor `index`: tensors take turns with interleaved groups of `shards`
    devices.
    """
    if shards > len(devices):
        raise ValueError(f"only {len(devices)} devices, but group_size={shards}")
    count = -(-len(devices) // shards)
    return [devices[(index % count + k * count) % len(devices)] for k in range(shards)]


def plan(algorithm, layout, sizes, *, shards=1, packs=0, faithful=False):
    """Our plan for the same; `rechd` is reached through NCCL only, which has nothing to do among
    one GPU per task.
    """
    text = (
        {"rechd": "nccl/rechd"}.get(algorithm, algorithm)
        + (f"#{shards}" if shards != 1 else "")
        + (f"+packs={packs}" if packs else "")
    )
    gradients = tuple(Gradient(f"g{i}", size) for i, size in enumerate(sizes))
    return compile_plan(text, Workload("gradients", gradients), layout, faithful=faithful)


MOVES = ("transfers", "sums", "divisions", "collectives")
PACKING = ("joins", "cuts")


def differences(algorithm, layout, sizes, *, of=MOVES, **options):
    """What only TensorFlow's graph does and what only our plan does, by kind; nothing where they
    agree.
    """
    results = graph(algorithm, layout, sizes, **options)
    flat = [tensor for tensors in results for tensor in tensors]
    place = find_devices(running(flat))
    assert [place[tensor.op.name] for tensor in flat] == [*layout.ranks] * len(sizes)
    ours = plan_traffic(plan(algorithm, layout, sizes, **options))
    return traffic_differences(graph_traffic(flat), ours, of)


def traffic_differences(theirs, ours, of=MOVES):
    """`differences` of traffic that is known."""
    pairs = {kind: (getattr(theirs, kind), getattr(ours, kind)) for kind in of}
    return {kind: (dict(a - b), dict(b - a)) for kind, (a, b) in pairs.items() if a != b}
