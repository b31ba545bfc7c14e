"""Predicts published timings: one simulation for each size of a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from simreduce.accuracy.bounds import bound
from simreduce.algorithms import COLLECTIVES
from simreduce.calibrate.sure import OTHER_NET
from simreduce.engine import NOMINAL, Calibration, Result
from simreduce.errors import InputError, NotFoldable, PlanTooLarge
from simreduce.formats import Faults
from simreduce.layouts import Layout, layout
from simreduce.nccl import Settings, read_settings
from simreduce.nccl.settings import read_assignments
from simreduce.nccl.tables import CURRENT, OLDEST
from simreduce.plan import Plan
from simreduce.published import PublishedTable
from simreduce.setup import Setup
from simreduce.strategy import Strategy, parse_strategy
from simreduce.topology import Topology, load_topology, shipped
from simreduce.tune.bench import DIVIDED, posts, seconds_per_call, tensor
from simreduce.tune.folding import folded
from simreduce.workers import in_processes
from simreduce.workload import Workload

_OTHERWISE = {
    "all_gather": "ring",
    "reduce_scatter": "ring",
    "broadcast": "chain",
    "reduce": "chain",
    "all_to_all": "direct",
}
"""Strategies that stand in where NCCL has no planner."""
_TERMS = 3
"""Causes of a predicted time that a point keeps."""


@dataclass(frozen=True, slots=True)
class Point:
    """A published time and its prediction, in seconds. `predicted` is None where there is no plan,
    and `refusal` says why.

    `low` and `high` are the ends of the 80 % interval, made of errors on other machines; `bound` is
    what any algorithm takes on the machine. `terms` are the causes of the predicted time with their
    shares, largest first.
    """

    table: PublishedTable
    nbytes: int
    seconds: float
    nodes: int
    ranks: int
    bracketed: bool
    strategy: str = ""
    predicted: float | None = None
    low: float = 0.0
    high: float = 0.0
    bound: float = 0.0
    terms: tuple[tuple[str, float], ...] = ()
    refusal: str = ""

    @property
    def error(self) -> float:
        """How far off the prediction is: 0.1 is 10 % too long. NaN without a prediction."""
        return float("nan") if self.predicted is None else self.predicted / self.seconds - 1

    @property
    def machine(self) -> str:
        """The machine without the number of its copies and its network."""
        return machine_of(self.table.topology)

    @property
    def busbw_factor(self) -> float:
        """What busbw is to algbw, as nccl-tests counts it."""
        n, collective = self.ranks, self.table.collective
        if collective == "all_reduce":
            return 2 * (n - 1) / n
        return (n - 1) / n if collective in DIVIDED else 1.0


def machine_of(topology: str) -> str:
    """`abci-v` of `abci-vx32,nic=ib_hdr`."""
    head = topology.partition(",")[0]
    return head.rpartition("x")[0] if copies_of(topology) > 1 else head


def copies_of(topology: str) -> int:
    """32 of `abci-vx32,nic=ib_hdr`."""
    head = topology.partition(",")[0]
    name, _, count = head.rpartition("x")
    return int(count) if name and count.isdecimal() and head not in dict(shipped()) else 1


def predict(
    tables: Sequence[PublishedTable],
    calibration: Calibration | None = None,
    workers: int = 1,
    strategy: str = "nccl",
) -> Iterator[list[Point]]:
    """The points of each table, in order."""
    jobs = [_Job(table, calibration, strategy) for table in tables]
    yield from in_processes(_points, jobs, workers)


@dataclass(frozen=True, slots=True)
class _Job:
    table: PublishedTable
    calibration: Calibration | None
    strategy: str


def _points(job: _Job) -> list[Point]:
    table = job.table
    setup = setup_for(table, job.calibration)
    shape = setup.layout
    nodes = len(shape.tasks)
    first = Point(table, 0, 0.0, nodes, shape.n, setup.link_class == OTHER_NET)
    found: list[Point] = []
    too_large = ""
    for nbytes, seconds in table.times:
        point = replace(first, nbytes=nbytes, seconds=seconds, refusal=too_large)
        if not too_large:
            try:
                point = _predict(point, setup, job.strategy)
            except InputError as error:
                point = replace(point, refusal=error.problems[0])
                too_large = point.refusal if isinstance(error, PlanTooLarge | NotFoldable) else ""
        found.append(point)
    return found


def setup_for(table: PublishedTable, calibration: Calibration | None = None) -> Setup:
    """The machine, NCCL's version and settings of a table."""
    machine = load_topology(table.topology)
    shape = part_of(machine, table.gpus)
    return Setup(machine, "tensorflow", calibration or NOMINAL, part=shape, nccl=_settings(table))


def gpus_of_a_process(table: PublishedTable, shape: Layout) -> int:
    """GPUs that one process drives, 0 where each has its own."""
    return len(shape.tasks[0]) if table.launcher == "process" else 0


def _settings(table: PublishedTable) -> Settings:
    faults = Faults(table.name)
    given = dict(read_assignments([("settings", line) for line in table.settings], faults))
    major, _, rest = table.nccl.partition(".")
    minor = rest.partition(".")[0]
    if minor.isdecimal():
        oldest = max((int(major), int(minor)), OLDEST)
        given["version"] = ".".join(map(str, min(oldest, CURRENT)))
    found = read_settings(given, faults, "")
    faults.raise_any()
    return found


@lru_cache(maxsize=32)
def part_of(machine: Topology, gpus: int | None) -> Layout:
    """The layout of the first `gpus` of every machine."""
    whole = layout(machine)
    if gpus is None:
        return whole
    return whole.only([rank for task in whole.tasks for rank in task[:gpus]])


def strategy_for(collective: str, text: str = "nccl") -> Strategy:
    """NCCL's strategy for a collective, or what stands in for it."""
    known = COLLECTIVES.get(collective)
    if known is None:
        raise InputError(f"{collective}: no strategy does this")
    name = text if text.partition(":")[0] in known else _OTHERWISE[collective]
    return parse_strategy(name, collective)


def _predict(point: Point, setup: Setup, text: str) -> Point:
    collective, dtype, shape = point.table.collective, point.table.dtype, setup.layout
    strategy = strategy_for(collective, text)
    workload = tensor(point.nbytes, dtype, shape.n if collective in DIVIDED else 1)
    plan, result = _simulate(setup, strategy, workload)
    gpus = gpus_of_a_process(point.table, shape)
    seconds = seconds_per_call(plan, result, point.table.iterations_timed)
    seconds = setup.constants.nccl.per_call(seconds, gpus, posts(plan))
    ends = setup.interval(point.nbytes, seconds, collective, without=point.machine)
    low, high = ends or (0.0, 0.0)
    return replace(
        point,
        strategy=strategy.text,
        predicted=seconds,
        low=low,
        high=high,
        bound=bound(setup.topology, shape, collective, point.nbytes),
        terms=_terms(result),
    )


def _simulate(setup: Setup, strategy: Strategy, workload: Workload) -> tuple[Plan, Result]:
    """The plan and its prediction, with one of equal machines for all where a plan is too large."""
    if not workload.elements:
        raise InputError("there is less than an element for each rank")
    try:
        plan = setup.compile(strategy, workload)
    except PlanTooLarge as why:
        setup = folded(setup, why)
        plan = setup.compile(strategy, workload)
    return plan, setup.simulate(plan)


def _terms(result: Result) -> tuple[tuple[str, float], ...]:
    """The causes along the critical path with their shares of the time, largest first."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for op in result.critical_path():
        for part in op.parts:
            seconds[f"{part.cause} {part.where}".strip()] += part.seconds
    largest = sorted(seconds.items(), key=lambda each: -each[1])[:_TERMS]
    return tuple((cause, share / result.seconds) for cause, share in largest)
