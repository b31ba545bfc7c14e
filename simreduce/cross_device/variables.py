"""Initial variables, and the labels of results."""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.algorithms.tree_broadcast import tree_broadcast
from simreduce.layouts import Layout
from simreduce.plan import Contract, Plan, PlanBuilder
from simreduce.workload import Workload


def broadcast_variables(workload: Workload, layout: Layout, source: int = 0) -> Plan:
    """Every variable from rank `source` to all ranks by the runtime's tree, as
    collective_all_reduce starts.
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
    """The device that MultiWorkerAllReduce says each result is on, for values on `devices`: that
    very device.

    TensorFlow 1.12 (`faithful`) sorts the names as text, so that gpu:10 comes before gpu:2. The
    values are right, as they are all equal; their labels are not.
    """
    return sorted(devices) if faithful else list(devices)
