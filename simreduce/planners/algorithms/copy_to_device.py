"""Stars: an n-ary add of each tensor on one device, and copies back.

tf_cnn_benchmarks' plain copy (`CopyToDeviceAlgorithm`) sums every tensor on the CPU
(`local_parameter_device=cpu`) or tensor i on GPU i mod n (`gpu`). TensorFlow's
`ReductionToOneDevice` sums all on the first device.
"""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.plan import PlanBuilder, Value
from simreduce.planners.algorithms.alike import plan_each
from simreduce.planners.algorithms.planner import Options, Results, Tensors
from simreduce.planners.layouts import Layout


def copy_to_cpu(b: PlanBuilder, layout: Layout, tensors: Tensors, _: Options) -> Results:
    """Every tensor is summed on the first task's CPU."""
    return _round_robin(b, tensors, layout.host_devices("copy_to_cpu")[:1])


def copy_to_gpus(b: PlanBuilder, layout: Layout, tensors: Tensors, _: Options) -> Results:
    """Tensor i is summed on GPU i mod n."""
    return _round_robin(b, tensors, range(len(layout.ranks)))


def reduce_to_one(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """A star on rank 0: (n-1) S in, (n-1) S out."""
    return _round_robin(b, tensors, [0])


def _round_robin(b: PlanBuilder, tensors: Tensors, devices: Sequence[int]) -> Results:
    def star(tensor: Sequence[Value], turn: int) -> list[Value]:
        total = b.add_on(devices[turn], tensor)
        return [b.copy(total, value.device) for value in tensor]

    return plan_each(b, tensors, star, len(devices))
