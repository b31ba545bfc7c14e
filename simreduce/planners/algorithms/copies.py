"""TensorFlow's reductions by copies: stars, and two groups of GPUs joined by a pair of them.

tf_cnn_benchmarks' plain copy (`CopyToDeviceAlgorithm`) sums every tensor on the CPU
(`local_parameter_device=cpu`) or tensor i on GPU i mod n (`gpu`). TensorFlow's
`ReductionToOneDevice` sums all on the first device.

Each tensor has a main device and a secondary one in the other group. Each sums its own group, the
main adds the two sums, and the total goes back the way it came: 2(n-1) transfers. The pairs are
made for a machine: the DGX-1 (TensorFlow 1.14 cross_device_utils.py, for any number of devices) or
GCP's machine with 8 V100 (tf_cnn_benchmarks batch_allreduce.py, for 8).

tf_cnn_benchmarks' shuffles: `build_shuffle_all_reduce` over CPUs or GPUs, and `pscpu/pscpu`.

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


GCP_V100 = ((0, 5), (2, 7), (5, 0), (7, 2))
"""(main, secondary) of tensors 0 to 3, then again: 0-5 and 2-7 are the only links between the
quads.
"""


def dgx1_pair(index: int, n: int, *, faithful: bool = False) -> tuple[int, int]:
    """(main, secondary) of tensor `index` among n devices: opposite places of the groups [0, n//2)
    and [n//2, n).

    Upstream's secondary is n//2 further round, which is the same for even n; for odd n it may be in
    the main's own group, or be the device that no group has.
    """
    main, half = index % n, n // 2
    if faithful or main < half:
        return main, (main + half) % n
    return main, (main - half) % half


def hierarchical_copy(
    b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options
) -> Results:
    """Tensor i has main i mod n. `faithful` leaves the last of an odd number of devices out of the
    sum.
    """
    n, faithful = len(layout.ranks), options.faithful
    if n < 2:
        raise StrategyError("needs 2 devices or more")
    pairs = [dgx1_pair(i, n, faithful=faithful) for i in range(n)]
    end = n // 2 * 2 if faithful else n
    return plan_each(b, tensors, lambda tensor, i: _one(b, tensor, *pairs[i], end), n)


def hierarchical_copy_gcp_v100(
    b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options
) -> Results:
    """Tensor i has the pair i mod 4 of `GCP_V100`."""
    n = len(layout.ranks)
    if n != 8:
        raise StrategyError(f"needs exactly 8 devices, not {n}")
    pairs = GCP_V100
    return plan_each(b, tensors, lambda tensor, i: _one(b, tensor, *pairs[i], n), len(pairs))


def _one(
    b: PlanBuilder, tensor: Sequence[Value], main: int, secondary: int, end: int
) -> list[Value]:
    """Sum the ranks [0, end) in two groups, and hand the total out to all ranks."""
    half = len(tensor) // 2
    near, far = tensor[:half], tensor[half:end]
    if main >= half:
        near, far = far, near
    near_sum = b.add_on(tensor[main].device, near)
    far_sum = b.add_on(tensor[secondary].device, far)
    total = b.add_on(tensor[main].device, [near_sum, far_sum])
    mirror = b.copy(total, tensor[secondary].device)
    if (main < half) == (secondary < half):
        # What is handed out is an identity, so that the secondary gets it once more.
        total = b.hold(total, ())
    return [
        b.copy(total if (rank < half) == (main < half) else mirror, value.device)
        for rank, value in enumerate(tensor)
    ]


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
