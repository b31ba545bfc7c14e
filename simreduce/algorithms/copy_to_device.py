"""tf_cnn_benchmarks' plain copy (`CopyToDeviceAlgorithm`): an n-ary add on one device, and copies
back.

`local_parameter_device=cpu` sums every tensor on the CPU; `gpu` sums tensor i on GPU i mod n.
"""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.algorithms.planner import Options, Results, Tensors
from simreduce.layouts import Layout
from simreduce.plan import PlanBuilder, Value


def copy_to_cpu(b: PlanBuilder, layout: Layout, tensors: Tensors, _: Options) -> Results:
    """Every tensor is summed on the first task's CPU."""
    return _round_robin(b, tensors, layout.host_devices("copy_to_cpu")[:1])


def copy_to_gpus(b: PlanBuilder, layout: Layout, tensors: Tensors, _: Options) -> Results:
    """Tensor i is summed on GPU i mod n."""
    return _round_robin(b, tensors, range(len(layout.ranks)))


def _round_robin(b: PlanBuilder, tensors: Tensors, devices: Sequence[int]) -> Results:
    return [sum_on(b, tensor, devices[i % len(devices)]) for i, tensor in enumerate(tensors)]


def sum_on(b: PlanBuilder, tensor: Sequence[Value], device: int) -> list[Value]:
    """One tensor, summed on `device` and copied from there to every rank."""
    total = b.add_on(device, tensor)
    return [b.copy(total, value.device) for value in tensor]
