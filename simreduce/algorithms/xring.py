"""tf_cnn_benchmarks' ring (`build_ring_all_reduce`): n x shards zero-padded pieces, reduced and
gathered round.

The ring visits the tasks in order and, inside each, its GPUs in order. With `#k`, piece s of each
segment runs on a ring whose order inside every task is rotated left by s x max(1, G // k), where G
is the GPUs per task.
"""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.algorithms.alike import plan_each
from simreduce.algorithms.planner import Options, Results, Tensors
from simreduce.errors import StrategyError
from simreduce.layouts import Layout
from simreduce.plan import PlanBuilder, Value


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
    return plan_each(b, tensors, lambda tensor, _: ring_all_reduce(b, tensor, orders))


def ring_all_reduce(
    b: PlanBuilder, values: Sequence[Value], orders: Sequence[Sequence[int]]
) -> list[Value]:
    """The sum of `values`, on the device of each; `orders` are devices in ring order, one ring per
    sub-chunk.
    """
    n, shards = len(values), len(orders)
    piece, pad = padded_split(values[0].hi - values[0].lo, n * shards)
    parts = {value.device: b.split(_pad(b, value, pad), [piece] * (n * shards)) for value in values}
    done: dict[int, list[Value]] = {value.device: [] for value in values}
    for segment in range(n):
        for s, order in enumerate(orders):
            index = segment * shards + s
            # Segment g starts at rank g+1, is summed on its way to rank g, then goes round once
            # more as it is.
            path = [order[(segment + 1 + hop) % n] for hop in range(2 * n - 1)]
            start, reduce, gather = path[0], path[1:n], path[n:]
            own = {device: pieces[index] for device, pieces in parts.items()}
            total = b.walk(parts[start][index], reduce, own=own.__getitem__)[-1]
            for value in (total, *b.walk(total, gather)):
                done[value.device].append(value)
    return [_strip(b, done[value.device], value) for value in values]


def _pad(b: PlanBuilder, value: Value, pad: int) -> Value:
    if not pad:
        return value
    return b.concat([value, b.zeros(value.device, value.hi, value.hi + pad, value.dtype)])


def _strip(b: PlanBuilder, pieces: list[Value], like: Value) -> Value:
    whole = b.concat(pieces)
    return b.slice(whole, like.lo, like.hi) if whole.hi > like.hi else whole
