"""NCCL inside every task, another algorithm across the tasks: nccl/xring, nccl/rechd, nccl/pscpu.

Every task all-reduces over its GPUs; its first GPU takes part in the upper level and broadcasts
what comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from simreduce.errors import StrategyError
from simreduce.plan import PlanBuilder, Value, Values, ValueTable
from simreduce.planners.algorithms.alike import plan_chain
from simreduce.planners.algorithms.nccl import run
from simreduce.planners.algorithms.planner import Options, Results, Tensors
from simreduce.planners.algorithms.recursive_halving_doubling import halving_doubling
from simreduce.planners.algorithms.shuffle import gather_groups, shuffle
from simreduce.planners.algorithms.xring import ring_all_reduce
from simreduce.planners.layouts import OPEN, Layout

Upper = Callable[[PlanBuilder, Sequence[Value]], list[Value]]


def nccl_xring(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """A ring over the tasks' first GPUs; one task needs none."""
    if len(layout.tasks) > 1 and options.shards != 1:
        raise StrategyError("the ring across has one GPU per task, so it takes 1 sub-chunk only")

    def upper(b: PlanBuilder, firsts: Sequence[Value]) -> list[Value]:
        if len(firsts) == 1:
            return list(firsts)
        made = ring_all_reduce(b, Values.of(firsts)[None, :], [range(len(firsts))])
        return list(made[0, :])

    return _hybrid(b, layout, tensors, options, upper)


def nccl_rechd(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """Recursive halving-doubling over the tasks' first GPUs. `#k` is ignored."""

    def upper(b: PlanBuilder, firsts: Sequence[Value]) -> list[Value]:
        return halving_doubling(b, firsts)

    return _hybrid(b, layout, tensors, options, upper)


def nccl_pscpu(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """A shuffle over the CPUs of all tasks, even of one. `#k` is only checked."""
    hosts = layout.host_devices("nccl/pscpu")
    gather_groups(hosts, options.shards)
    return _hybrid(b, layout, tensors, options, lambda b, firsts: shuffle(b, firsts, hosts))


def needs_task_names(layout: Layout, options: Options) -> None:
    """Upstream groups GPUs by the task in their names and fails in a single process, whose names
    have none.
    """
    if options.faithful and len(layout.tasks) == 1:
        raise StrategyError(
            "upstream fails in a single process (failed to parse device); use 2 tasks or more"
        )


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
        summed = run(
            b, layout, "all_reduce", tensor[np.array(task)], before[begin : begin + len(task)]
        )
        first, *others = summed
        sums.append(summed)
        firsts.append(b.hold(first, [value.op for value in others]))
    totals = upper(b, firsts)
    results: list[Value] = []
    for total, task in zip(totals, layout.tasks, strict=True):
        place = task.index(total.device)
        there = Values.of([total] * len(task)).on(np.array(task))
        results += run(b, layout, "broadcast", there, (), OPEN, place)
    return Values.concatenate([Values.of(results), *sums])
