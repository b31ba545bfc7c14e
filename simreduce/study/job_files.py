"""Several jobs on one machine, and traffic that is no job's, as a TOML file with `[[job]]` tables.

Each job is read as a scenario of its own with the keys that all share, on the nodes that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import simpy

from simreduce import units
from simreduce.computing import once
from simreduce.computing.arrays import uniform
from simreduce.engine import Fabric
from simreduce.engine.background import Stream, TrafficFlows, excess_messages
from simreduce.engine.setup import Setup
from simreduce.errors import InputError, ScenarioError
from simreduce.files.formats import (
    FLAG,
    LINE,
    Field,
    FieldValues,
    Format,
    OneOrMore,
    Scalar,
    TableOf,
    TablesOf,
    choice,
    quantity,
    refusal,
    whole,
)
from simreduce.files.formats.syntax import Faults
from simreduce.planners.layouts import Layout, node_names
from simreduce.planners.strategy import parse_strategy
from simreduce.study.scenario import SCENARIO, LoadMachine, Meshes, Scenario
from simreduce.study.scenario_files import (
    build_meshes,
    build_scenario,
    has_mesh,
    read_places,
    read_scenario_file,
)
from simreduce.topology import load_topology
from simreduce.topology.elements import joined
from simreduce.topology.loader import CLASSES, NONE, part_named
from simreduce.topology.switch_groups import label
from simreduce.training.calls import GroupPlans, held_by
from simreduce.training.executions import ExecutionNode
from simreduce.training.executor import Slows
from simreduce.training.interference import Channels
from simreduce.training.mesh import NCCL
from simreduce.training.mesh.held import held_by_stages
from simreduce.training.mesh.passes import Costs, MeshPasses
from simreduce.training.mesh.pipeline import load_schedule
from simreduce.training.mesh.write import write_ranks
from simreduce.training.sharded import DDP
from simreduce.training.shared_fabric import Job, RecordedJob
from simreduce.training.simulation import MemoryFit, fit_of, least_memory

T = TypeVar("T")

_SHARED = (
    "topology", "runtime", "calibration", "topology_overrides", "link_factors", "nccl", "call_cost",
)  # fmt: skip
"""Keys of a scenario that all jobs have in common."""
NOT_FREE = " are free"
"""The end of the fault of a machine that is too small for a job."""
_OF_MACHINES = ("topology", "topology_overrides", "link_factors", "fails")
"""Those that say what a machine is."""
MOST_REPEATED, _MOST_NODES, MOST_JOBS = 100_000, 1 << 20, 256
_TIME = quantity(units.duration, "a time", ("2 s", "10 min"), (0.0, 3.6e6, "at most 1000 h"))
INCAST, PERMUTATION, ALL_TO_ALL, READS, WRITES = PATTERNS = (
    "incast", "permutation", "all_to_all", "reads", "writes",
)  # fmt: skip
GPUS, HOSTS = ("gpus", "hosts")
_SIZE = quantity(units.size, "a size", ("64 MiB", "64 MB"), (1, 1 << 50, "of at least 1 B"))
_RATE = quantity(units.bandwidth, "a bandwidth", ("2 GB/s",), (1.0, inf, "at least 1 B/s"))
_WHICH = 'a list such as [0, 2], or a host list such as "n[0-3,8]"'
_EVERY = quantity(units.duration, "a time", ("10 min",), (1e-9, 3.6e6, "from 1 ns to 1000 h"))


def _nodes(value: object, words: str, *, count: bool) -> int | str:
    """How many nodes, if that may be said, or which, as a host list."""
    if count and type(value) is int and value > 0:
        return value
    if isinstance(value, list) and value and all(type(each) in (int, str) for each in value):
        return LINE.read(",".join(map(str, value)))
    if isinstance(value, str):
        return LINE.read(value)
    raise refusal(words, value)


_LISTED: tuple[Mapping[str, Any], ...] = (
    {"type": "array", "items": {"type": ["integer", "string"]}, "minItems": 1}, {"type": "string"},
)  # fmt: skip
_TO = Scalar(_WHICH, {"anyOf": [*_LISTED]}, partial(_nodes, words=_WHICH, count=False))
_NODES = Scalar(f"how many, {_WHICH}", {"anyOf": [{"type": "integer", "minimum": 1}, *_LISTED]},
                partial(_nodes, words=f"how many, {_WHICH}", count=True))  # fmt: skip
CHECKPOINT = Format(
    "checkpoint",
    "What a job writes to storage, by its hosts.",
    Field("size", _SIZE, "What a node writes each time.", required=True),
    Field("every", _EVERY, "The time from one to the next.", required=True),
    Field("to", _TO, "The nodes that store it.", required=True),
)
LOADER = Format(
    "reads",
    "What a job reads from storage, by its hosts, at random times.",
    Field("rate", _RATE, "Of all of its nodes together.", required=True),
    Field("size", _SIZE, "What is read at once.", 1 << 20, default_words="`1 MiB`"),
    Field("to", _TO, "The nodes that store it.", required=True),
)  # fmt: skip
JOB = Format(
    "job",
    "A job, which repeats a reduction, or the training step of its `[job.step]`.",
    Field("name", LINE, "Its name.", required=True),
    Field("nodes", _NODES, "The nodes that it has: which, in the order of its ranks, or how"
          " many of those that no other job names.", required=True),
    Field("workload", LINE, "As in a scenario.", required=True),
    Field("strategy", LINE, "How it reduces.", "nccl"),
    Field("step", Scalar("a table", {}, lambda value: value),
          "As in a scenario, for methods without shards, or with one `mesh`.",
          default_words="only reductions"),
    Field("start", _TIME, "When it begins.", 0.0, default_words="`0 s`"),
    Field("count", whole(1, MOST_REPEATED), "Repetitions.", 10),
    Field("checkpoint", TableOf(CHECKPOINT), "Its checkpoints.", default_words="none"),
    Field("reads", TableOf(LOADER), "Its data loader.", default_words="none"),
)  # fmt: skip
TRAFFIC = Format(
    "traffic",
    "Traffic that is no job's. With a `rate` messages come at random times, with `every` all at"
    " once each time, with neither each pair sends the next when the one before has arrived.",
    Field("name", LINE, "Its name.", required=True),
    Field("pattern", choice(PATTERNS, "pattern"), "`incast`: all nodes send to those of `to`;"
          " `permutation`: each to another one, drawn by `seed`; `all_to_all`: each to every other;"
          " `writes` (a checkpoint) and `reads` (a data loader): to and from those of `to`.",
          required=True),
    Field("nodes", _NODES, "The nodes that take part.", default_words="all"),
    Field("to", _TO, "The nodes at the other end, such as storage."),
    Field("ends", choice((GPUS, HOSTS), "end"), "Whether `gpus` or `hosts` send and receive.",
          default_words="`hosts` for `reads` and `writes`, else `gpus`"),
    Field("size", _SIZE, "A message.", required=True),
    Field("rate", _RATE, "Of all pairs together."),
    Field("every", _EVERY, "The time from one burst to the next."),
    Field("start", _TIME, "When it begins.", 0.0, default_words="`0 s`"),
    Field("seed", whole(0), "Where its random numbers begin.", 0),
)  # fmt: skip
JOBS = Format(
    "jobs",
    "Several jobs on one machine. Keys of a scenario that say what the machine is hold for all.",
    *(SCENARIO[key] for key in (*_SHARED, "title")),
    Field(
        "fails",
        OneOrMore(LINE),
        "Parts to lose, one of them at a time: the worst `node`, `nic`,"
        " `leaf`, `spine` or `core` for the jobs, or a part by its place, as `nic 5` (from 0), or"
        " by its name, as `spine2`, `n0.mlx5_0`, `n3`.",
        [],
        default_words="none",
    ),
    Field(
        "placement",
        FLAG,
        "Whether to look for nodes of all jobs on which the slowest one loses"
        " less, also of those that name theirs.",
        default=False,
    ),
    Field("job", TablesOf(JOB), "The jobs, at least one.", required=True),
    Field("traffic", TablesOf(TRAFFIC), "What else moves."),
)


@dataclass(frozen=True, slots=True)
class JobsQuestion:
    """Jobs on the machine of `setup`, beside traffic; each `does` something, in words, on
    its `nodes`; keys that are `fixed` say why there are no copies. `nominal` says which times rest
    on no measurement. `fits` has what the GPUs of each hold at least, None where it has no step.
    `fails` are parts to lose: `without` one of them this is another question, and so it is where
    jobs `place` their nodes, by name, elsewhere; None where they are to stay. `lost` are jobs and
    traffic that cannot go on without a part, and why.
    """

    path: Path
    title: str
    setup: Setup
    jobs: tuple[Job, ...]
    does: tuple[str, ...]
    nodes: tuple[tuple[int, ...], ...]
    streams: tuple[Stream, ...]
    fixed: Mapping[str, str]
    nominal: str
    fits: tuple[MemoryFit | None, ...]
    fails: tuple[str, ...]
    without: Callable[[str], JobsQuestion]
    place: Callable[[Sequence[Sequence[str]]], JobsQuestion] | None
    lost: Mapping[str, str]

    @property
    def misfits(self) -> list[str]:
        """The jobs whose GPUs have too little memory, and how much they need."""
        pairs = zip(self.jobs, self.fits, strict=True)
        return [f"{job.name} {fit.words}" for job, fit in pairs if fit and fit.fits is False]


def build_mix(
    path: Path, document: Mapping[str, Any], load: LoadMachine = load_topology
) -> JobsQuestion:
    """Jobs of which there can be copies. ScenarioError lists every fault, and those that name their
    nodes.
    """
    question = build_jobs(path, document, load)
    if question.fixed:
        raise ScenarioError([f"{path}: {key}: {why}" for key, why in question.fixed.items()])
    return question


def elsewhere(document: Mapping[str, Any], machine: str) -> dict[str, Any]:
    """The tables of jobs on another machine, without what they say of their own; classes of parts
    that fail are of every machine.
    """
    fails = document.get("fails")
    classes = [each for each in (fails if isinstance(fails, list) else [fails]) if each in CLASSES]
    kept = {k: v for k, v in document.items() if k not in _OF_MACHINES}
    return {**kept, "topology": machine, **({"fails": classes} if classes else {})}


def load_jobs(text: str) -> JobsQuestion:
    """The jobs in the file `text`; ScenarioError lists every fault."""
    return build_jobs(*read_scenario_file(text))


def build_jobs(
    path: Path, document: Mapping[str, Any], load: LoadMachine = load_topology, copies: int = 1,
    options: Mapping[str, str] | None = None, failed: str = NONE,
) -> JobsQuestion:  # fmt: skip
    """So many copies of the jobs of tables that were read from the file at `path`, and perhaps
    changed; ScenarioError lists every fault. For a key in `options`, faults name the text given
    there instead of the file. `failed` is the part that the machine lacks.
    """
    faults = Faults(str(path), options=options)
    values = JOBS.read(document, faults)
    shared = {key: document[key] for key in _SHARED if key in document}
    shared |= {"fails": failed}
    tables = values["job"] or []
    faults.check(values["job"] != [], "job", "must have one table at least")
    words = f"{copies * len(tables):,} jobs, and at most {MOST_JOBS} are simulated"
    if not faults.check(copies * len(tables) <= MOST_JOBS, "job", words):
        tables, copies = [], 1
    fixed = {
        f"job[{i}].nodes": "say how many nodes, not which, so that there can be several"
        for i, each in enumerate(tables)
        if isinstance(each["nodes"], str)
    }
    if values["placement"]:
        fixed["placement"] = "copies take the first nodes that are free; leave it out"
    if fixed and copies > 1:
        for name, why in fixed.items():
            faults.add(name, why)
        copies = 1
    owner = dict[str, str]()
    for key in ("job", "traffic"):
        for i, each in enumerate(values[key] or []):
            name, place = each["name"], f"{key}[{i}]"
            first = owner.setdefault(name, place)
            faults.check(name != "", f"{place}.name", "must not be empty")
            faults.check(
                not name or first == place, f"{place}.name", f"{first} is named {name!r} too"
            )
    machine = None
    try:
        machine = build_scenario(path, {**shared, "workload": "bytes:4"}, None, load, options).setup
    except ScenarioError as error:
        faults.problems += [each for each in error.problems if each not in faults.problems]
    if machine is not None and copies > 1:
        needs = copies * sum(each["nodes"] or 0 for each in tables)
        if needs > len(machine.layout.tasks):
            faults.add(
                "job",
                f"{copies} copies need {needs} nodes, and the machine has"
                f" {units.plural(len(machine.layout.tasks), 'node')}",
            )
            copies = 1
    raw = document["job"] if tables else []
    rows: list[tuple[int, Any]] = [
        (i, table) for i, table in enumerate(_copies(tables, copies, {*owner}))
    ]  # fmt: skip
    nodes: list[tuple[int, ...]] = [() for _ in rows]
    streams, lost = list[Stream](), dict[str, str]()
    if machine is not None:
        parts, traffic = _joined_nodes(machine), values["traffic"] or []
        if failed != NONE:
            every = (*(each for _, each in rows), *traffic)
            lost = {each["name"]: why for each in every if (why := _loss(each, machine, parts))}
            rows = [(i, each) for i, each in rows if each["name"] not in lost]
            faults.problems += [] if rows else lost.values()
        where = [f"job[{i}].nodes" if failed == NONE else each["name"] for i, each in rows]
        nodes = _share_out(where, [each for _, each in rows], machine, parts, faults)
        reads = _Streams(path, machine, parts, faults)
        for i, each in enumerate(traffic):
            if each["name"] not in lost:
                streams += reads.of_table(f"traffic[{i}]", each, each.faulty)
        for (i, each), mine in zip(rows, nodes, strict=True):
            streams += reads.of_job(i, f"job[{i % len(raw)}]", each, mine)
    # The machine is built once; where it has faults, jobs are read for theirs.
    built = partial(lambda whole, *_: whole, machine.topology) if machine else load
    own = {k: v for k, v in shared.items() if k == "topology" or k not in _OF_MACHINES}
    reader = _Reader(path, own, built, machine.layout if machine else None, faults)
    found = [
        job
        for (i, table), mine in zip(rows, nodes, strict=True)
        for job in reader.read(i % len(raw), table, raw[i % len(raw)], mine)
    ]
    for i, part in enumerate(values["fails"] or ()):
        if machine is not None and part not in (NONE, *CLASSES):
            at = f"[{i}]" * isinstance(document["fails"], list)
            faults.attempt(f"fails{at}", part_named, machine.topology, part)
    if faults.problems and machine is not None:  # else they are counted once times are known
        faults.problems += excess_messages(
            [(each, reads.flows) for each in streams],
            # No job ends sooner.
            max(
                (
                    job.start
                    + job.count * (job.setup.find_floor(job.plan).seconds if job.plan else 0.0)
                    for job, *_ in found
                ),
                default=0.0,
            ),
        )
    names = [job.setup.runtime.name for job, *_ in found]
    if other := next((i for i, name in enumerate(names) if name != names[0]), 0):
        faults.add(
            f"job[{other % len(raw)}].strategy",
            f"runs on {names[other]}, and {found[0][0].name} on {names[0]}; one fabric has one"
            " runtime, which `runtime` sets for all",
        )
    machine = faults.require(machine, ScenarioError)

    def on(nodes: Sequence[Sequence[str]]) -> JobsQuestion:
        tables = [{**job, "nodes": mine} for job, mine in zip(document["job"], nodes, strict=True)]
        return build_jobs(path, {**document, "job": tables}, load, 1, options)

    jobs, does, nominal, fits = zip(*found, strict=True)
    return JobsQuestion(
        path, values["title"] or path.stem, machine, jobs, does, tuple(nodes), tuple(streams),
        fixed, "; ".join(dict.fromkeys(filter(None, "; ".join(nominal).split("; ")))), fits,
        tuple(part for part in values["fails"] if part != NONE),
        partial(build_jobs, path, document, load, copies, options),
        on if values["placement"] else None,
        lost,
    )  # fmt: skip


def _copies(
    tables: Sequence[FieldValues], copies: int, taken: set[str]
) -> Iterator[Mapping[str, Any]]:
    """So many copies of tables, whose names are unlike those `taken`."""
    for i in range(copies):
        for each in tables:
            name = f"{each['name']} {i + 1}" if i else each["name"]
            while i and name in taken:
                name = f"{each['name']}, {name}"
            taken.add(name)
            yield {**each, "name": name}


Read = tuple[Job, str, str, MemoryFit | None]
"""A job, what it repeats, in words, which of its times are nominal, and what its GPUs hold."""


class _Reader:
    """Reads jobs, as scenarios with the keys that they share; on the `whole` machine, unless that
    has faults.
    """

    def __init__(
        self, path: Path, shared: Mapping[str, Any], load: LoadMachine, whole: Layout | None,
        faults: Faults,
    ) -> None:  # fmt: skip
        self.path, self.shared, self.load, self.whole = path, shared, load, whole
        self.faults = faults
        self._scenarios: dict[int, Scenario | None] = {}

    def read(
        self, i: int, table: FieldValues, given: Mapping[str, Any], nodes: Sequence[int]
    ) -> list[Read]:
        """The job of the i-th table on these nodes; none with a fault, which is noted."""
        own = {key: given[key] for key in ("workload", "step") if key in given}
        part = self.whole.on(nodes) if self.whole and nodes else None
        if has_mesh(own):
            if part is None:
                return []
            self.faults.check(
                "strategy" not in given,
                f"job[{i}].strategy",
                "NCCL chooses how the collectives of a mesh run",
            )
            meshes = self._noting(
                i, lambda: build_meshes(
                    self.path, {**self.shared, **own}, load=self.load, part=part
                )
            )  # fmt: skip
            read = partial(_mesh_job, table, meshes) if meshes else None
        else:
            own["strategies"] = [given.get("strategy", "nccl")]
            build = partial(build_scenario, self.path, {**self.shared, **own}, load=self.load)
            scenario = once(self._scenarios, i, partial(self._noting, i, build))
            if scenario is None or part is None:
                return []
            read = partial(_job, table, scenario.but(part=part))
        job = self.faults.attempt(f"job[{i}]", read) if read else None
        return [job] if job else []

    def _noting(self, i: int, build: Callable[[], T]) -> T | None:
        """What is built; its faults are those of the i-th job, unless all share them."""
        try:
            return build()
        except ScenarioError as error:
            for problem in error.problems:
                key, _, words = problem.removeprefix(f"{self.path}: ").partition(": ")
                root = key.partition(".")[0].partition("[")[0]
                missing = key == "workload" and words.startswith("missing")  # as it is of a job
                if root not in _SHARED and not missing:  # whose faults are said once
                    key = key.replace("strategies[0]", "strategy")
                    self.faults.add(f"job[{i}].{key}", words)
            return None


def _job(table: FieldValues, scenario: Scenario) -> Read:
    strategies, question = scenario.strategies or (), scenario.step
    if len(strategies) != 1:
        raise InputError("strategy: must be one strategy")
    strategy, setup = strategies[0], scenario.setup.running(strategies[0])
    times = table["start"] or 0.0, table["count"] or 1
    does = f"{scenario.workload.name}, {strategy.text}"
    nominal = setup.nominal([strategy.text], setup.calls_of(strategy, scenario.workload))
    if question is None:
        job = Job(table["name"], setup, setup.compile(strategy, scenario.workload), None, *times)
        return job, does, nominal, None
    if question.methods != (DDP,) or question.mode:
        raise InputError("step.method: jobs take steps whose gradients a strategy sums (ddp)")
    method, names = question.method(strategy, setup.layout), setup.layout.ranks
    job = Job(table["name"], setup, method.plan, (question.job, method), *times)
    sharding, held = question.numerics, question.activations
    memory = least_memory(DDP, question.job.model, sharding, len(names), held)
    return job, f"step of {does}", nominal, fit_of(memory, setup.topology, names)


def _mesh_job(table: FieldValues, meshes: Meshes) -> Read:
    if len(meshes.question.jobs) != 1:
        raise InputError("step: must be one mesh with one choice of each key")
    setup, job = meshes.setup.running(parse_strategy("nccl")), meshes.question.jobs[0]
    if job.tensor_all_reduce != NCCL:
        raise InputError("step.tensor_all_reduce: jobs take calls of NCCL; leave it out")
    passes = MeshPasses(job, Costs(meshes.setup, job.mesh))
    execution = write_ranks(job, passes, _MOST_NODES)
    if execution.notes:
        raise InputError(f"step: {execution.notes[0]}; at most {_MOST_NODES:,} are simulated")
    plans, held = GroupPlans(setup, "nccl"), dict[int, Channels]()

    def channels(node: ExecutionNode, group: tuple[int, ...]) -> Channels:
        plan = plans.of(node, group)
        return once(held, id(plan), lambda: held_by(setup, plan)) if plan else Channels(0)

    slows = Slows(channels, passes.loses)
    times = table["start"] or 0.0, table["count"] or 1
    schedule = load_schedule(job.schedule, job.mesh.pp, job.virtual, job.micros)
    return (
        Job(table["name"], setup, None, None, *times, RecordedJob(execution, plans, slows)),
        f"step of {meshes.model.name}, {job.mesh.text}",
        setup.nominal(["nccl"]),
        fit_of(
            max(held_by_stages(job, schedule), key=lambda each: each.peak),
            setup.topology,
            setup.layout.ranks,
        ),
    )


def _joined_nodes(machine: Setup) -> list[set[int]]:
    """The places of nodes that routes join, the largest part of the machine last."""
    ranks, wires = machine.layout.ranks, machine.topology.wires
    parts = joined(ranks, ((link.source, link.target) for link in wires))
    nodes = [*enumerate(machine.layout.tasks)]
    found = ({node for node, task in nodes if ranks[task[0]] in part} for part in parts)
    return sorted(filter(None, found), key=len)


def _loss(table: Mapping[str, Any], machine: Setup, parts: Sequence[set[int]]) -> str:
    """Why a job or traffic lacks nodes, as some have failed or are cut off; "" if it does not."""
    faults, shape, count = Faults(), machine.layout, table["nodes"]
    ends = (table, table.get("checkpoint") or {}, table.get("reads") or {})
    mine = [
        node for text in (count, *(end.get("to") for end in ends)) if isinstance(text, str)
        for node in read_places(faults, table["name"], shape, machine.topology, text, "its node ")
    ]  # fmt: skip
    # Of equal parts the later one, which has more of the machine.
    most = max(reversed(parts), key=lambda part: len(part.intersection(mine)))
    most, names = most if isinstance(count, str) else parts[-1], node_names(shape, machine.topology)
    for node in mine:
        faults.check(node in most, table["name"], f"its node {label(names[node])} is cut off")
    if isinstance(count, int):
        words = f"{units.plural(count, 'node')} asked for, and at most {len(most)} are joined"
        faults.check(count <= len(most), table["name"], words)
    alone = "pattern" in table and len(most.difference(mine)) < (1 if mine else 2)
    faults.check(isinstance(count, str) or not alone, table["name"], "nobody is left to send")
    return next(iter(faults.problems), "")


def _share_out(
    at: Sequence[str], tables: Sequence[Mapping[str, Any]], machine: Setup,
    parts: Sequence[set[int]], faults: Faults,
) -> list[tuple[int, ...]]:  # fmt: skip
    """The nodes of each job: those that it names, or the first that nobody does.

    These are in the smallest part of the machine with room for them, so that small jobs leave the
    others to large ones; of a job with storage in the largest.
    """
    shape, owner = machine.layout, dict[int, int]()
    found = [() if isinstance(each["nodes"], int) else _named(path, each["nodes"], machine, faults)
             for path, each in zip(at, tables, strict=True)]  # fmt: skip
    names = node_names(shape, machine.topology)
    for i, mine in enumerate(found):
        for node in mine:
            first = owner.setdefault(node, i)
            faults.check(first == i, at[i], f"job[{first}] has node {label(names[node])} too")
    free = [sorted(part.difference(owner)) for part in parts]
    for i, each in enumerate(tables):
        if isinstance(count := each["nodes"], int):
            have = free[-1:] if each["checkpoint"] or each["reads"] else free
            most = max(map(len, have))
            words = f"{units.plural(count, 'node')} asked for, and {most} of {len(shape.tasks)}"
            if faults.check(count <= most, at[i], f"{words}{NOT_FREE}"):
                part = next(part for part in have if len(part) >= count)
                found[i], part[:count] = tuple(part[:count]), ()
    return found


def _named(path: str, nodes: str | None, machine: Setup, faults: Faults) -> tuple[int, ...]:
    """The nodes of a host list, by their places."""
    if nodes is None:
        return ()
    return read_places(faults, path, machine.layout, machine.topology, nodes)


class _Streams:
    """Reads traffic on a machine from tables of the file `source`."""

    def __init__(
        self, source: Path, machine: Setup, parts: Sequence[set[int]], faults: Faults
    ) -> None:
        self._source, self._machine, self._parts, self._faults = source, machine, parts, faults
        at = machine.running(None)
        self.flows = TrafficFlows(Fabric(
            simpy.Environment(), at.topology, at.constants, at.runtime, at.disturbance, fixed=False
        ))  # fmt: skip

    def of_job(
        self, i: int, path: str, table: FieldValues, nodes: tuple[int, ...]
    ) -> Iterator[Stream]:
        """What the i-th job writes to storage and reads from it."""
        for key, pattern in (("checkpoint", WRITES), ("reads", READS)):
            if (given := table[key]) is not None and nodes:
                own = {"name": f"{table['name']}'s {key}", "pattern": pattern, "nodes": nodes}
                yield from self.of_table(
                    f"{path}.{key}",
                    {**given, **own, "ends": HOSTS, "start": table["start"], "seed": i},
                    given.faulty,
                )

    def of_table(
        self, path: str, table: Mapping[str, Any], faulty: Collection[str]
    ) -> Iterator[Stream]:
        """The traffic of a table; none with a fault, which is noted."""
        faults, shape = self._faults, self._machine.layout
        before, pattern, to = len(faults.problems), table["pattern"], table["to"]
        mine, count = table["nodes"], len(shape.tasks)
        if isinstance(mine, str):
            mine = _named(f"{path}.nodes", mine, self._machine, faults)
        elif not isinstance(mine, tuple):
            asked = count if mine is None else mine
            faults.check(
                asked <= count,
                f"{path}.nodes",
                f"{asked} asked for, and the machine has {units.plural(count, 'node')}",
            )
            mine = tuple(sorted(self._parts[-1])[:asked])
        others = _named(f"{path}.to", to, self._machine, faults)
        needs = pattern in (INCAST, READS, WRITES)
        faults.check(
            not needs or to is not None or "to" in faulty,
            f"{path}.to",
            f"missing; which nodes are at the other end of {pattern}",
        )
        faults.check(
            not pattern or needs or to is None, f"{path}.to", f"{pattern} has no other end"
        )
        rate, every = table.get("rate"), table.get("every")
        faults.check(None in (rate, every), f"{path}.every", "give one of rate and every")
        ends = table["ends"] or (HOSTS if pattern in (READS, WRITES) else GPUS)
        faults.check(
            ends != HOSTS or all(shape.hosts),
            path,
            'a node has no host; only GPUs can send, with ends = "gpus"',
        )
        if faulty or len(faults.problems) > before or None in (pattern, table["size"]):
            return
        pairs = _pairs(pattern, mine, others, ends, table["seed"] or 0, shape)
        if not faults.check(pairs, path, f"{pattern}: nobody is left to send to anybody"):
            return
        stream = Stream(
            table["name"], pairs, table["size"], rate, every, table["start"] or 0.0,
            table["seed"] or 0, f"{self._source}: {path}",
        )  # fmt: skip
        if problems := stream.problems(self.flows):
            faults.problems += problems
        else:
            yield stream


def _pairs(
    pattern: str, mine: Sequence[int], others: Sequence[int], ends: str, seed: int, layout: Layout
) -> tuple[tuple[str, str], ...]:
    """Who sends to whom."""
    gpus = [[layout.ranks[r] for r in task] for task in layout.tasks]
    here = [[host] for host in layout.hosts] if ends == HOSTS else gpus
    if others:
        far = [each for node in others for each in here[node]]
        near = [each for node in mine if node not in others for each in here[node]]
        pairs = [(each, far[i % len(far)]) for i, each in enumerate(near)]
        pairs = [(b, a) for a, b in pairs] if pattern == READS else pairs
    elif pattern == ALL_TO_ALL:
        pairs = [
            (a, b) for x, y in permutations(mine, 2) for a in here[x] for b in here[y]
        ]  # fmt: skip
    else:
        order = [mine[i] for i in np.argsort(uniform(seed, 0, len(mine)))]
        turned = zip(order, [*order[1:], *order[:1]], strict=True)
        pairs = [pair for x, y in turned if x != y for pair in zip(here[x], here[y], strict=False)]
    return tuple(pairs)
