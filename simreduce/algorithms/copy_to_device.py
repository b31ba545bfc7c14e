"""tf_cnn_benchmarks' plain copy (`CopyToDeviceAlgorithm`): an n-ary add on one device, and copies back.

`local_parameter_device=cpu` sums every tensor on the CPU; `gpu` sums tensor i on GPU i mod n.
"""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.errors import StrategyError
from simreduce.layouts import Layout
from simreduce.plan import PlanBuilder, Value


def copy_to_cpu(
    b: PlanBuilder, layout: Layout, tensors: Sequence[Sequence[Value]], shards: int
) -> list[list[list[Value]]]:
    """Every tensor is summed on the first task's CPU."""
    return _round_robin(b, tensors, layout.host_devices("copy_to_cpu")[:1], shards, "copy_to_cpu")


def copy_to_gpus(
    b: PlanBuilder, layout: Layout, tensors: Sequence[Sequence[Value]], shards: int
) -> list[list[list[Value]]]:
    """Tensor i is summed on GPU i mod n."""
    return _round_robin(b, tensors, range(len(layout.ranks)), shards, "copy_to_gpus")


def _round_robin(
    b: PlanBuilder, tensors: Sequence[Sequence[Value]], devices: Sequence[int], shards: int, name: str
) -> list[list[list[Value]]]:
    if shards != 1:
        raise StrategyError(f"{name}#{shards}: it takes no shards; use +packs={shards} to cut the gradients")
    return [sum_on(b, tensor, devices[i % len(devices)]) for i, tensor in enumerate(tensors)]


def sum_on(b: PlanBuilder, tensor: Sequence[Value], device: int) -> list[list[Value]]:
    """One tensor, summed on `device` and copied from there to every rank."""
    total = b.add([b.copy(value, device) for value in tensor])
    return [[b.copy(total, value.device)] for value in tensor]
