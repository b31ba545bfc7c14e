"""Modes with parameter servers.

`parameter_server` keeps one copy of each variable: gradients go to it, GPUs read it back.
`distributed_replicated` keeps a master copy on a parameter server and a replica on every GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.plan import Plan
from simreduce.planners.layouts import Layout
from simreduce.training.variable_update.builder import StepBuilder
from simreduce.training.variable_update.flags import Flags
from simreduce.workload import Workload

SMALL = 65_536
"""Elements below which a worker caches a variable on its CPU."""


def parameter_server(workload: Workload, layout: Layout, flags: Flags) -> Plan:
    """Mean over the local GPUs, applied where the variable is.

    With several tasks every worker applies its own mean separately: nothing is averaged across
    workers.
    """
    return (
        _local(workload, layout, flags)
        if len(layout.tasks) == 1
        else _distributed(workload, layout, flags)
    )


def _local(workload: Workload, layout: Layout, flags: Flags) -> Plan:
    """Each variable on the GPU with the fewest elements so far, or all on the CPU."""
    step = StepBuilder(workload, layout)
    (task,) = layout.tasks
    places = task if flags.on_gpu() else layout.host_devices("local_parameter_device=cpu")
    sizes = [g.elements for g in workload.gradients]
    sums, variables = step.reserve(), step.reserve()
    for i, device in enumerate(least_loaded(sizes, places)):
        applied = step.update(step.mean_on(device, task, i, sums[i]), task, device)
        variable = step.variable_after(device, i, variables[i], [applied.op])
        for rank in task:
            step.read(variable, rank)
    return step.finish("parameter_server")


def _distributed(workload: Workload, layout: Layout, flags: Flags) -> Plan:
    """Variables on the parameter servers, least bytes first.

    A worker sums on its CPU; it caches what it reads on its CPU if small, else on its least-loaded
    GPU (or on its CPU), and its GPUs copy from there.
    """
    step = StepBuilder(workload, layout)
    hosts = layout.host_devices("parameter_server")
    servers = least_loaded([g.nbytes for g in workload.gradients], flags.servers(layout))
    sums = [step.reserve() for _ in layout.tasks]
    variables = step.reserve()
    caches = [
        _caches(workload, flags, task, host) for task, host in zip(layout.tasks, hosts, strict=True)
    ]
    for i, server in enumerate(servers):
        applied = [
            step.update(step.mean_on(host, task, i, sums[w][i]), task, server)
            for w, (task, host) in enumerate(zip(layout.tasks, hosts, strict=True))
        ]
        variable = step.variable_after(server, i, variables[i], [value.op for value in applied])
        for task, cache in zip(layout.tasks, caches, strict=True):
            cached = step.b.copy(variable, cache[i])
            for rank in task:
                step.read(cached, rank)
    return step.finish("parameter_server")


def _caches(workload: Workload, flags: Flags, task: tuple[int, ...], host: int) -> list[int]:
    """Where a worker caches each variable."""
    elements = [g.elements for g in workload.gradients]
    if not flags.on_gpu():
        return [host] * len(elements)
    large = iter(least_loaded([n for n in elements if n >= SMALL], task))
    return [host if n < SMALL else next(large) for n in elements]


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
        variable = step.variable_after(server, i, variables[i], [value.op for value in applied])
        for task, host in zip(layout.tasks, hosts, strict=True):
            read = step.b.copy(variable, host)
            for rank in task:
                step.read(read, rank)
    return step.finish("distributed_replicated")


def least_loaded(sizes: Sequence[int], devices: Sequence[int]) -> list[int]:
    """The device of each variable: the least loaded so far, the first one in a tie."""
    load = dict.fromkeys(devices, 0)
    placed = []
    for size in sizes:
        device = min(load, key=lambda d: load[d])
        load[device] += size
        placed.append(device)
    return placed
