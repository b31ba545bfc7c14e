"""tf_cnn_benchmarks' `pscpu/pscpu`: every task sums on its own CPU, then the CPUs shuffle among
themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.plan import PlanBuilder, Value
from simreduce.planners.algorithms.alike import plan_each
from simreduce.planners.algorithms.nccl.hybrids import needs_task_names
from simreduce.planners.algorithms.planner import Options, Results, Tensors
from simreduce.planners.algorithms.shuffle import gather_groups, shuffle
from simreduce.planners.layouts import Layout


def pscpu_pscpu(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """`#k`: the first k CPUs sum at the second level (as in TensorFlow 1.12 and 1.14).

    tf_cnn_benchmarks checks k and then always uses the first CPU alone; `faithful` does too.
    """
    needs_task_names(layout, options)
    hosts = layout.host_devices("pscpu/pscpu")
    gather_groups(hosts, options.shards)
    second = hosts[: 1 if options.faithful else options.shards]
    return plan_each(b, tensors, lambda tensor, _: _one(b, layout, tensor, hosts, second))


def _one(
    b: PlanBuilder,
    layout: Layout,
    tensor: Sequence[Value],
    hosts: Sequence[int],
    second: Sequence[int],
) -> list[Value]:
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
