"""tf_cnn_benchmarks' shuffles: `build_shuffle_all_reduce` over CPUs or GPUs, and `pscpu/pscpu`.

The first works over the tasks' CPUs (pscpu) or the GPUs (psgpu). In the second every task sums on
its own CPU, then the CPUs shuffle among themselves.

Every source cuts its tensor into one shard per gather device; each gather device sums its shard of
all sources in one n-ary add; every source pulls all summed shards back. Tensor i uses group i mod m
of the gather devices.
"""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.errors import StrategyError
from simreduce.plan import PlanBuilder, Value
from simreduce.planners.algorithms.planner import Options, Results, Tensors, plan_each
from simreduce.planners.layouts import Layout


def gather_groups(devices: Sequence[int], size: int) -> list[list[int]]:
    """`group_device_names`: ceil(D / size) interleaved groups of `size` devices.

    Where `size` does not divide D, some devices are in two groups.
    """
    if not 1 <= size <= len(devices):
        raise StrategyError(f"the shards must be from 1 to the gather devices, {len(devices)} here")
    groups: list[list[int]] = [[] for _ in range(-(-len(devices) // size))]
    for i in range(len(groups) * size):
        groups[i % len(groups)].append(devices[i % len(devices)])
    return groups


def ragged_split(elements: int, pieces: int) -> list[int]:
    """Sizes of floor(elements / pieces), the last with the remainder."""
    piece = elements // pieces
    return [piece] * (pieces - 1) + [elements - piece * (pieces - 1)]


def pscpu(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """Gather devices are `cpu:0` of every task, in task order."""
    return _by_group(b, tensors, gather_groups(layout.host_devices("pscpu"), options.shards))


def psgpu(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """Gather devices are the GPUs: gpu 0 of every task, then gpu 1 of every task, and so on."""
    widest = max(len(task) for task in layout.tasks)
    devices = [task[i] for i in range(widest) for task in layout.tasks if i < len(task)]
    return _by_group(b, tensors, gather_groups(devices, options.shards))


def _by_group(b: PlanBuilder, tensors: Tensors, groups: list[list[int]]) -> Results:
    return plan_each(b, tensors, lambda tensor, i: shuffle(b, tensor, groups[i]), len(groups))


def shuffle(b: PlanBuilder, tensor: Sequence[Value], gather: Sequence[int]) -> list[Value]:
    """One tensor, summed in shards on the `gather` devices."""
    sizes = ragged_split(tensor[0].hi - tensor[0].lo, len(gather))
    shards = [b.split(value, sizes) for value in tensor]
    sums = [b.add_on(device, [source[k] for source in shards]) for k, device in enumerate(gather)]
    return [b.concat([b.copy(total, value.device) for total in sums]) for value in tensor]


def needs_task_names(layout: Layout, options: Options) -> None:
    """Upstream groups GPUs by the task in their names and fails in a single process, whose names
    have none.
    """
    if options.faithful and len(layout.tasks) == 1:
        raise StrategyError(
            "upstream fails in a single process (failed to parse device); use 2 tasks or more"
        )


def pscpu_pscpu(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """`#k`: the first k CPUs sum at the second level (as in TensorFlow 1.12 and 1.14).

    tf_cnn_benchmarks checks k and then always uses the first CPU alone; `faithful` does too.
    """
    needs_task_names(layout, options)
    hosts = layout.host_devices("pscpu/pscpu")
    gather_groups(hosts, options.shards)
    second = hosts[: 1 if options.faithful else options.shards]

    def one(tensor: Sequence[Value], _: int) -> list[Value]:
        sums = [
            b.add_on(host, [tensor[rank] for rank in task])
            for task, host in zip(layout.tasks, hosts, strict=True)
        ]
        totals = shuffle(b, sums, second) if len(sums) > 1 else sums
        return [
            b.copy(total, tensor[rank].device)
            for task, total in zip(layout.tasks, totals, strict=True)
            for rank in task
        ]

    return plan_each(b, tensors, one)
