"""Initial variables, and the labels of results."""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.plan import Contract, Plan, PlanBuilder
from simreduce.planners.algorithms.tree_broadcast import tree_broadcast
from simreduce.planners.layouts import Layout
from simreduce.workload import Workload


def broadcast_variables(workload: Workload, layout: Layout, source: int = 0) -> Plan:
    """Broadcast every variable from rank `source` by the runtime's tree.

    collective_all_reduce does so at its start.
    """
    b = PlanBuilder(layout.devices)
    intervals, lo = [], 0
    for variable in workload.gradients:
        interval = lo, lo + variable.elements, variable.dtype
        held = tree_broadcast(b, b.input(source, *interval), layout.tasks, source)
        for rank in range(layout.n):
            b.output(held[rank])
        intervals.append(interval)
        lo = interval[1]
    return b.finish(Contract.broadcast(range(layout.n), intervals, source))


def result_labels(devices: Sequence[str], *, faithful: bool = False) -> list[str]:
    """The devices that MultiWorkerAllReduce names for its results, for values on `devices`.

    TensorFlow 1.12 (`faithful`) sorts the names as text, gpu:10 before gpu:2: labels are wrong, and
    values right, as they are all equal.
    """
    return sorted(devices) if faithful else list(devices)
