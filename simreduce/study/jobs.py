"""Several jobs on one machine, and traffic that is no job's, as a TOML file with `[[job]]` tables.

Each job is read as a scenario of its own with the keys that all share, on the nodes that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from simreduce import units
from simreduce.computing.arrays import uniform
from simreduce.engine.background import Stream
from simreduce.engine.setup import Setup
from simreduce.errors import InputError, ScenarioError
from simreduce.files.formats import (
    LINE,
    PLACES,
    Faults,
    Field,
    Format,
    ListOf,
    Scalar,
    TableOf,
    TablesOf,
    Values,
    choice,
    quantity,
    whole,
)
from simreduce.planners.layouts import Layout
from simreduce.planners.strategy import parse_strategy
from simreduce.study.scenario import (
    SCENARIO,
    LoadMachine,
    Meshes,
    Scenario,
    build_meshes,
    build_scenario,
    has_mesh,
    read_scenario_file,
)
from simreduce.topology import load_topology
from simreduce.training.executions import Node
from simreduce.training.group_plans import GroupPlans
from simreduce.training.jobs import Job, JobOutcome, Recorded, simulate_jobs
from simreduce.training.mesh.costs import Costs, channels_of
from simreduce.training.mesh.job import NCCL
from simreduce.training.mesh.passes import Passes
from simreduce.training.mesh.pipeline import load_schedule
from simreduce.training.mesh.write import write_ranks
from simreduce.training.sharded.question import DDP

T = TypeVar("T")
_SHARED = (
    "topology", "runtime", "calibration", "topology_overrides", "link_factors", "fails", "nccl",
    "call_cost",
)  # fmt: skip
"""Keys of a scenario that all jobs have in common."""
_MOST, _MOST_NODES = 100_000, 1 << 20
_TIME = quantity(units.duration, "a time", ("2 s", "10 min"), (0.0, 3.6e6, "at most 1000 h"))
INCAST, PERMUTATION, ALL_TO_ALL, READS, WRITES = PATTERNS = (
    "incast", "permutation", "all_to_all", "reads", "writes",
)  # fmt: skip
GPUS, HOSTS = ("gpus", "hosts")
_SIZE = quantity(units.size, "a size", ("64 MiB", "64 MB"), (1, 1 << 50, "of at least 1 B"))
_TO = ListOf(whole(0), 1)
CHECKPOINT = Format(
    "checkpoint",
    "What a job writes to storage, by its hosts.",
    Field("size", _SIZE, "What a node writes each time.", required=True),
    Field("every", _TIME, "The time from one to the next.", required=True),
    Field("to", _TO, "The nodes that store it.", required=True),
)
LOADER = Format(
    "reads",
    "What a job reads from storage, by its hosts, at random times.",
    Field("rate", quantity(units.bandwidth, "a bandwidth", ("2 GB/s",)), "Of all of its nodes"
          " together.", required=True),
    Field("size", _SIZE, "What is read at once.", 1 << 20, default_words="`1 MiB`"),
    Field("to", _TO, "The nodes that store it.", required=True),
)  # fmt: skip
JOB = Format(
    "job",
    "A job, which repeats a reduction, or the training step of its `[job.step]`.",
    Field("name", LINE, "Its name.", required=True),
    Field("nodes", PLACES, "The nodes that it has, from 0 on: which, or how many of those that no"
          " other job names.", required=True),
    Field("workload", LINE, "As in a scenario.", required=True),
    Field("strategy", LINE, "How it reduces.", "nccl"),
    Field("step", Scalar("a table", {}, lambda value: value),
          "As in a scenario, for methods without shards, or with one `mesh`.",
          default_words="only reductions"),
    Field("start", _TIME, "When it begins.", 0.0, default_words="`0 s`"),
    Field("count", whole(1, _MOST), "Repetitions.", 10),
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
    Field("nodes", PLACES, "The nodes that take part.", default_words="all"),
    Field("to", _TO, "The nodes at the other end, such as storage."),
    Field("ends", choice((GPUS, HOSTS), "end"), "Whether `gpus` or `hosts` send and receive.",
          default_words="`hosts` for `reads` and `writes`, else `gpus`"),
    Field("size", _SIZE, "A message.", required=True),
    Field("rate", quantity(units.bandwidth, "a bandwidth", ("10 GB/s",)), "Of all pairs together."),
    Field("every", _TIME, "The time from one burst to the next."),
    Field("start", _TIME, "When it begins.", 0.0, default_words="`0 s`"),
    Field("seed", whole(0), "Where its random numbers begin.", 0),
)  # fmt: skip
JOBS = Format(
    "jobs",
    "Several jobs on one machine. Keys of a scenario that say what the machine is hold for all.",
    *(SCENARIO[key] for key in (*_SHARED, "title")),
    Field("job", TablesOf(JOB), "The jobs, at least one.", required=True),
    Field("traffic", TablesOf(TRAFFIC), "What else moves."),
)


@dataclass(frozen=True, slots=True)
class JobsQuestion:
    """Jobs on the machine of `setup`, beside traffic; each `does` something, in words, on
    its `nodes`. Some `named` theirs.
    """

    name: str
    title: str
    setup: Setup
    jobs: tuple[Job, ...]
    does: tuple[str, ...]
    nodes: tuple[tuple[int, ...], ...]
    streams: tuple[Stream, ...]
    named: tuple[str, ...] = ()


class Fit(NamedTuple):
    """How many copies of a mix of jobs fit where none may take more than `promise` times as long as
    alone, and why no more do, once that is `final`. The `question` has those that fit, or one copy
    if none does.
    """

    question: JobsQuestion
    outcomes: tuple[JobOutcome, ...]
    promise: float
    copies: int
    limit: str
    final: bool


def fit_jobs(text: str, promise: float) -> Iterator[Fit]:
    """Copy after copy of the jobs in the file `text`, on the first nodes that are free; the last
    has the answer. ScenarioError lists every fault, and jobs that name their nodes.
    """
    question, copies, alone = load_jobs(text), 0, dict[str, float]()
    if question.named:
        words = "say how many nodes, not which, so that there can be several"
        raise ScenarioError(f"{question.name}: {', '.join(question.named)}: {words}")
    found = None
    while True:
        # A copy has the nodes that it had among fewer, so its time alone is known.
        outcomes = simulate_jobs(question.jobs, question.streams, alone)
        alone = {each.job.name: each.alone for each in outcomes}
        slow = max(outcomes, key=lambda each: each.slowdown)
        if slow.slowdown > promise:
            limit = f"with {copies + 1}, {slow.job.name} takes {slow.slowdown:.2f} times as long"
            one = found or Fit(question, outcomes, promise, 0, "", final=True)
            yield one._replace(limit=limit, final=True)
            return
        copies += 1
        used, whole = sum(map(len, question.nodes)), len(question.setup.layout.tasks)
        full = used // copies > whole - used
        found = Fit(question, outcomes, promise, copies, f"{used} of {whole} nodes are taken", full)
        yield found
        if full:
            return
        question = load_jobs(text, copies=copies + 1)


def load_jobs(text: str, load: LoadMachine = load_topology, copies: int = 1) -> JobsQuestion:
    """The jobs in the file `text`, so many copies of them; ScenarioError lists every fault."""
    path, document = read_scenario_file(text)
    faults = Faults(str(path))
    values = JOBS.read(document, faults)
    shared = {key: document[key] for key in _SHARED if key in document}
    tables = values["job"] or []
    if values["job"] == []:
        faults.add("job", "must have one table at least")
    names = [each["name"] for each in (*tables, *(values["traffic"] or []))]
    named = tuple(each["name"] for each in tables if isinstance(each["nodes"], tuple))
    for name in dict.fromkeys(each for each in names if each and names.count(each) > 1):
        faults.add("job", f"two are named {name!r}")
    machine = faults.attempt(
        "", build_scenario, path, {**shared, "workload": "bytes:4"}, None, load
    )
    tables = [
        {**each, "name": f"{each['name']} {i + 1}" if i else each["name"]}
        for i in range(copies)
        for each in tables
    ]
    raw = document["job"] * copies if tables else []
    whole = machine.setup.layout if machine else None
    nodes: list[tuple[int, ...]] = [() for _ in tables]
    streams = list[Stream]()
    if whole is not None:
        nodes = _share_out([each["nodes"] for each in tables], len(whole.tasks), faults)
        streams = _streams(values["traffic"] or [], whole, faults)
        streams += _stored(tables, nodes, whole, faults)
    reader, found = _Reader(path, shared, load, whole, faults), list[Read]()
    for i, (table, given, mine) in enumerate(zip(tables, raw, nodes, strict=True)):
        found += reader.read(i % (len(raw) // copies), table, given, mine)
    faults.raise_any(ScenarioError)
    assert machine is not None  # noqa: S101 - else there is a fault
    return JobsQuestion(
        path.stem, values["title"] or path.stem, machine.setup, tuple(job for job, _ in found),
        tuple(does for _, does in found), tuple(nodes), tuple(streams), named,
    )  # fmt: skip


Read = tuple[Job, str]
"""A job, and what it repeats, in words."""


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
        self, i: int, table: Values, given: Mapping[str, Any], nodes: Sequence[int]
    ) -> list[Read]:
        """The job of the i-th table on these nodes; none with a fault, which is noted."""
        own = {key: given[key] for key in ("workload", "step") if key in given}
        tasks = self.whole.tasks if self.whole else ()
        ranks = [rank for node in nodes if node < len(tasks) for rank in tasks[node]]
        if has_mesh(own):
            if not ranks:
                return []
            if "strategy" in given:
                words = "NCCL chooses how the collectives of a mesh run"
                self.faults.add(f"job[{i}].strategy", words)
            meshes = self._noting(
                i, lambda: build_meshes(
                    self.path, {**self.shared, **own}, load=self.load, ranks=ranks
                )
            )  # fmt: skip
            read = partial(_mesh_job, table, meshes) if meshes else None
        else:
            own["strategies"] = [given.get("strategy", "nccl")]
            if i not in self._scenarios:
                self._scenarios[i] = self._noting(
                    i, lambda: build_scenario(self.path, {**self.shared, **own}, load=self.load)
                )
            scenario = self._scenarios[i]
            if scenario is None or self.whole is None or not ranks:
                return []
            read = partial(_job, table, scenario.but(part=self.whole.only(ranks)))
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
                if root not in self.shared:  # whose faults are said once
                    key = key.replace("strategies[0]", "strategy")
                    self.faults.add(f"job[{i}].{key}", words)
            return None


def _job(table: Values, scenario: Scenario) -> Read:
    strategies, question = scenario.strategies or (), scenario.step
    if len(strategies) != 1:
        raise InputError("strategy: must be one strategy")
    strategy, setup = strategies[0], scenario.setup.running(strategies[0])
    times = table["start"] or 0.0, table["count"] or 1
    does = f"{scenario.workload.name}, {strategy.text}"
    if question is None:
        plan = setup.compile(strategy, scenario.workload)
        return Job(table["name"], setup, plan, None, *times), does
    if question.methods != (DDP,) or question.mode:
        raise InputError("step.method: jobs take steps whose gradients a strategy sums (ddp)")
    method = question.method(strategy, setup.layout)
    step = question.job, method
    return Job(table["name"], setup, method.plan, step, *times), f"step of {does}"


def _mesh_job(table: Values, meshes: Meshes) -> Read:
    if len(meshes.question.jobs) != 1:
        raise InputError("step: must be one mesh with one choice of each key")
    setup, job = meshes.setup.running(parse_strategy("nccl")), meshes.question.jobs[0]
    if job.tensor_all_reduce != NCCL:
        raise InputError("step.tensor_all_reduce: jobs take calls of NCCL; leave it out")
    costs = Costs(meshes.setup, job.mesh)
    schedule = load_schedule(job.schedule, job.mesh.pp, job.virtual, job.micros)
    execution = write_ranks(job, schedule, Passes(job, costs), _MOST_NODES)
    if execution.notes:
        raise InputError(f"step: {execution.notes[0]}; at most {_MOST_NODES:,} are simulated")
    plans = GroupPlans(setup, "nccl")

    def slows(node: Node, group: tuple[int, ...]) -> float:
        plan = plans.of(node, group)
        return job.slows(channels_of(plan)) if plan else 0.0

    times = table["start"] or 0.0, table["count"] or 1
    does = f"step of {meshes.model.name}, {job.mesh.text}"
    recorded = Recorded(execution, plans, slows)
    return Job(table["name"], setup, None, None, *times, recorded), does


def _share_out(
    asked: Sequence[int | tuple[int, ...] | None], count: int, faults: Faults
) -> list[tuple[int, ...]]:
    """The nodes of each job: those that it names, or the first that nobody does."""
    named = [each for nodes in asked if isinstance(nodes, tuple) for each in nodes]
    for each in sorted({node for node in named if node >= count}):
        faults.add("job", f"no node {each}: the machine has {units.plural(count, 'node')}")
    for each in sorted({node for node in named if named.count(node) > 1}):
        faults.add("job", f"two jobs have node {each}")
    free = [node for node in range(count) if node not in named]
    found = []
    for i, nodes in enumerate(asked):
        if isinstance(nodes, int):
            if nodes > len(free):
                words = f"{nodes} asked for, and {len(free)} of {count} are free"
                faults.add(f"job[{i}].nodes", words)
            mine, free = tuple(free[:nodes]), free[nodes:]
            found.append(mine)
        else:
            found.append(nodes or ())
    return found


def _streams(tables: Sequence[Values], layout: Layout, faults: Faults) -> list[Stream]:
    found = []
    for i, table in enumerate(tables):
        if None in (table["name"], table["pattern"], table["size"]):
            continue
        if table["rate"] is not None and table["every"] is not None:
            faults.add(f"traffic[{i}].every", "give one of rate and every")
        pairs = faults.attempt(f"traffic[{i}]", pairs_of, table, layout)
        if pairs is not None:
            found.append(
                Stream(table["name"], pairs, table["size"], table["rate"], table["every"],
                       table["start"] or 0.0, table["seed"] or 0)
            )  # fmt: skip
    return found


def _stored(
    tables: Sequence[Values], nodes: Sequence[tuple[int, ...]], layout: Layout, faults: Faults
) -> Iterator[Stream]:
    """What jobs write to storage and read from it."""
    for i, (table, mine) in enumerate(zip(tables, nodes, strict=True)):
        for key, pattern in (("checkpoint", WRITES), ("reads", READS)):
            given = table[key]
            if given is None or given["to"] is None or not mine:
                continue
            asked = {**given, "pattern": pattern, "nodes": mine, "ends": HOSTS, "seed": 0}
            pairs = faults.attempt(f"job[{i}].{key}", pairs_of, asked, layout)
            if pairs is not None and given["size"] is not None:
                yield Stream(f"{table['name']}'s {key}", pairs, given["size"], given.get("rate"),
                             given.get("every"), table["start"] or 0.0, i)  # fmt: skip


def pairs_of(table: Mapping[str, Any], layout: Layout) -> tuple[tuple[str, str], ...]:
    """Who sends to whom; InputError if nodes are not there, or nobody is left to send to."""
    pattern, count = table["pattern"], len(layout.tasks)
    nodes = table["nodes"] or count
    mine = range(min(nodes, count)) if isinstance(nodes, int) else nodes
    others = table["to"] or []
    if lost := [each for each in (*mine, *others) if each >= count]:
        raise InputError(f"no node {lost[0]}: the machine has {units.plural(count, 'node')}")
    if needs := pattern in (INCAST, READS, WRITES):
        if not others:
            raise InputError(f"to: missing; which nodes are at the other end of {pattern}")
    elif others:
        raise InputError(f"to: {pattern} has no other end")
    ends = table["ends"] or (HOSTS if pattern in (READS, WRITES) else GPUS)
    here = [[layout.ranks[r] for r in layout.tasks[node]] for node in range(count)]
    if ends == HOSTS:
        here = [[host] for host in layout.hosts]
        if not all(layout.hosts):
            raise InputError('ends: a node has no host; say ends = "gpus"')
    if needs:
        far = [each for node in others for each in here[node]]
        near = [each for node in mine if node not in others for each in here[node]]
        pairs = [(each, far[i % len(far)]) for i, each in enumerate(near)]
        pairs = [(b, a) for a, b in pairs] if pattern == READS else pairs
    elif pattern == ALL_TO_ALL:
        pairs = [
            (a, b) for x, y in permutations(mine, 2) for a in here[x] for b in here[y]
        ]  # fmt: skip
    else:
        order = [mine[i] for i in np.argsort(uniform(table["seed"] or 0, 0, len(mine)))]
        turned = zip(order, [*order[1:], *order[:1]], strict=True)
        pairs = [pair for x, y in turned if x != y for pair in zip(here[x], here[y], strict=False)]
    if not pairs:
        raise InputError(f"{pattern}: nobody is left to send to anybody")
    return tuple(pairs)
