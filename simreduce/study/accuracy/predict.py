"""Predicts published timings: one simulation for each size of a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from math import nan

import networkx as nx

from simreduce.computing.workers import in_processes
from simreduce.engine import NOMINAL, Calibration, Result
from simreduce.engine.calibrate.intervals import OTHER_NET
from simreduce.engine.setup import Setup
from simreduce.errors import InputError, NotFoldable, PlanTooLarge
from simreduce.files.formats import Faults
from simreduce.files.published import PublishedTable, published_tables
from simreduce.planners.algorithms import COLLECTIVES
from simreduce.planners.layouts import Layout, layout
from simreduce.planners.nccl import Settings, read_settings
from simreduce.planners.nccl.constants import CURRENT, OLDEST
from simreduce.planners.nccl.environment import read_assignments
from simreduce.planners.strategy import Strategy, parse_strategy
from simreduce.study.accuracy.points import Point
from simreduce.study.tune.simulate import folded
from simreduce.study.tune.sizes import DIVIDED, BenchCalls, busbw_factor, tensor
from simreduce.topology import Topology, load_topology, machine_of
from simreduce.workload import Workload

_TERMS = 3
"""Causes of a predicted time that a point keeps."""


@dataclass(frozen=True, slots=True)
class TablePoint(Point[PublishedTable]):
    """A published time of a table and its prediction, in seconds.

    `predicted` is NaN where there is no plan, and `refusal` says why.

    `low` and `high` are the ends of the 80 % interval, made of errors on other machines; `bound` is
    what any algorithm takes by the links. `terms` are the causes of the predicted time with their
    shares, largest first. `regret` is the part that a choice by prediction is slower than the best.
    """

    nbytes: int
    nodes: int
    ranks: int
    bracketed: bool
    strategy: str = ""
    low: float = 0.0
    high: float = 0.0
    bound: float = 0.0
    terms: tuple[tuple[str, float], ...] = ()
    refusal: str = ""
    regret: float = 0.0

    @property
    def machine(self) -> str:
        """The machine without the number of its copies and its network."""
        return machine_of(self.of.topology)

    @property
    def bus_bytes(self) -> float:
        """The size times the ratio of busbw to algbw, as nccl-tests counts it."""
        return self.nbytes * busbw_factor(self.of.collective, self.ranks)


def predict(
    tables: Sequence[PublishedTable],
    calibration: Calibration | None = None,
    workers: int = 1,
) -> Iterator[list[TablePoint]]:
    """The points of each table, in order."""
    return in_processes(partial(_points, calibration=calibration), tables, workers)


def _points(table: PublishedTable, calibration: Calibration | None) -> list[TablePoint]:
    setup = setup_for(table, calibration)
    nodes, bracketed = len(setup.layout.tasks), setup.link_class == OTHER_NET
    facts = nodes, setup.layout.n, bracketed
    found: list[TablePoint] = []
    too_large = ""
    for nbytes, seconds in table.times:
        point = TablePoint(table, seconds, nan, nbytes, *facts, refusal=too_large)
        if not too_large:
            try:
                point = _predict(point, setup)
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


def calls_of(table: PublishedTable, setup: Setup) -> BenchCalls:
    """How the calls of a table were issued."""
    threads = 1 if table.launcher == "process" else None
    return BenchCalls.by_threads(threads, setup.layout, table.iterations_timed, setup.nccl.release)


def _settings(table: PublishedTable) -> Settings:
    faults = Faults(table.name)
    given = dict(read_assignments([("settings", line) for line in table.settings], faults))
    if table.version:
        given["version"] = ".".join(map(str, min(max(table.version, OLDEST), CURRENT)))
    found = read_settings(given, faults, "")
    faults.raise_any()
    return found


@lru_cache(maxsize=32)
def part_of(machine: Topology, gpus: int | None) -> Layout:
    """The layout of the first `gpus` of every machine."""
    whole = layout(machine)
    some = [rank for task in whole.tasks for rank in task[:gpus]]
    return whole if gpus is None else whole.only(some)


def site_of(table: PublishedTable) -> str:
    """The site of a table: sites that measured one machine count as one."""
    return _sites().get(table.name, table.site)


@cache
def _sites() -> dict[str, str]:
    """The site of every published table, by name."""
    joined: nx.Graph[str] = nx.Graph()
    tables = published_tables()
    joined.add_edges_from((table.site, f"on {machine_of(table.topology)}") for table in tables)
    parts = enumerate(nx.connected_components(joined))
    first = {name: number for number, mine in parts for name in mine}
    names = {first[table.site]: table.site for table in reversed(tables)}
    return {table.name: names[first[table.site]] for table in tables}


def own_names(table: PublishedTable) -> frozenset[str]:
    """The machine and the site of a table, whose errors its own intervals leave out."""
    return frozenset((machine_of(table.topology), site_of(table)))


def strategy_for(collective: str) -> Strategy:
    """NCCL's strategy for a collective."""
    if collective not in COLLECTIVES:
        raise InputError(f"{collective}: no strategy does this")
    return parse_strategy("nccl", collective)


def workload_of(collective: str, nbytes: int, dtype: int, ranks: int) -> Workload:
    """One tensor of at most `nbytes`; every rank has an equal part where each has its own."""
    return tensor(nbytes, dtype, ranks if collective in DIVIDED else 1)


def _predict(point: TablePoint, setup: Setup) -> TablePoint:
    """The point with its prediction, of one of equal machines for all if a plan is too large."""
    table, shape = point.of, setup.layout
    collective, strategy = table.collective, strategy_for(table.collective)
    workload = workload_of(collective, point.nbytes, table.dtype, shape.n)
    if not workload.elements:
        raise InputError("there is less than an element for each rank")
    at = setup
    try:
        plan = at.compile(strategy, workload)
    except PlanTooLarge as why:
        at = folded(setup, why)
        plan = at.compile(strategy, workload)
    result = at.simulate(plan)
    seconds = calls_of(table, setup).seconds(plan, result, setup.constants.nccl)
    ends = setup.interval(point.nbytes, seconds, collective, without=own_names(table))
    low, high = ends or (0.0, 0.0)
    return replace(
        point,
        strategy=strategy.text,
        predicted=seconds,
        low=low,
        high=high,
        bound=result.floors.hardware,
        terms=_terms(result),
    )


def _terms(result: Result) -> tuple[tuple[str, float], ...]:
    """The causes along the critical path with their shares of the time, largest first."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for op in result.critical_path():
        for part in op.parts:
            seconds[f"{part.cause} {part.where}".strip()] += part.seconds
    largest = sorted(seconds.items(), key=lambda each: -each[1])[:_TERMS]
    return tuple((cause, share / result.seconds) for cause, share in largest)
