"""Plans of tf_cnn_benchmarks' `--variable_update` modes for one step: gradients in, variables out.

`training` adds timing, staging and relaxed consistency. A new mode is a file and a line: in
`STRATEGIES` if it all-reduces the gradients, else in `PLANNERS`.

`parameter_server` keeps one copy of each variable: gradients go to it, GPUs read it back.
`distributed_replicated` keeps a master copy on a parameter server and a replica on every GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from simreduce.errors import StrategyError, did_you_mean
from simreduce.plan import Contract, Plan, PlanBuilder, Promise, Value
from simreduce.planners.layouts import Layout
from simreduce.planners.strategy import Strategy, compile_plan, parse_strategy
from simreduce.workload import Gradient, Workload


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


class StepBuilder:
    """Builds a step's plan.

    Every use of a gradient list has its own addresses: a variable's value is not its gradient, and
    two workers' updates of one variable are two results.
    """

    def __init__(self, workload: Workload, layout: Layout) -> None:
        self.b = PlanBuilder(layout.devices)
        self.layout = layout
        self.gradients = workload.gradients
        self.variable = len(layout.devices)
        """The contributor that represents a variable's updated value."""
        self._promises: list[Promise] = []
        self._next = 0

    def reserve(self) -> list[int]:
        """Reserve an address for each gradient, end to end."""
        sizes = (gradient.elements for gradient in self.gradients)
        *addresses, self._next = accumulate(sizes, initial=self._next)
        return addresses

    def mean_on(self, device: int, ranks: Sequence[int], i: int, lo: int) -> Value:
        """The mean over `ranks` of gradient i, computed on `device`."""
        hi, dtype = lo + self.gradients[i].elements, self.gradients[i].dtype
        given = [self.b.copy(self.b.input(rank, lo, hi, dtype), device) for rank in ranks]
        return self.b.scale(self.b.add(given), len(ranks))

    def update(self, mean: Value, ranks: Sequence[int], server: int) -> Value:
        """Bring a mean to the variable's server; it is a result there."""
        arrived = self.b.output(self.b.copy(mean, server))
        self._promise(arrived, frozenset(ranks), len(ranks))
        return arrived

    def variable_after(self, device: int, i: int, lo: int, after: Sequence[int]) -> Value:
        """Variable i on its device, after the ops `after` have updated it."""
        gradient: Gradient = self.gradients[i]
        hi = lo + gradient.elements
        return self.b.input(device, lo, hi, gradient.dtype, contributor=self.variable, after=after)

    def read(self, variable: Value, device: int) -> None:
        """Give `device` the variable for its next step."""
        self._promise(self.b.output(self.b.copy(variable, device)), frozenset([self.variable]), 1)

    def finish(self, mode: str) -> Plan:
        """The plan."""
        return self.b.finish(Contract.of(mode, self._promises))

    def _promise(self, value: Value, members: frozenset[int], divisor: int) -> None:
        self._promises.append(
            Promise(value.device, value.lo, value.hi, value.dtype, members, divisor)
        )


def replicated(layout: Layout, flags: Flags) -> Strategy:
    """Return the strategy of one machine.

    It uses the spec if there is one (a single range), else hierarchical copy, else plain copies.
    """
    if len(layout.tasks) > 1:
        raise StrategyError(
            "replicated works on one machine;"
            " distributed_replicated and distributed_all_reduce on several"
        )
    if flags.all_reduce_spec:
        strategy = _strategy(flags, flags.all_reduce_spec)
        if len(strategy.ranges) > 1:
            raise StrategyError(
                f"replicated takes a spec of one range, not {flags.all_reduce_spec!r}"
            )
        return strategy
    if flags.hierarchical_copy:
        names = {"dgx1": "hierarchical_copy", "gcp_v100": "hierarchical_copy_gcp_v100"}
        if flags.network_topology not in names:
            raise StrategyError(
                f"network_topology={flags.network_topology}: one of {', '.join(names)}"
            )
        return _strategy(flags, names[flags.network_topology])
    return _strategy(flags, "copy_to_gpus" if flags.on_gpu() else "copy_to_cpu")


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

    With several tasks every worker applies its own mean separately: nothing is averaged across
    workers.
    """
    plan = _local if len(layout.tasks) == 1 else _distributed
    return plan(workload, layout, flags)


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
    """A worker sums on its CPU; it caches what it reads on its CPU if small, else on its
    least-loaded GPU (or on its CPU).
    """
    hosts = layout.host_devices("parameter_server")
    pairs = zip(layout.tasks, hosts, strict=True)
    caches = [_caches(workload, flags, task, host) for task, host in pairs]
    step = "parameter_server", workload, layout, flags.servers(layout)
    return _on_servers(*step, lambda _i, worker, _server: hosts[worker], caches)


def _on_servers(
    mode: str,
    workload: Workload,
    layout: Layout,
    servers: Sequence[int],
    mean_at: Callable[[int, int, int], int],
    caches: Sequence[Sequence[int]],
) -> Plan:
    """Variables on the parameter servers, least bytes first.

    A worker averages its GPUs' gradients where `mean_at` says for a variable, the worker and the
    variable's server. It reads a variable once, to its place in `caches`, and its GPUs copy from
    there.
    """
    step = StepBuilder(workload, layout)
    sums = [step.reserve() for _ in layout.tasks]
    variables = step.reserve()
    for i, server in enumerate(least_loaded([g.nbytes for g in workload.gradients], servers)):
        applied = [
            step.update(step.mean_on(mean_at(i, w, server), task, i, sums[w][i]), task, server).op
            for w, task in enumerate(layout.tasks)
        ]
        variable = step.variable_after(server, i, variables[i], applied)
        for task, cache in zip(layout.tasks, caches, strict=True):
            cached = step.b.copy(variable, cache[i])
            for rank in task:
                step.read(cached, rank)
    return step.finish(mode)


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
    hosts, count = layout.host_devices("distributed_replicated"), len(workload.gradients)
    on_gpu, servers = flags.on_gpu(), flags.servers(layout)

    def mean_at(i: int, worker: int, server: int) -> int:
        task = layout.tasks[worker]
        return task[i % len(task)] if on_gpu else server

    step = "distributed_replicated", workload, layout, servers
    return _on_servers(*step, mean_at, [[host] * count for host in hosts])


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


def variable_update(
    mode: str, workload: Workload, layout: Layout, flags: Flags | None = None
) -> Plan:
    """The plan of one step in `mode`; StrategyError for what the mode does not accept."""
    if mode not in MODES:
        raise StrategyError(
            f"unknown mode {mode!r}{did_you_mean(mode, MODES)}; one of {', '.join(MODES)}"
        )
    flags = flags or Flags()
    if mode in PLANNERS:
        return PLANNERS[mode](workload, layout, flags)
    return compile_plan(STRATEGIES[mode](layout, flags), workload, layout, faithful=flags.faithful)
