"""tf_cnn_benchmarks' ring (`build_ring_all_reduce`): n x shards zero-padded pieces, reduced and
gathered round.

The ring visits the tasks in order and, inside each, its GPUs in order. With `#k`, piece s of each
segment runs on a ring whose order inside every task is rotated left by s x max(1, G // k), where G
is the GPUs per task.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simreduce.errors import StrategyError
from simreduce.plan import PlanBuilder, SeparateBuilder, Values
from simreduce.planners.algorithms.planner import Options, Results, Tensors
from simreduce.planners.algorithms.together import plan_together
from simreduce.planners.algorithms.walks import paths, walks
from simreduce.planners.layouts import Layout


def ring_orders(tasks: Sequence[Sequence[int]], shards: int) -> list[list[int]]:
    """The ranks in ring order, for every sub-chunk."""
    per_task = len(tasks[0])
    if any(len(task) != per_task for task in tasks):
        raise StrategyError("needs the same number of GPUs in every task")
    if not 1 <= shards <= per_task:
        raise StrategyError(
            f"the number of sub-chunks must be from 1 to the GPUs per task, {per_task} here"
        )
    rotation = max(1, per_task // shards)
    orders = []
    for s in range(shards):
        shift = s * rotation % per_task
        orders.append([rank for task in tasks for rank in (*task[shift:], *task[:shift])])
    return orders


def padded_split(elements: int, pieces: int) -> tuple[int, int]:
    """(elements of each piece, zeros behind the last one) of a tensor in equal pieces."""
    piece = -(-elements // pieces)
    return piece, pieces * piece - elements


def xring(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """Reduce phase: the device of rank r ends with segment r summed. Gather phase: copies go once
    more round.
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
