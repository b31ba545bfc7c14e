"""`distributed_replicated`: a master copy on a parameter server, a replica on every GPU."""

from __future__ import annotations

from simreduce.layouts import Layout
from simreduce.plan import Plan
from simreduce.variable_update.builder import StepBuilder
from simreduce.variable_update.flags import Flags
from simreduce.variable_update.placement import least_loaded
from simreduce.workload import Workload


def distributed_replicated(workload: Workload, layout: Layout, flags: Flags) -> Plan:
    """Tensor i is averaged on local GPU i mod G (or on the server itself) and applied on its
    server; after a barrier over the workers, each reads the variable once to its CPU and copies it
    to its GPUs.
    """
    step = StepBuilder(workload, layout)
    hosts = layout.host_devices("distributed_replicated")
    servers = least_loaded([g.nbytes for g in workload.gradients], flags.servers(layout))
    sums = [step.reserve() for _ in layout.tasks]
    variables = step.reserve()
    for i, server in enumerate(servers):
        applied = []
        for w, task in enumerate(layout.tasks):
            place = task[i % len(task)] if flags.on_gpu() else server
            applied.append(step.update(step.mean_on(place, task, i, sums[w][i]), task, server))
        variable = step.updated(server, i, variables[i], [value.op for value in applied])
        for task, host in zip(layout.tasks, hosts, strict=True):
            read = step.b.copy(variable, host)
            for rank in task:
                step.read(read, rank)
    return step.finish("distributed_replicated")
