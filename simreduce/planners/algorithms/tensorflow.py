"""The reductions of TensorFlow and of tf_cnn_benchmarks: copies and rings.

Copies are stars, or two groups of GPUs joined by a pair of them. tf_cnn_benchmarks' plain copy
(`CopyToDeviceAlgorithm`) sums every tensor on the CPU (`local_parameter_device=cpu`) or tensor i on
GPU i mod n (`gpu`). TensorFlow's `ReductionToOneDevice` sums all on the first device.

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

Rings are planned by array arithmetic. `collective` is the runtime's ring (`ring_alg.cc`,
`ring_reducer.cc`), behind CollectiveAllReduce.

The tensor is cut in (ranks x subdivisions) fields of equal, 64-byte aligned size; the last ones are
short or empty, and empty ones are never sent. Each subdivision runs a ring of its own; odd ones may
run the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from simreduce import dtypes
from simreduce.computing.arrays import Ints
from simreduce.errors import OptionNotTaken, StrategyError
from simreduce.plan import PlanBuilder, SeparateBuilder, Value, Values
from simreduce.planners.algorithms.planner import (
    Options,
    Results,
    Tensors,
    plan_each,
    plan_together,
)
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


def walks(b: PlanBuilder, own: Values, path: Ints, *, own_first: bool = False) -> Values:
    """The sums of all pieces on all ranks; `own` is by tensor, rank and piece.

    Piece k goes along the ranks path[k]. Each adds its own to what arrives (or with `own_first`
    what arrives to its own), and the sum goes on to the others. One piece comes after another in
    program order.
    """
    n, piece = own.shape[1], np.arange(own.shape[2])
    separate = SeparateBuilder(b, len(piece))
    own = separate.lift(own, piece)
    held = own[:, path[:, 0], piece]
    op = own.op.copy()
    for hop in range(1, path.shape[1]):
        here = own[:, path[:, hop], piece]
        held = separate.copies(held, here.device)
        if hop < n:
            held = separate.adds([here, held] if own_first else [held, here])
        if hop >= n - 1:
            op[:, path[:, hop], piece] = held.op
    separate.settle()
    return separate.settled(own.with_ops(op))


def paths(order: Ints, start: Ints) -> Ints:
    """The ranks that each piece passes, by piece.

    Piece k passes the ranks of order[k] from the place start[k] on, to the rank where the sum is,
    and then goes round once more, to the last rank without it.
    """
    n = order.shape[1]
    place = (start[:, None] + np.arange(2 * n - 1)) % n
    return np.take_along_axis(order, place, axis=1)


ALIGNMENT = 64
"""Bytes; EIGEN_MAX_ALIGN_BYTES of the released binaries."""


def collective(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """`#1`: one ring. `#2`: a second one, which starts half-way and runs the other way round."""
    if len(layout.ranks) < 2:
        raise StrategyError("needs a group of 2 GPUs or more")
    local = len(layout.tasks[0])
    if any(len(task) != local for task in layout.tasks):
        raise StrategyError("needs the same number of GPUs in every task")
    if options.shards not in (1, 2):
        raise OptionNotTaken("the number of shards is 1 or 2")
    offsets = [0] if options.shards == 1 or local == 1 else [0, -(local // 2)]
    rings = [subdivision_order(rank_order(layout), offset) for offset in offsets]

    def full_fields(tensor: Values) -> int:
        width, fields = dtypes.SIZES[tensor.dtype], layout.n * len(rings)
        return int(np.count_nonzero(field_sizes(int(tensor.elements[0]), fields, width)))

    return plan_together(b, tensors, partial(runtime_ring, rings=rings), shape=full_fields)


def subdivision_order(tasks: Sequence[Sequence[int]], offset: int) -> list[int]:
    """The ring of one subdivision: every task rotated by |offset|, and reversed first if it is
    negative.
    """
    return _rotated([task if offset >= 0 else task[::-1] for task in tasks], abs(offset))


def _rotated(tasks: Sequence[Sequence[int]], by: int) -> list[int]:
    """The ranks of all tasks, each begun so many places further on."""
    return [task[(by + i) % len(task)] for task in tasks for i in range(len(task))]


def rank_order(layout: Layout) -> list[list[int]]:
    """The ranks of every task as the runtime orders them: as configured (`gpu_indices`), else
    greedily along links from the first, lowest rank first, with a jump to the lowest one left where
    there is no link.
    """
    if layout.order:
        return [list(task) for task in layout.ring_tasks]
    tasks = []
    for task in layout.tasks:
        left = sorted(task)
        order: list[int] = []
        while left:
            linked = [r for r in left if order and layout.links[order[-1]][r]]
            order.append((linked or left)[0])
            left.remove(order[-1])
        tasks.append(order)
    return tasks


def field_sizes(elements: int, fields: int, element_bytes: int) -> list[int]:
    """Elements of each field. Sizes are rounded up to the next multiple of 64 bytes, by a full 64
    if they are one.
    """
    base = -(-elements // fields) * element_bytes
    chunk = ALIGNMENT if base < ALIGNMENT else base + ALIGNMENT - base % ALIGNMENT
    step = chunk // element_bytes
    return [max(0, min(step, elements - f * step)) for f in range(fields)]


def runtime_ring(b: PlanBuilder, values: Values, rings: Sequence[Sequence[int]]) -> Values:
    """The sum by tensor and rank, of tensors with as many fields that are not empty. Field f is
    segment f // K of subdivision f % K.

    Pass 0: segment c starts at ring rank c and every next rank adds what arrives to its own; pass
    1: the sum goes on from rank c-1 to the others.
    """
    fields, width = values.shape[1] * len(rings), dtypes.SIZES[values.dtype]
    sizes = [field_sizes(size, fields, width) for size in values.elements[:, 0].tolist()]
    edges = np.cumsum([[0, *each] for each in sizes], axis=1)
    some = np.arange(max(int(np.count_nonzero(sizes[0])), 1))
    lo, hi = (values.lo[:, :1, None] + edges[:, None, at] for at in (some, some + 1))
    path = paths(np.array(rings)[some % len(rings)], some // len(rings))
    return b.joins(walks(b, values[..., None].view(lo, hi), path, own_first=True))


def ring_orders(tasks: Sequence[Sequence[int]], shards: int) -> list[list[int]]:
    """The ranks in ring order, for every sub-chunk."""
    per_task = len(tasks[0])
    if any(len(task) != per_task for task in tasks):
        raise StrategyError("needs the same number of GPUs in every task")
    if not 1 <= shards <= per_task:
        raise StrategyError(
            f"the number of sub-chunks must be from 1 to the GPUs per task, {per_task} here"
        )
    return [_rotated(tasks, s * max(1, per_task // shards)) for s in range(shards)]


def padded_split(elements: int, pieces: int) -> tuple[int, int]:
    """(elements of each piece, zeros behind the last one) of a tensor in equal pieces."""
    piece = -(-elements // pieces)
    return piece, pieces * piece - elements


def xring(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """Reduce phase: the device of rank r ends with segment r summed. Gather phase: copies go once
    more round.

    tf_cnn_benchmarks' ring (`build_ring_all_reduce`): n x shards zero-padded pieces, reduced and
    gathered round. It visits the tasks in order and, inside each, its GPUs in order. With `#k`,
    piece s of each segment runs on a ring whose order inside every task is rotated left by s x
    max(1, G // k), where G is the GPUs per task.
    """
    n = len(layout.ranks)
    if n < 2:
        raise StrategyError("needs 2 GPUs or more")
    orders = ring_orders(layout.ring_tasks, options.shards)

    def is_padded(tensor: Values) -> bool:
        return padded_split(int(tensor.elements[0]), n * len(orders))[1] > 0

    return plan_together(b, tensors, partial(ring_all_reduce, orders=orders), shape=is_padded)


def ring_all_reduce(b: PlanBuilder, values: Values, orders: Sequence[Sequence[int]]) -> Values:
    """The sum by tensor and rank, of tensors that are all padded or none; `orders` are ranks in
    ring order, one ring per sub-chunk.
    """
    n, shards = values.shape[1], len(orders)
    piece = np.arange(n * shards)
    own = _split(b, values, len(piece))
    # Segment g starts at rank g+1, is summed on its way to rank g, then goes round once more.
    path = paths(np.array(orders)[piece % shards], piece // shards + 1)
    return _strip(b, walks(b, own, path), values)


def _split(b: PlanBuilder, values: Values, count: int) -> Values:
    """By tensor, rank and piece; rank by rank in program order."""
    separate = SeparateBuilder(b, values.shape[1])
    whole = separate.lift(values, np.arange(values.shape[1]))
    size = -(-values.elements // count)
    end = values.lo + size * count
    if (end > values.hi).all():
        pads = separate.paddings(whole.device, values.hi, end, values.dtype)
        whole = separate.joins(Values.stack([whole, pads], axis=2), in_place=False)
    lo = values.lo[..., None] + size[..., None] * np.arange(count)
    pieces = separate.slices(whole[..., None].view(lo, lo + size[..., None]))
    separate.settle()
    return separate.settled(pieces)


def _strip(b: PlanBuilder, pieces: Values, like: Values) -> Values:
    """Join the pieces without the padding, rank by rank in program order."""
    separate = SeparateBuilder(b, like.shape[1])
    whole = separate.joins(separate.lift(pieces, np.arange(like.shape[1])[:, None]), in_place=False)
    if (whole.hi > like.hi).all():
        whole = separate.slices(whole.view(like.lo, like.hi))
    separate.settle()
    return separate.settled(whole)
