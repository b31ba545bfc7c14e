"""The `[replicas]` table of a scenario: who trains what, how long they compute, and what goes
wrong.

[replicas]
workers = 8                      # as many GPUs of the topology, or their names: ["gpu0", "gpu1"]
servers = 2                      # as many hosts of the topology, of different machines if it has them, or their names
backups = 1                      # or aggregate = 7: gradients in an update; neither: one of each worker
total = 8                        # workers that there are tokens for; as many as there are
tokens = 0                       # in the queue at the start, -1 for upstream's; the fewest that do
settings = "easyrec"             # instead of backups, aggregate, total and tokens: as EasyRec sets them
compute = {distribution = "lognormal", mean = "120 ms", sd = "10 ms"}   # or "120 ms"
slow = {3 = 2.0}                 # worker 3 computes twice as long
dies = {5 = "10 s"}              # worker 5 stops then
returns = {5 = "40 s"}           # and begins a step then; else never
size = "100 MB"                  # of one variable on each server, where the scenario has no workload
contention = true                # false: transfers take what they take alone
bandwidth = "10 Gbit/s"          # of every worker's port, where the scenario has no topology; else transfers cost nothing
latency = "50 us"                # of every transfer, likewise
update = "1 ms"                  # of the variables, by their servers; likewise `averages` and `turn` (see `ReplicasJob`)
updates = 100
repetitions = 20
skip = 10                        # updates that do not count; a tenth of them, as the first ones begin together
seed = 1
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import simpy

from simreduce import units
from simreduce.errors import InputError, ScenarioError, did_you_mean, shown
from simreduce.setup import Setup
from simreduce.topology import Topology
from simreduce.training.distributions import (
    Constant,
    Distribution,
    Empirical,
    Exponential,
    Lognormal,
    Normal,
    Pareto,
    Uniform,
)
from simreduce.training.replicas.job import ReplicasJob, worker_faults
from simreduce.training.replicas.network import Delays, Flows, port_delays
from simreduce.training.replicas.settings import SyncSettings, easyrec
from simreduce.training.table import Table
from simreduce.workload import Workload

T = TypeVar("T")

MOST_STEPS = 1 << 24
"""Steps of all workers in one repetition, transfers between workers and variables, updates of all
repetitions: of each, what about 1 GiB of memory is enough for.
"""


@dataclass(frozen=True, slots=True)
class ReplicasQuestion:
    """A job, and how often it is to be simulated: `updates` in each repetition, of which the first
    `skip` do not count.
    """

    job: ReplicasJob
    updates: int
    repetitions: int
    skip: int


def read_replicas(
    table: object,
    setup: Setup | None = None,
    workload: Workload | None = None,
    *,
    faithful: bool = False,
    faulty: Collection[str] = (),
) -> ReplicasQuestion:
    """What the table asks, of the scenario's machine and gradients. ScenarioError with every fault,
    by its key. What is `faulty`, of topology, workload and disturbance, has faults itself, and only
    those of the table are told that do not depend on it.

    A worker on a device that the disturbance slows down computes as much longer, besides its
    `slow`.
    """
    if not isinstance(table, dict):
        raise ScenarioError(f"replicas: expected a table, not {shown(table)}")
    read = _Reader("replicas", table)
    scene = _Scene(setup, workload, faulty)
    topology = setup.topology if setup else None
    workers = _places(read, "workers", scene, topology.devices if topology else None, "GPUs", None)
    servers = _places(read, "servers", scene, _servers(topology) if topology else None, "hosts", 1)
    settings = _settings(read, len(workers), faithful=faithful)
    compute = _compute(read)
    slow = read.numbered("slow", _factor)
    for worker, device in enumerate(workers):
        if setup and device in setup.disturbance.slow:
            slow[worker] = slow.get(worker, 1.0) * setup.disturbance.slow[device]
    dies, returns = read.numbered("dies", units.duration), read.numbered("returns", units.duration)
    if workers:
        read.problems += [
            f"replicas.{fault}" for fault in worker_faults(len(workers), slow, dies, returns)
        ]
    network = _network(read, scene, workers, servers, _sizes(read, scene, len(servers)))
    seconds = {
        key: read.quantity(key, units.duration, 0.0) for key in ("update", "averages", "turn")
    }
    updates, repetitions = read.whole("updates", 100, 1), read.whole("repetitions", 20, 1)
    skip, seed = read.whole("skip", -1, 0), read.whole("seed", 0, 0, 2**64 - 1)
    if updates and repetitions and settings:
        _bounds(read, updates, repetitions, len(workers), settings)
    if updates and skip == -1:
        skip = min(-(-updates // 10), updates - 1)
    if updates and skip is not None and skip >= updates:
        read.fault("skip", f"fewer than the {updates} updates, not {skip}")
    read.close()
    if not read.problems and settings and compute and network and updates and repetitions:
        try:
            job = ReplicasJob(
                settings,
                network,
                compute,
                slow,
                dies,
                returns,
                seed=seed or 0,
                **{k: s or 0.0 for k, s in seconds.items()},
            )
            return ReplicasQuestion(job, updates, repetitions, skip or 0)
        except InputError as error:
            read.problems += [f"replicas.{problem}" for problem in error.problems]
    raise ScenarioError(read.problems)


@dataclass(frozen=True, slots=True)
class _Scene:
    """What a table is read beside."""

    setup: Setup | None
    workload: Workload | None
    faulty: Collection[str]

    @property
    def on_machine(self) -> bool:
        """Whether the scenario names a machine."""
        return self.setup is not None or "topology" in self.faulty

    @property
    def devices(self) -> list[str]:
        """Those of the machine: its GPUs and hosts."""
        return [*self.setup.topology.devices, *self.setup.topology.hosts] if self.setup else []

    @property
    def has_gradients(self) -> bool:
        """Whether it names gradients."""
        return self.workload is not None or "workload" in self.faulty


class _Reader(Table):
    """A table, and those by the numbers of workers in it."""

    def numbered(self, key: str, reader: Callable[[object], float]) -> dict[int, float]:
        """A table by the numbers of workers."""
        value = self.take(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.fault(key, f"expected a table by the numbers of workers, not {shown(value)}")
            return {}
        found = {}
        for worker, each in value.items():
            if not (worker.isascii() and worker.isdecimal() and len(worker) < 10):
                self.fault(key, f"expected the number of a worker, not {shown(worker)}")
                continue
            number = self.read(f"{key}.{worker}", each, reader)
            if number is not None:
                found[int(worker)] = number
        return found


def _bounds(
    read: _Reader, updates: int, repetitions: int, workers: int, settings: SyncSettings
) -> None:
    """More than memory is for."""
    steps = updates * settings.tokens_per_step + workers * settings.initial_tokens
    if steps > MOST_STEPS:
        read.fault(
            "updates",
            f"{updates:,} are {steps:,} steps of workers, and a repetition has up to {MOST_STEPS:,}",
        )
    if updates * repetitions > MOST_STEPS:
        read.fault(
            "repetitions",
            f"{repetitions:,} times {updates:,} updates are {repetitions * updates:,}, and there are up to {MOST_STEPS:,}",
        )


def _factor(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"expected a factor such as 2.0, not {shown(value)}")  # noqa: TRY004 - as units do
    return float(value)


def _places(
    read: _Reader,
    key: str,
    scene: _Scene,
    devices: Sequence[str] | None,
    what: str,
    default: int | None,
) -> tuple[str, ...]:
    """Devices by name or number; without a topology, as many names as asked for."""
    value = read.given.get(key, default)
    if value is None:
        read.take(key)
        read.fault(key, "missing")
        return ()
    if isinstance(value, list):
        read.take(key)
        if not value or not all(isinstance(name, str) for name in value):
            read.fault(key, f"expected a number, or names of devices, not {shown(value)}")
            return ()
        _named(read, key, scene, value)
        return tuple(value)
    count = read.whole(key, default, 1) or 0
    if devices is None:
        return ("",) * count
    if count > len(devices):
        read.fault(key, f"the topology has {len(devices)} {what}, not {count}")
        return ()
    return tuple(devices[:count])


def _named(read: _Reader, key: str, scene: _Scene, names: Sequence[str]) -> None:
    """Whether there are such devices, each once."""
    if not scene.on_machine:
        read.fault(key, f"{shown(names[0])}: only a topology has devices with names")
    for i, name in enumerate(names):
        if name in names[:i]:
            read.fault(f"{key}[{i}]", f"{name!r} again")
        elif scene.setup and name not in (known := scene.devices):
            read.fault(
                f"{key}[{i}]",
                f"{scene.setup.topology.name} has no device {name!r}{did_you_mean(name, known)}",
            )


def _servers(topology: Topology) -> list[str]:
    """Hosts, the first of every machine first."""
    rank: dict[str, int] = {}
    turns: list[tuple[int, int, str]] = []
    for host in topology.hosts:
        machine = topology.nodes[host].machine
        rank[machine] = rank.get(machine, -1) + 1
        turns.append((rank[machine], len(turns), host))
    return [host for _, _, host in sorted(turns)]


_KEYS = {
    "replicas_to_aggregate": "aggregate",
    "total_num_replicas": "total",
    "num_tokens": "tokens",
}
"""By the arguments of `SyncSettings`."""


def _settings(read: _Reader, workers: int, *, faithful: bool) -> SyncSettings | None:
    aggregate, backups = read.whole("aggregate", None, 1), read.whole("backups", None, 0)
    total, tokens = read.whole("total", workers, 1), read.whole("tokens", None, -1)
    named = read.take("settings")
    if named is not None:
        return _named_settings(read, named, workers)
    if not workers:
        return None
    if backups is not None and backups >= workers:
        read.fault(
            "backups", f"fewer than the {workers} {units.noun(workers, 'worker')}, not {backups}"
        )
        return None
    if aggregate is None:
        aggregate = workers - (backups or 0)
    elif backups is not None and aggregate != workers - backups:
        read.fault(
            "aggregate",
            f"{aggregate}, but {workers} workers of which {backups} are backups are {workers - backups}",
        )
    try:
        return SyncSettings(aggregate, total, tokens, faithful)
    except InputError as error:
        for argument, _, problem in (text.partition(": ") for text in error.problems):
            read.fault(_KEYS[argument], problem)
        return None


def _named_settings(read: _Reader, name: object, workers: int) -> SyncSettings | None:
    if name != "easyrec":
        near = did_you_mean(name, ["easyrec"]) if isinstance(name, str) else ""
        read.fault("settings", f'expected "easyrec", not {shown(name)}{near}')
    for key in ("aggregate", "backups", "total", "tokens"):
        if key in read.given:
            read.fault(key, "replicas.settings says it")
    if not workers:
        return None
    try:
        return easyrec(workers)
    except InputError as error:
        read.problems += [f"replicas.settings: {problem}" for problem in error.problems]
        return None


_TIMES: Mapping[str, tuple[Callable[..., Distribution], tuple[str, ...]]] = {
    "constant": (Constant, ("seconds",)),
    "uniform": (Uniform, ("low", "high")),
    "normal": (Normal, ("mean", "sd")),
    "lognormal": (Lognormal, ("mean", "sd")),
    "exponential": (Exponential, ("mean", "least")),
    "pareto": (Pareto, ("least", "shape")),
    "trace": (lambda times: Empirical(tuple(times)), ("times",)),
}
"""Distributions, and what they are made of, in the order of their arguments."""


def _compute(read: _Reader) -> Distribution | None:
    value = read.take("compute")
    if not isinstance(value, dict):
        if value is None:
            read.fault(
                "compute", 'missing; a time such as "120 ms", or a table with a distribution'
            )
            return None
        return read.read("compute", value, lambda text: Constant(units.duration(text)))
    inner = _Reader("replicas.compute", value)
    name = inner.take("distribution")
    if not isinstance(name, str) or name not in _TIMES:
        near = did_you_mean(name, _TIMES) if isinstance(name, str) else ""
        read.fault(
            "compute.distribution", f"expected one of {', '.join(_TIMES)}, not {shown(name)}{near}"
        )
        return None
    make, keys = _TIMES[name]
    given = [
        inner.quantity(key, _figure(key), 0.0)
        if (name, key) == ("exponential", "least")
        else inner.required(key, _figure(key))
        for key in keys
    ]
    inner.close()
    if not inner.problems:
        try:
            return make(*given)
        except InputError as error:
            inner.problems = [f"replicas.compute: {problem}" for problem in error.problems]
    read.problems += inner.problems
    return None


def _figure(key: str) -> Callable[[object], Any]:
    return {"shape": _factor, "times": _list_of_times}.get(key, units.duration)


def _list_of_times(value: object) -> list[float]:
    if not isinstance(value, list):
        raise ValueError(  # noqa: TRY004 - a fault of what a user wrote
            f'expected a list of times such as ["120 ms", "95 ms"], not {shown(value)}'
        )
    return [units.duration(each) for each in value]


def _sizes(read: _Reader, scene: _Scene, servers: int) -> tuple[int, ...]:
    """Bytes of every variable: one for every gradient, or one on every server."""
    if not scene.has_gradients:
        return ((read.quantity("size", units.size, 0)) or 0,) * servers
    if read.take("size") is not None:
        read.fault("size", "the scenario has a workload, which says how large variables are")
    return tuple(gradient.nbytes for gradient in scene.workload.gradients) if scene.workload else ()


def _network(
    read: _Reader,
    scene: _Scene,
    workers: tuple[str, ...],
    servers: tuple[str, ...],
    sizes: tuple[int, ...],
) -> Delays | Flows | None:
    """Variable v is on server v mod the number of servers, as `replica_device_setter` places them."""
    contention = read.typed("contention", bool)
    if len(workers) * len(sizes) > MOST_STEPS:
        read.fault(
            "workers",
            f"{len(workers):,} workers with {len(sizes):,} variables are more than {MOST_STEPS:,} transfers",
        )
        workers = ()
    if not scene.on_machine:
        if contention:
            read.fault("contention", "only a topology has links to contend for")
        return _everywhere(read, len(workers), sizes)
    for key in ("bandwidth", "latency"):
        if read.take(key) is not None:
            read.fault(key, "the topology says it")
    if contention is False and scene.setup and scene.setup.disturbance.faults:
        read.fault("contention", "links that fail need it")
    if contention is False and scene.setup and scene.setup.disturbance.jitter:
        read.fault("contention", "jitter needs it")
    known = set(scene.devices).issuperset((*workers, *servers))
    if scene.faulty or scene.setup is None or not (workers and servers and known):
        return None
    homes = tuple(servers[v % len(servers)] for v in range(len(sizes)))
    try:
        flows = Flows(scene.setup, workers, homes, sizes)
        if contention is False:
            return flows.uncontended
        flows.opened(simpy.Environment())  # which looks for every way
    except InputError as error:
        read.problems += [f"replicas: {problem}" for problem in error.problems]
        return None
    return flows


def _everywhere(read: _Reader, workers: int, sizes: tuple[int, ...]) -> Delays | None:
    """Every worker's port has the same rate, and no server's counts."""
    rate = read.quantity("bandwidth", units.bandwidth, np.inf)
    latency = read.quantity("latency", units.duration, 0.0)
    if rate is not None and rate <= 0.0:
        read.fault("bandwidth", "must be above 0")
    if not rate or latency is None or not (workers and sizes):
        return None
    return port_delays(workers, sizes, rate, latency)
