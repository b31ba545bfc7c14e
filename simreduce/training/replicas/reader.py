"""The table `[replicas]` of a scenario: who trains what, how long workers compute, what fails."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf
from sys import float_info
from typing import TypeVar

import simpy

from simreduce import units
from simreduce.engine.setup import Setup
from simreduce.errors import InputError, did_you_mean, quote
from simreduce.files.formats import (
    DURATION,
    FLAG,
    SIZE,
    Faults,
    Field,
    FieldValues,
    Format,
    MapOf,
    Scalar,
    TableOf,
    choice,
    number,
    quantity,
    whole,
)
from simreduce.topology import Topology
from simreduce.training.replicas.job import (
    ComputeTime,
    ReplicasJob,
    SyncSettings,
    easyrec,
    worker_faults,
)
from simreduce.training.replicas.network import Delays, LinkNetwork, port_delays
from simreduce.workload import Workload

T = TypeVar("T")

MOST = 1_000_000
"""Upper limit of whatever the table counts."""
MOST_STEPS = 1 << 24
"""Upper limit of the worker steps of a repetition, of transfers between workers and variables, and
of the updates of all repetitions: about 1 GiB of memory each.
"""


def _places(value: object) -> int | tuple[str, ...]:
    if isinstance(value, list):
        if not value or not all(isinstance(name, str) for name in value):
            raise ValueError(f"must be a number, or names of devices, got {quote(value)}")
        return tuple(value)
    return _COUNT.read(value)


_COUNT = whole(1, MOST)
_PLACES = Scalar(
    "a number, or a list of devices",
    {"anyOf": [_COUNT.schema, {"type": "array", "items": {"type": "string"}, "minItems": 1}]},
    _places,
)


class _ByWorker(MapOf[T]):
    """A table by the numbers of workers."""

    def take(self, value: object, faults: Faults, path: str) -> dict[str, T] | None:
        """Read every value under the number of a worker; None if this is no table."""
        if isinstance(value, dict):
            wrong = [
                key for key in value if not (key.isascii() and key.isdecimal()) or len(key) > 9
            ]
            for key in wrong:
                faults.add(path, f"must have the numbers of workers as keys, got {quote(key)}")
            value = {key: each for key, each in value.items() if key not in wrong}
        return super().take(value, faults, path)


_ABOVE_0 = (float_info.min, inf, "above 0")
_SECONDS = _ByWorker(DURATION, key="WORKER")

REPLICAS = Format(
    "replicas",
    "Training with synchronous replicas and parameter servers (`SyncReplicasOptimizer`).",
    Field("workers", _PLACES, "How many GPUs of the machine, or which.", required=True),
    Field("servers", _PLACES, "How many hosts of the machine, of different nodes first, or which."
          " Variable v is on server v mod their number.", 1),
    Field("backups", whole(0, MOST), "Workers whose gradients an update does not wait for.",
          default_words="`0`"),
    Field("aggregate", _COUNT, "Gradients in an update (`replicas_to_aggregate`).",
          default_words="workers that are no backups"),
    Field("total", _COUNT, "Workers that each update puts tokens out for (`total_num_replicas`).",
          default_words="as many as there are"),
    Field("tokens", whole(-1, MOST), "Tokens in the queue at the start; -1 for upstream's.",
          default_words="the fewest that work"),
    Field("settings", choice(("easyrec",), "settings"),
          "All of the four keys above as EasyRec sets them."),
    Field("compute", ComputeTime(), "How long a worker computes in a step.", required=True),
    Field("slow", _ByWorker(number(0.0), key="WORKER"),
          "How many times as long a worker computes.", {}),
    Field("dies", _SECONDS, "When a worker stops.", {}),
    Field("returns", _SECONDS, "When a worker that stopped begins a step.", {}),
    Field("size", SIZE, "Size of one variable on each server, in a scenario without workload.", 0),
    Field("contention", FLAG, "Whether transfers share links; `false` times each one alone.",
          default_words="`true` on a machine"),
    Field("bandwidth", quantity(units.bandwidth, "a bandwidth", ("10 Gbit/s",), _ABOVE_0),
          "Of every worker's port, in a scenario without topology.", inf,
          default_words="transfers cost nothing"),
    Field("latency", DURATION, "Of every transfer, likewise.", 0.0, default_words="`0 s`"),
    Field("update", DURATION, "Time to update a variable.", 0.0, default_words="`0 s`"),
    Field("averages", DURATION, "Time of moving averages, once an update.", 0.0,
          default_words="`0 s`"),
    Field("turn", DURATION, "Time that the chief loses between two updates.", 0.0,
          default_words="`0 s`"),
    Field("updates", _COUNT, "Updates in each repetition.", 100),
    Field("repetitions", _COUNT, "Repetitions, each with random times of its own.", 20),
    Field("skip", whole(0, MOST), "First updates to leave out of the averages.",
          default_words="a tenth of `updates`"),
    Field("seed", whole(0, 2**64 - 1), "Seed of the random times.", 0),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReplicasQuestion:
    """A job, and how often to simulate it: `updates` in each repetition, less the first `skip`."""

    job: ReplicasJob
    updates: int
    repetitions: int
    skip: int


def parse_replicas(
    table: object,
    faults: Faults,
    setup: Setup | None = None,
    workload: Workload | None = None,
    *,
    faithful: bool = False,
    faulty: Collection[str] = (),
) -> ReplicasQuestion | None:
    """The question of a `[replicas]` table; None after a fault, which `faults` notes.

    Of topology, workload and disturbance, those `faulty` have faults of their own: the table's
    faults that depend on them are left out. A worker on a device that the disturbance slows down
    computes as much longer, besides its `slow`.
    """
    before = len(faults.problems)
    values = TableOf(REPLICAS).take(table, faults, "replicas")
    if values is None:
        return None
    read = _Reader(values, faults, setup, workload, faulty)
    topology = setup.topology if setup else None
    workers = read.places("workers", topology.devices if topology else None, "GPUs")
    servers = read.places("servers", _hosts(topology) if topology else None, "hosts")
    settings = read.settings(len(workers), faithful=faithful)
    slow, dies, returns = (
        {int(worker): each for worker, each in values[key].items()}
        for key in ("slow", "dies", "returns")
    )
    for worker, device in enumerate(workers):
        if setup and device in setup.disturbance.slow:
            slow[worker] = slow.get(worker, 1.0) * setup.disturbance.slow[device]
    for fault in worker_faults(len(workers), slow, dies, returns) if workers else ():
        faults.add("", f"replicas.{fault}")
    network = read.network(workers, servers, read.sizes(len(servers)))
    skip = read.skip()
    if settings:
        read.check_memory(len(workers), settings)
    if len(faults.problems) > before or not (settings and network):
        return None
    seconds = {key: values[key] for key in ("update", "averages", "turn")}
    job = faults.attempt(
        "replicas", ReplicasJob, settings, network, values["compute"], slow, dies, returns,
        seed=values["seed"], **seconds,
    )  # fmt: skip
    return ReplicasQuestion(job, values["updates"], values["repetitions"], skip) if job else None


@dataclass(frozen=True, slots=True)
class _Reader:
    """The values of the table, and the machine and gradients of its scenario."""

    values: FieldValues
    faults: Faults
    setup: Setup | None
    workload: Workload | None
    faulty: Collection[str]

    def check(self, fine: object, key: str, text: object) -> None:
        """Note a fault of a key unless it is `fine`."""
        self.faults.check(fine, f"replicas.{key}", text)

    @property
    def on_machine(self) -> bool:
        """Whether the scenario names a machine."""
        return self.setup is not None or "topology" in self.faulty

    @property
    def devices(self) -> list[str]:
        """The GPUs and hosts of the machine."""
        return [*self.setup.topology.devices, *self.setup.topology.hosts] if self.setup else []

    def places(self, key: str, devices: Sequence[str] | None, what: str) -> tuple[str, ...]:
        """Devices by name or number; without a machine, that many empty names."""
        value: int | tuple[str, ...] | None = self.values[key]
        if value is None or key in self.values.faulty:
            return ()
        if isinstance(value, tuple):
            self._check_names(key, value)
            return value
        if devices is None:
            return ("",) * value
        fits = value <= len(devices)
        self.check(fits, key, f"the topology has {len(devices)} {what}, not {value}")
        return tuple(devices[:value]) if fits else ()

    def _check_names(self, key: str, names: Sequence[str]) -> None:
        """Note names that are no device, or repeated."""
        words = f"{quote(names[0])}: only a topology has devices with names"
        self.check(self.on_machine, key, words)
        for i, name in enumerate(names):
            place = f"replicas.{key}[{i}]"
            if name in names[:i]:
                self.faults.add(place, f"{name!r} again")
            elif self.setup and name not in (known := self.devices):
                machine, near = self.setup.topology.name, did_you_mean(name, known)
                self.faults.add(place, f"{machine} has no device {name!r}{near}")

    def settings(self, workers: int, *, faithful: bool) -> SyncSettings | None:
        """The optimizer's arguments; None after a fault."""
        values = self.values
        if "settings" in values.given:
            for key in ("aggregate", "backups", "total", "tokens"):
                self.check(key not in values.given, key, "replicas.settings says it")
            return self.faults.attempt("replicas.settings", easyrec, workers) if workers else None
        if not workers:
            return None
        aggregate, backups = values["aggregate"], values["backups"]
        needed = workers - (backups or 0)
        words = f"must be fewer than the {units.plural(workers, 'worker')}, got {backups}"
        self.check(needed > 0, "backups", words)
        if needed <= 0:
            return None
        fits = aggregate is None or backups is None or aggregate == needed
        self.check(fits, "aggregate", f"must be {needed}: {workers} workers less {backups} backups")
        total = workers if values["total"] is None else values["total"]
        try:
            return SyncSettings(aggregate or needed, total, values["tokens"], faithful)
        except InputError as error:
            for argument, _, problem in (text.partition(": ") for text in error.problems):
                self.faults.add(f"replicas.{_KEYS[argument]}", problem)
            return None

    def sizes(self, servers: int) -> tuple[int, ...]:
        """Bytes of every variable: one for each gradient, or one on each server."""
        if self.workload is None and "workload" not in self.faulty:
            return (self.values["size"],) * servers
        words = "the scenario has a workload, which says how large variables are"
        self.check("size" not in self.values.given, "size", words)
        return tuple(each.nbytes for each in self.workload.gradients) if self.workload else ()

    def network(
        self, workers: tuple[str, ...], servers: tuple[str, ...], sizes: tuple[int, ...]
    ) -> Delays | LinkNetwork | None:
        """Variables on servers in turn, as `replica_device_setter` places them."""
        contention = self.values["contention"]
        if len(workers) * len(sizes) > MOST_STEPS:
            self.faults.add(
                "replicas.workers",
                f"{len(workers):,} workers with {len(sizes):,} variables"
                f" are more than {MOST_STEPS:,} transfers",
            )
            workers = ()
        if not self.on_machine:
            self.check(not contention, "contention", "only a topology has links to contend for")
            rate, latency = self.values["bandwidth"], self.values["latency"]
            return port_delays(len(workers), sizes, rate, latency) if workers and sizes else None
        for key in ("bandwidth", "latency"):
            self.check(key not in self.values.given, key, "the topology says it")
        if self.setup and contention is False:
            disturbance = self.setup.disturbance
            self.check(not disturbance.faults, "contention", "links that fail need it")
            self.check(not disturbance.jitter, "contention", "jitter needs it")
        known = set(self.devices).issuperset((*workers, *servers))
        if self.faulty or self.setup is None or not (workers and servers and known):
            return None
        homes = tuple(servers[v % len(servers)] for v in range(len(sizes)))
        try:
            flows = LinkNetwork(self.setup, workers, homes, sizes)
            if contention is False:
                return flows.uncontended
            flows.open(simpy.Environment())  # raises if a route is missing
        except InputError as error:
            for problem in error.problems:
                self.faults.add("replicas", problem)
            return None
        return flows

    def skip(self) -> int:
        """How many updates to leave out."""
        updates, skip = self.values["updates"], self.values["skip"]
        if skip is None:
            return int(min(-(-updates // 10), updates - 1))
        fine = skip < updates or self.values.faulty & {"skip", "updates"}
        self.check(fine, "skip", f"must be fewer than the {updates} updates, got {skip}")
        return int(skip)

    def check_memory(self, workers: int, settings: SyncSettings) -> None:
        """Note what does not fit in memory."""
        updates, repetitions = self.values["updates"], self.values["repetitions"]
        steps = updates * settings.tokens_per_step + workers * settings.initial_tokens
        self.check(
            steps <= MOST_STEPS,
            "updates",
            f"{updates:,} are {steps:,} steps of workers, and a repetition has up to "
            f"{MOST_STEPS:,}",
        )
        self.check(
            updates * repetitions <= MOST_STEPS,
            "repetitions",
            f"{repetitions:,} times {updates:,} updates are {repetitions * updates:,}"
            f", and there are up to {MOST_STEPS:,}",
        )


def _hosts(topology: Topology) -> list[str]:
    """Hosts, the first of every machine first."""
    places: defaultdict[str, Iterator[int]] = defaultdict(count)
    turns = {host: next(places[topology.nodes[host].machine]) for host in topology.hosts}
    return sorted(turns, key=turns.__getitem__)


_KEYS = {
    "replicas_to_aggregate": "aggregate",
    "total_num_replicas": "total",
    "num_tokens": "tokens",
}
"""By the arguments of `SyncSettings`."""
