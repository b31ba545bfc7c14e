"""Synchronous replicas on parameter servers, with backups, stragglers and failures.

They are `tf.train.SyncReplicasOptimizer`.

The training job and its table `[replicas]`: its workers, their compute times and failures.

It has the arguments of `tf.train.SyncReplicasOptimizer` and of its hook, under their own names.

The key `compute` is a time, or a table with a distribution of times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf, isfinite
from sys import float_info
from typing import Any, TypeVar

import numpy as np
import simpy

from simreduce import units
from simreduce.computing.arrays import Floats, uniform
from simreduce.engine import CALM
from simreduce.engine.setup import Setup
from simreduce.errors import InputError, did_you_mean, quote, refuse
from simreduce.files.formats import (
    DURATION,
    FLAG,
    SIZE,
    Field,
    FieldValues,
    Format,
    ListOf,
    MapOf,
    Scalar,
    TableOf,
    ValueKind,
    choice,
    number,
    quantity,
    whole,
)
from simreduce.files.formats.syntax import Faults, inside
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
from simreduce.training.replicas.network import Delays, LinkNetwork, port_delays
from simreduce.workload import Workload

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """The optimizer's arguments.

    An update takes `replicas_to_aggregate` gradients of every variable and puts out tokens for
    `total_num_replicas` workers, at least as many as gradients (the default). Workers beyond the
    gradients are *backups*.

    `num_tokens` is the queue's length at the start; -1 for `replicas_to_aggregate`. None is the
    fewest that work: 0 unless workers must send several gradients each. If `faithful`, None is -1,
    as upstream, so the first update waits for nobody; sparse gradients are averaged as upstream.
    """

    replicas_to_aggregate: int
    total_num_replicas: int | None = None
    num_tokens: int | None = None
    faithful: bool = False

    def __post_init__(self) -> None:
        needed, total, tokens = self.replicas_to_aggregate, self.total_num_replicas, self.num_tokens
        checks = {
            f"replicas_to_aggregate: an update takes 1 gradient or more, not {needed}": needed < 1,
            f"total_num_replicas: 1 or more, not {total}": total is not None and total < 1,
            f"num_tokens: 0 or more, or -1 for replicas_to_aggregate, not {tokens}": (
                tokens is not None and tokens < -1
            ),
        }
        refuse(words for words, wrong in checks.items() if wrong)
        if tokens is not None and 0 <= tokens < self.fewest_tokens:
            raise InputError(
                "num_tokens: too few tokens to finish the first step:"
                f" {tokens} given, {self.fewest_tokens} needed"
            )

    @property
    def total(self) -> int:
        """How many workers get tokens."""
        return (
            self.replicas_to_aggregate
            if self.total_num_replicas is None
            else self.total_num_replicas
        )

    @property
    def fewest_tokens(self) -> int:
        """Tokens needed for the first update, beside one gradient of every worker."""
        return max(self.replicas_to_aggregate - self.total, 0)

    @property
    def initial_tokens(self) -> int:
        """Tokens in the queue at the start, all of step 0."""
        if self.num_tokens is None:
            return self.replicas_to_aggregate if self.faithful else self.fewest_tokens
        return self.replicas_to_aggregate if self.num_tokens == -1 else self.num_tokens

    @property
    def tokens_per_step(self) -> int:
        """Tokens that every update puts out."""
        return max(self.total, self.replicas_to_aggregate)


def easyrec(workers: int) -> SyncSettings:
    """Return the settings of EasyRec (parameter-server strategy, `sync_replicas`).

    A gradient of every worker is in every update, and there is no token at the start. InputError
    for one worker, which EasyRec does not synchronise.
    """
    if workers < 2:
        raise InputError(f"EasyRec synchronises several workers, not {workers}")
    return SyncSettings(replicas_to_aggregate=workers, total_num_replicas=workers, num_tokens=0)


_APART = 1 << 40
"""Upper limit of the random numbers of one repetition."""

MOST_TIMES = 1 << 26
"""Worker steps with random times in one repetition: half a GiB."""


@dataclass(frozen=True, slots=True)
class ReplicasJob:
    """Synchronous training on several workers; times in seconds.

    `compute` is a worker's time from variables to gradients: one distribution for all, or one each.
    Worker w takes `slow[w]` times as long. It stops at `dies[w]`, losing its token and undelivered
    gradients, until it begins a new step at `returns[w]`, if ever. Worker 0 is the chief: while it
    is dead there is no update.

    Updating a variable takes `update` seconds. After each global step the chief spends `averages`
    on moving averages and `turn` before the next round.
    """

    settings: SyncSettings
    network: Delays | LinkNetwork
    compute: Distribution | tuple[Distribution, ...]
    slow: Mapping[int, float] = field(default_factory=dict)
    dies: Mapping[int, float] = field(default_factory=dict)
    returns: Mapping[int, float] = field(default_factory=dict)
    update: float = 0.0
    averages: float = 0.0
    turn: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        each = isinstance(self.compute, tuple) and len(self.compute)
        times = {"update": self.update, "averages": self.averages, "turn": self.turn}
        checks = {
            "workers: 1 or more": not self.workers,
            "variables: at least one must be supplied": not self.variables,
            f"compute: {each} distributions for {self.workers} workers": (
                each is not False and each != self.workers
            ),
        }
        checks |= {
            f"{name}: 0 s or more, not {seconds:g}": not (isfinite(seconds) and seconds >= 0.0)
            for name, seconds in times.items()
        }
        faults = worker_faults(self.workers, self.slow, self.dies, self.returns)
        refuse([*(words for words, wrong in checks.items() if wrong), *faults])

    @property
    def workers(self) -> int:
        """How many workers there are. `settings.total` counts tokens, and may differ."""
        return len(self.network.pull if isinstance(self.network, Delays) else self.network.workers)

    @property
    def names(self) -> tuple[str, ...]:
        """The workers' devices, or `worker 0` and so on."""
        return (
            tuple(f"worker {w}" for w in range(self.workers))
            if isinstance(self.network, Delays)
            else self.network.workers
        )

    @property
    def variables(self) -> int:
        """How many variables have an accumulator."""
        return len(
            self.network.messages.report
            if isinstance(self.network, Delays)
            else self.network.servers
        )

    def seconds(self, repetition: int, steps: int) -> Floats:
        """Compute times of the first `steps` steps, by [worker, step], of a repetition.

        More steps do not change those before. InputError if there are too many for memory.
        """
        if steps * self.workers > MOST_TIMES:
            raise InputError(
                f"{steps:,} steps of {self.workers:,} workers are more than the {MOST_TIMES:,} of"
                " one repetition: ask for fewer updates, and more repetitions"
            )
        drawn = uniform(self.seed, repetition * _APART, steps * self.workers).reshape(steps, -1).T
        times = (
            np.array([each.quantile(u) for each, u in zip(self.compute, drawn, strict=True)])
            if isinstance(self.compute, tuple)
            else np.ascontiguousarray(self.compute.quantile(drawn))
        )
        for worker, factor in self.slow.items():
            times[worker] *= factor
        return times


def worker_faults(
    workers: int, slow: Mapping[int, float], dies: Mapping[int, float], returns: Mapping[int, float]
) -> list[str]:
    """The faults of `ReplicasJob`'s tables by worker."""
    problems = []
    for name, least, given in (("slow", "above 0", slow), ("dies", "0 s or more", dies)):
        for worker, value in given.items():
            if not 0 <= worker < workers:
                problems.append(f"{name}: the workers are 0 to {workers - 1}, not {worker}")
            if not (isfinite(value) and value >= 0.0 and (value > 0.0 or name == "dies")):
                problems.append(f"{name}: worker {worker}: {least}, not {value:g}")
    for worker, value in returns.items():
        if worker not in dies:
            problems.append(f"returns: worker {worker} does not die")
        elif not (isfinite(value) and value > dies[worker]):
            problems.append(
                f"returns: worker {worker}: after it dies at {dies[worker]:g} s, not at {value:g} s"
            )
    return problems


def _time(key: str, about: str) -> Field:
    return Field(key, DURATION, about, required=True)


def _form(name: str, about: str, *fields: Field) -> Format:
    return Format(name, about, Field("distribution", _NAME, "Its name.", required=True), *fields)


_NAMES = ("constant", "uniform", "normal", "lognormal", "exponential", "pareto", "trace")
_NAME = choice(_NAMES, "distribution")
_MEAN, _SD = _time("mean", "The mean."), _time("sd", "The standard deviation.")
DISTRIBUTIONS: Mapping[str, tuple[Callable[..., Distribution], Format]] = {
    form.name: (make, form)
    for make, form in (
        (Constant, _form("constant", "Always the same time.", _time("seconds", "The time."))),
        (Uniform, _form("uniform", "Equally likely times.", _time("low", "The least."),
                        _time("high", "The greatest."))),
        (Normal, _form("normal", "Normally distributed times above 0 s.", _MEAN, _SD)),
        (Lognormal, _form("lognormal", "Times whose logarithm is normal.", _MEAN, _SD)),
        (Exponential, _form("exponential", "Exponentially distributed times, after a least one.",
                            _MEAN, Field("least", DURATION, "The least.", 0.0))),
        (Pareto, _form("pareto", "Times with a heavy tail.", _time("least", "The least."),
                       Field("shape", number(0.0), "The exponent of the tail.", required=True))),
        (lambda times: Empirical(tuple(times)),
         _form("trace", "Any of some measured times, equally likely.",
               Field("times", ListOf(DURATION), "The times.", required=True))),
    )
}  # fmt: skip
"""Distributions by name; the keys after the first are their arguments, in order."""


class ComputeTime(ValueKind[Distribution]):
    """A time, or a table with a distribution."""

    def __init__(self) -> None:
        schema = {"anyOf": [DURATION.schema, {"type": "object", "required": ["distribution"]}]}
        super().__init__('a time such as "120 ms", or a table with a distribution', schema)

    def take(self, value: object, faults: Faults, path: str) -> Distribution | None:
        """Read either; None if it has a fault."""
        if not isinstance(value, dict):
            seconds = DURATION.take(value, faults, path)
            return None if seconds is None else Constant(seconds)
        name = _NAME.take(value.get("distribution"), faults, inside(path, "distribution"))
        if name is None:
            return None
        make, form = DISTRIBUTIONS[name]
        before = len(faults.problems)
        values = form.read(value, faults, path)
        if len(faults.problems) > before:
            return None
        arguments: list[Any] = [values[key] for key in form.keys[1:]]
        return faults.attempt(path, make, *arguments)


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

    def check(self, fine: object, key: str, text: object) -> bool:
        """Return whether a key is `fine`, and note a fault of it if not."""
        return self.faults.check(fine, f"replicas.{key}", text)

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
        words = f"the topology has {len(devices)} {what}, not {value}"
        return tuple(devices[:value]) if self.check(value <= len(devices), key, words) else ()

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
            self.faults.add_broken("replicas", (
                (key, key in values.given, "replicas.settings says it")
                for key in ("aggregate", "backups", "total", "tokens")
            ))  # fmt: skip
            return self.faults.attempt("replicas.settings", easyrec, workers) if workers else None
        if not workers:
            return None
        aggregate, backups = values["aggregate"], values["backups"]
        needed = workers - (backups or 0)
        words = f"must be fewer than the {units.plural(workers, 'worker')}, got {backups}"
        if not self.check(needed > 0, "backups", words):
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
        few = self.check(
            len(workers) * len(sizes) <= MOST_STEPS,
            "workers",
            f"{len(workers):,} workers with {len(sizes):,} variables"
            f" are more than {MOST_STEPS:,} transfers",
        )
        workers = workers if few else ()
        if not self.on_machine:
            self.check(not contention, "contention", "only a topology has links to contend for")
            rate, latency = self.values["bandwidth"], self.values["latency"]
            return port_delays(len(workers), sizes, rate, latency) if workers and sizes else None
        given = self.values.given
        alone = self.setup.disturbance if self.setup and contention is False else CALM
        self.faults.add_broken("replicas", (
            ("bandwidth", "bandwidth" in given, "the topology says it"),
            ("latency", "latency" in given, "the topology says it"),
            ("contention", alone.faults, "links that fail need it"),
            ("contention", alone.jitter, "jitter needs it"),
        ))  # fmt: skip
        known = set(self.devices).issuperset((*workers, *servers))
        if self.faulty or self.setup is None or not (workers and servers and known):
            return None
        homes = tuple(servers[v % len(servers)] for v in range(len(sizes)))
        return self.faults.attempt(
            "replicas",
            _on_links,
            self.setup,
            workers,
            homes,
            sizes,
            contention,
        )

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


def _on_links(
    setup: Setup, workers: tuple[str, ...], homes: tuple[str, ...], sizes: tuple[int, ...],
    contention: bool | None,
) -> Delays | LinkNetwork:  # fmt: skip
    """The links of a machine, or what each transfer takes alone. InputError for missing routes."""
    flows = LinkNetwork(setup, workers, homes, sizes)
    if contention is False:
        return flows.uncontended
    flows.open(simpy.Environment())  # raises if a route is missing
    return flows


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
