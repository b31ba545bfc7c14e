"""Plans of tf_cnn_benchmarks' `--variable_update` modes for one step: gradients in, variables out.

`training` adds timing, staging and relaxed consistency. A new mode is a file and a line: in
`STRATEGIES` if it all-reduces the gradients, else in `PLANNERS`.

`parameter_server` keeps one copy of each variable: gradients go to it, GPUs read it back.
`distributed_replicated` keeps a master copy on a parameter server and a replica on every GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from simreduce.errors import StrategyError, did_you_mean
from simreduce.plan import Contract, Plan, PlanBuilder, Promise, Value
from simreduce.planners.layouts import Layout
from simreduce.planners.strategy import Strategy, parse_strategy
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.workload import Workload


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags of tf_cnn_benchmarks that decide a variable-update mode.

    `ps_tasks` are the tasks whose CPUs are parameter servers (tf_cnn_benchmarks has jobs of their
    own, often on the same hosts); empty for all. `packing` is what follows the spec in a strategy,
    such as `packs=8`.
    """

    local_parameter_device: str = "gpu"
    all_reduce_spec: str = ""
    hierarchical_copy: bool = False
    network_topology: str = "dgx1"
    packing: str = ""
    ps_tasks: Sequence[int] = field(default=())
    faithful: bool = False

    def on_gpu(self) -> bool:
        """Whether variables are kept on GPUs."""
        if self.local_parameter_device not in ("cpu", "gpu"):
            raise StrategyError(f"local_parameter_device={self.local_parameter_device}: cpu or gpu")
        return self.local_parameter_device == "gpu"

    def servers(self, layout: Layout) -> list[int]:
        """The devices of the parameter servers."""
        hosts = layout.host_devices("parameter servers")
        tasks = self.ps_tasks or range(len(hosts))
        missing = [t for t in tasks if not 0 <= t < len(hosts)]
        if missing:
            raise StrategyError(f"ps_tasks {missing}: the tasks are 0 to {len(hosts) - 1}")
        return [hosts[t] for t in tasks]

    def place(self, workload: Workload, layout: Layout) -> list[int]:
        """The parameter server of each variable: the one with the least bytes so far."""
        return least_loaded([g.nbytes for g in workload.gradients], self.servers(layout))


def replicated(layout: Layout, flags: Flags) -> Strategy:
    """Return the strategy of one machine.

    It uses the spec if there is one (a single range), else hierarchical copy, else plain copies.
    """
    if len(layout.tasks) > 1:
        raise StrategyError(
            "replicated works on one machine;"
            " distributed_replicated and distributed_all_reduce on several"
        )
    names = {"dgx1": "hierarchical_copy", "gcp_v100": "hierarchical_copy_gcp_v100"}
    spec = flags.all_reduce_spec
    if not spec and flags.hierarchical_copy:
        if flags.network_topology not in names:
            raise StrategyError(
                f"network_topology={flags.network_topology}: one of {', '.join(names)}"
            )
        spec = names[flags.network_topology]
    strategy = _strategy(flags, spec or ("copy_to_gpus" if flags.on_gpu() else "copy_to_cpu"))
    if len(strategy.ranges) > 1:
        raise StrategyError(f"replicated takes a spec of one range, not {spec!r}")
    return strategy


def distributed_all_reduce(layout: Layout, flags: Flags) -> Strategy:
    """One graph over all workers; any number of ranges, but not plain nccl on several workers."""
    if not flags.all_reduce_spec:
        raise StrategyError("distributed_all_reduce needs an all_reduce_spec")
    if len(layout.tasks) > 1 and flags.all_reduce_spec == "nccl":
        raise StrategyError(
            "nccl alone works on one machine; nccl/xring, nccl/rechd and nccl/pscpu on several"
        )
    return _strategy(flags, flags.all_reduce_spec)


def collective_all_reduce(layout: Layout, flags: Flags) -> Strategy:  # noqa: ARG001 - modes share a signature
    """The runtime's collectives; one range, no limit."""
    strategy = _strategy(flags, flags.all_reduce_spec or "collective")
    if [r.algorithm for r in strategy.ranges] != ["collective"]:
        raise StrategyError(
            "collective_all_reduce takes the spec collective or collective#2,"
            f" not {strategy.spec!r}"
        )
    return strategy


def horovod(layout: Layout, flags: Flags) -> Strategy:  # noqa: ARG001 - modes share a signature
    """One process per GPU; Horovod reduces every gradient, or fused buffer, over all."""
    if flags.all_reduce_spec:
        raise StrategyError("horovod takes no all_reduce_spec")
    return _strategy(flags, "nccl")


def _strategy(flags: Flags, spec: str) -> Strategy:
    return parse_strategy(f"{spec}+{flags.packing}" if flags.packing else spec)


SMALL = 65_536
"""Elements below which a worker caches a variable on its CPU."""


def parameter_server(workload: Workload, layout: Layout, flags: Flags) -> Plan:
    """Mean over the local GPUs, applied where the variable is.

    On one machine each variable is on the GPU with the fewest elements so far, or all on the CPU.

    With several tasks variables are on the parameter servers, least bytes first, and every worker
    applies its own mean separately: nothing is averaged across workers. A worker sums on its CPU;
    it caches what it reads on its CPU if small, else on its least-loaded GPU (or on its CPU), and
    its GPUs copy from there.
    """
    mode, elements = "parameter_server", [g.elements for g in workload.gradients]
    if len(layout.tasks) == 1:
        (task,) = layout.tasks
        places = task if flags.on_gpu() else layout.host_devices("local_parameter_device=cpu")
        homes = least_loaded(elements, places)
        return _on_servers(mode, workload, layout, homes, [homes], [homes])
    hosts = layout.host_devices(mode)
    means = [[host] * len(elements) for host in hosts]
    caches = [_caches(elements, flags, *pair) for pair in zip(layout.tasks, hosts, strict=True)]
    return _on_servers(mode, workload, layout, flags.place(workload, layout), means, caches)


def _caches(elements: Sequence[int], flags: Flags, task: tuple[int, ...], host: int) -> list[int]:
    """Where a worker caches each variable."""
    if not flags.on_gpu():
        return [host] * len(elements)
    large = iter(least_loaded([n for n in elements if n >= SMALL], task))
    return [host if n < SMALL else next(large) for n in elements]


def distributed_replicated(workload: Workload, layout: Layout, flags: Flags) -> Plan:
    """Tensor i is averaged on local GPU i mod G (or on the server itself) and applied on its
    server; after a barrier over the workers, each reads the variable once to its CPU and copies it
    to its GPUs.
    """
    mode = "distributed_replicated"
    hosts, servers = layout.host_devices(mode), flags.place(workload, layout)
    means = [
        [task[i % len(task)] if flags.on_gpu() else server for i, server in enumerate(servers)]
        for task in layout.tasks
    ]
    reads = [[host] * len(servers) for host in hosts]
    return _on_servers(mode, workload, layout, servers, means, reads)


def _on_servers(
    mode: str, workload: Workload, layout: Layout, servers: Sequence[int],
    means: Sequence[Sequence[int]], reads: Sequence[Sequence[int]],
) -> Plan:  # fmt: skip
    """The step with variable i on `servers[i]`.

    Worker w takes the mean of its gradients i on `means[w][i]`, and copies the variable to
    `reads[w][i]` and from there to its GPUs. Every use of the gradient list has its own addresses:
    a variable's value is not its gradient, and two workers' updates of one variable are two
    results.
    """
    b, promises, tasks = PlanBuilder(layout.devices), list[Promise](), layout.tasks
    updated = len(layout.devices)  # the contributor that represents a variable's updated value
    starts = [*accumulate((gradient.elements for gradient in workload.gradients), initial=0)]

    def extent(use: int, i: int) -> tuple[int, int, int]:
        begin = use * starts[-1]
        return begin + starts[i], begin + starts[i + 1], workload.gradients[i].dtype

    def give(value: Value, device: int, members: Iterable[int], divisor: int = 1) -> int:
        """Bring a result to a device; the op that does."""
        there = b.output(b.copy(value, device))
        promises.append(
            Promise(device, there.lo, there.hi, there.dtype, frozenset(members), divisor)
        )
        return there.op

    for i, server in enumerate(servers):
        applied = []
        for use, (task, mean) in enumerate(zip(tasks, means, strict=True)):
            total = b.add([b.copy(b.input(rank, *extent(use, i)), mean[i]) for rank in task])
            applied.append(give(b.scale(total, len(task)), server, task, len(task)))
        variable = b.input(server, *extent(len(tasks), i), contributor=updated, after=applied)
        for task, read in zip(tasks, reads, strict=True):
            here = b.copy(variable, read[i])
            for rank in task:
                give(here, rank, [updated])
    return b.finish(Contract.of(mode, promises))


def least_loaded(sizes: Sequence[int], devices: Sequence[int]) -> list[int]:
    """The device of each variable: the least loaded so far, the first one in a tie."""
    load = dict.fromkeys(devices, 0)
    placed = []
    for size in sizes:
        device = min(load, key=lambda d: load[d])
        load[device] += size
        placed.append(device)
    return placed


def independent(workload: Workload, layout: Layout, flags: Flags) -> Plan:  # noqa: ARG001 - planners share a signature
    """No transfers: every GPU trains alone."""
    return PlanBuilder(layout.devices).finish(Contract.of("independent", []))


STRATEGIES: Mapping[str, Callable[[Layout, Flags], Strategy]] = {
    "replicated": replicated,
    "distributed_all_reduce": distributed_all_reduce,
    "collective_all_reduce": collective_all_reduce,
    "horovod": horovod,
}
"""The modes that are an all-reduce, with the strategy of each."""

PLANNERS: Mapping[str, Callable[[Workload, Layout, Flags], Plan]] = {
    "parameter_server": parameter_server,
    "distributed_replicated": distributed_replicated,
    "independent": independent,
}
"""The other modes."""

MODES = (*PLANNERS, *STRATEGIES)
"""The names that `--variable_update` takes."""


def variable_update(mode: str, workload: Workload, layout: Layout, flags: Flags) -> Plan:
    """The plan of one step in `mode`; StrategyError, with the nearest mode, for a name that is
    none, and for what the mode does not accept.
    """
    if mode not in MODES:
        raise StrategyError(
            f"unknown mode {mode!r}{did_you_mean(mode, MODES)}; one of {', '.join(MODES)}"
        )
    if mode in PLANNERS:
        return PLANNERS[mode](workload, layout, flags)
    return compile_plan(STRATEGIES[mode](layout, flags), workload, layout, faithful=flags.faithful)
