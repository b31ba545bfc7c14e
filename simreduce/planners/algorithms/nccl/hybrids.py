"""NCCL inside every task, another algorithm across the tasks: nccl/xring, nccl/rechd, nccl/pscpu.

Every task all-reduces over its GPUs; its first GPU takes part in the upper level and broadcasts
what comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from simreduce.errors import StrategyError
from simreduce.plan import PlanBuilder, Value, Values, ValueTable
from simreduce.planners.algorithms.nccl import run
from simreduce.planners.algorithms.planner import Options, Results, Tensors, plan_chain
from simreduce.planners.algorithms.tensorflow import (
    gather_groups,
    needs_task_names,
    ring_all_reduce,
    shuffle,
)
from simreduce.planners.layouts import OPEN, Layout


def halving_doubling(b: PlanBuilder, values: Sequence[Value]) -> list[Value]:
    """The sum of `values` on the device of each. Their number must be a power of two that divides
    the elements.

    tf_cnn_benchmarks' `build_recursive_hd_all_reduce`: halving with the nearest partner first, then
    doubling. Upstream leaves the halving splits without a device; they are placed on the owner of
    what they split, as intended.
    """
    n, size = len(values), values[0].hi - values[0].lo
    if n & (n - 1):
        raise StrategyError(f"needs a power of two of tasks, not {n}")
    if size % n:
        raise StrategyError(
            f"every tensor must be divisible by the {n} tasks; one has {size} elements"
        )
    held = list(values)
    spans = [1 << hop for hop in range(n.bit_length() - 1)]
    for span in spans:
        for left in (d for d in range(n) if d % (2 * span) < span):
            right = left + span
            half = (held[left].hi - held[left].lo) // 2
            (left_first, left_second), (right_first, right_second) = (
                b.split(held[d], [half, half]) for d in (left, right)
            )
            held[left] = b.add([left_first, b.copy(right_first, left_first.device)])
            held[right] = b.add([b.copy(left_second, right_second.device), right_second])
    for span in reversed(spans):
        for left in (d for d in range(n) if d % (2 * span) < span):
            pair = held[left], held[left + span]
            for d in (left, left + span):
                held[d] = b.concat([b.copy(half_value, values[d].device) for half_value in pair])
    return held


Upper = Callable[[PlanBuilder, Sequence[Value]], list[Value]]


def nccl_xring(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """A ring over the tasks' first GPUs; one task needs none."""
    if len(layout.tasks) > 1 and options.shards != 1:
        raise StrategyError("the ring across has one GPU per task, so it takes 1 sub-chunk only")

    def upper(b: PlanBuilder, firsts: Sequence[Value]) -> list[Value]:
        if len(firsts) == 1:
            return list(firsts)
        return list(ring_all_reduce(b, Values.of(firsts)[None, :], [range(len(firsts))])[0, :])

    return _hybrid(b, layout, tensors, options, upper)


def nccl_rechd(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """Recursive halving-doubling over the tasks' first GPUs. `#k` is ignored."""
    return _hybrid(b, layout, tensors, options, halving_doubling)


def nccl_pscpu(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """A shuffle over the CPUs of all tasks, even of one. `#k` is only checked."""
    hosts = layout.host_devices("nccl/pscpu")
    gather_groups(hosts, options.shards)
    return _hybrid(b, layout, tensors, options, lambda b, firsts: shuffle(b, firsts, hosts))


def _hybrid(
    b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options, upper: Upper
) -> Results:
    needs_task_names(layout, options)

    def plan_next(tensor: Sequence[Value], before: Sequence[Value]) -> Values:
        return _one(b, layout, Values.of(tensor), before[layout.n :], upper)

    return ValueTable.of(plan_chain(b, tensors, plan_next)).columns(0, layout.n)


def _one(
    b: PlanBuilder, layout: Layout, tensor: Values, before: Sequence[Value], upper: Upper
) -> Values:
    """By rank, the values that hold the result; then the results of the tasks' all-reduces.

    These all-reduces come after the all-reduces of the tensor before.
    """
    firsts: list[Value] = []
    sums: list[Values] = []
    for task in layout.tasks:
        begin = sum(map(len, sums))
        sums.append(
            run(b, layout, "all_reduce", tensor[np.array(task)], before[begin : begin + len(task)])
        )
        first, *others = sums[-1]
        firsts.append(b.hold(first, [value.op for value in others]))
    results: list[Value] = []
    for total, task in zip(upper(b, firsts), layout.tasks, strict=True):
        place = task.index(total.device)
        there = Values.of([total] * len(task)).on(np.array(task))
        results += run(b, layout, "broadcast", there, (), OPEN, place)
    return Values.concatenate([Values.of(results), *sums])
