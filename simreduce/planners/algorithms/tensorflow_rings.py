"""The rings of TensorFlow's runtime and of tf_cnn_benchmarks, planned by array arithmetic.

`collective` is the runtime's ring (`ring_alg.cc`, `ring_reducer.cc`), behind CollectiveAllReduce.

The tensor is cut in (ranks x subdivisions) fields of equal, 64-byte aligned size; the last ones are
short or empty, and empty ones are never sent. Each subdivision runs a ring of its own; odd ones may
run the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simreduce import dtypes
from simreduce.computing.arrays import Ints
from simreduce.errors import OptionNotTaken, StrategyError
from simreduce.plan import PlanBuilder, SeparateBuilder, Values
from simreduce.planners.algorithms.planner import Options, Results, Tensors, plan_together
from simreduce.planners.layouts import Layout


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
    found: Ints = np.take_along_axis(order, place, axis=1)
    return found


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

    def many(b: PlanBuilder, tensors: Values) -> Values:
        return runtime_ring(b, tensors, rings)

    def full_fields(tensor: Values) -> int:
        width, fields = dtypes.SIZES[tensor.dtype], layout.n * len(rings)
        return int(np.count_nonzero(field_sizes(int(tensor.elements[0]), fields, width)))

    return plan_together(b, tensors, many, shape=full_fields)


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

    def many(b: PlanBuilder, tensors: Values) -> Values:
        return ring_all_reduce(b, tensors, orders)

    def is_padded(tensor: Values) -> bool:
        return padded_split(int(tensor.elements[0]), n * len(orders))[1] > 0

    return plan_together(b, tensors, many, shape=is_padded)


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
