"""How far predictions are from published timings of NCCL.

Published values beside predictions: points, groups of them, and the figures of their errors.

Tables of timings are predicted here, one simulation for each size, and their errors are grouped by
collective, number of machines and size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from itertools import combinations
from typing import Any, Generic, NamedTuple, TypeVar

import networkx as nx
import numpy as np
import numpy.typing as npt

from simreduce.computing import grouped
from simreduce.computing.arrays import Floats
from simreduce.computing.workers import in_processes
from simreduce.engine import NOMINAL, Calibration, Result
from simreduce.engine.calibrate.intervals import OTHER_NET, SIZES, band_of
from simreduce.engine.setup import Setup
from simreduce.errors import InputError, NotFoldable, PlanTooLarge
from simreduce.files.formats.syntax import Faults
from simreduce.files.published import PublishedTable, published_tables
from simreduce.planners.algorithms import COLLECTIVES
from simreduce.planners.layouts import Layout, layout
from simreduce.planners.nccl import Settings, read_settings
from simreduce.planners.nccl.constants import CURRENT, OLDEST, version_text
from simreduce.planners.nccl.environment import read_assignments
from simreduce.planners.strategy import Strategy, parse_strategy
from simreduce.study.tune.simulate import folded
from simreduce.study.tune.sizes import BenchCalls, busbw_factor, parts_of, tensor
from simreduce.topology import Topology, load_topology, machine_of
from simreduce.units import MIB
from simreduce.workload import Workload

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Point(Generic[T]):
    """What was published of a call, a step or a table, and what is predicted of it, in one unit.

    `predicted` is NaN without a prediction.
    """

    of: T
    published: float
    predicted: float

    @property
    def error(self) -> float:
        """By what part the prediction is too high: 0.1 is 10 % too long. NaN without one."""
        return self.predicted / self.published - 1.0


P = TypeVar("P", bound=Point[Any])


@dataclass(frozen=True, slots=True)
class PointGroup(Generic[P]):
    """Predictions that are judged together, and their errors."""

    points: Sequence[P]

    @property
    def of(self) -> Any:
        """What the first point is of."""
        return self.points[0].of

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self.points)

    @property
    def errors(self) -> Floats:
        """The error of each point, with its sign."""
        return np.array([point.error for point in self.points])

    @property
    def median(self) -> float:
        """Half of the errors are below this."""
        return median_and_p90(self.errors)[0]

    @property
    def p90(self) -> float:
        """The 90th percentile of the errors."""
        return median_and_p90(self.errors)[1]

    @property
    def worst(self) -> float:
        """The largest error."""
        return float(np.abs(self.errors).max())

    @property
    def bias(self) -> float:
        """The median of signed errors: above 0, predictions are too high."""
        return float(np.median(self.errors))

    @property
    def chosen(self) -> P:
        """The point with the least prediction."""
        return min(self.points, key=lambda point: point.predicted)

    @property
    def regret(self) -> float:
        """By what part the chosen point was published to be longer than the shortest."""
        return self.chosen.published / min(point.published for point in self.points) - 1.0


def group_predicted(points: Iterable[P], key: Callable[[P], K]) -> dict[K, PointGroup[P]]:
    """The points that have a prediction, by their key."""
    found = grouped((key(point), point) for point in points if math.isfinite(point.predicted))
    return {each: PointGroup(mine) for each, mine in found.items()}


def median_and_p90(errors: npt.ArrayLike) -> tuple[float, float]:
    """The median and the 90th percentile of the errors' sizes."""
    sizes = np.abs(errors)
    return float(np.median(sizes)), float(np.quantile(sizes, 0.9))


def in_order(pairs: Iterable[tuple[Point[Any], Point[Any]]]) -> list[bool]:
    """Whether each pair is predicted in the published order."""
    return [(a.predicted < b.predicted) == (a.published < b.published) for a, b in pairs]


@dataclass(frozen=True)
class AccuracyComparison(Generic[P]):
    """The points of a chapter, and what else is known `about` them, by name.

    It is not `complete` if the command was stopped.
    """

    points: Sequence[P]
    complete: bool = True
    about: Mapping[str, Any] = field(default_factory=dict)


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
        point = TablePoint(table, seconds, math.nan, nbytes, *facts, refusal=too_large)
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
        given["version"] = version_text(min(max(table.version, OLDEST), CURRENT))
    return faults.require(read_settings(given, faults, ""))


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
    first = {
        name: number for number, mine in enumerate(nx.connected_components(joined)) for name in mine
    }
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
    return tensor(nbytes, dtype, parts_of(collective, ranks))


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
    parts = (part for op in result.critical_path() for part in op.parts)
    causes = grouped((f"{part.cause} {part.where}".strip(), part.seconds) for part in parts)
    shares = ((cause, sum(seconds) / result.seconds) for cause, seconds in causes.items())
    return tuple(sorted(shares, key=lambda each: -each[1])[:_TERMS])


TableGroup = PointGroup[TablePoint]


@dataclass(frozen=True, slots=True)
class Band:
    """Sizes from `low` to below `high` bytes, and the errors to reach there.

    The errors are of all-reduces, as a part of the measured time. None sets no limit.
    """

    name: str
    low: float
    high: float
    median: float | None = None
    p90: float | None = None


BANDS = (
    Band("< 64 KiB", 0, 64 << 10, 0.25),
    Band("64 KiB to 8 MiB", 64 << 10, 8 * MIB, 0.20),
    Band("8 to 64 MiB", 8 * MIB, 64 * MIB + 1, 0.15),
    Band("> 64 MiB", 64 * MIB + 1, math.inf, 0.10),
    Band("> 1 MiB", MIB + 1, math.inf, None, 0.35),
)
SLACK = {
    "all_reduce": 0.0,
    "all_gather": 0.05,
    "reduce_scatter": 0.05,
    "broadcast": 0.05,
    "reduce": 0.05,
    "all_to_all": 0.10,
    "send_receive": 0.10,
}
"""How far a collective's limits exceed an all-reduce's limits."""
BRACKETED_FACTOR = 2.0
"""Predictions over bracketed networks are at most this factor off in the median."""
ACCEPTED = 0.70, 0.90
"""The part of a cell's points that 80 % intervals are to cover."""
DIVERSE = 3
"""Machines of a cell from which its part says something: times of one machine err together."""
FASTER = 0.03
"""A published time this much below the bound shows that the machine's figures are wrong."""


def inside(group: TableGroup) -> float | None:
    """The part of the points with an interval that lie in it; None if there are none."""
    found = [point.low <= point.published <= point.high for point in group.points if point.high > 0]
    return sum(found) / len(found) if found else None


def interval(group: TableGroup) -> tuple[float | None, float | None]:
    """The medians of the intervals' ends as parts of the predicted time, or None."""
    ends = [(p.low / p.predicted, p.high / p.predicted) for p in group.points if p.high > 0]
    low, high = np.median(ends, axis=0).tolist() if ends else (None, None)
    return low, high


def count_machines(group: TableGroup) -> int:
    """Different machines of the points."""
    return len({point.machine for point in group.points})


def find_typical_miss(group: TableGroup) -> TablePoint:
    """The point at the 90th percentile of the errors: bad, and no outlier."""
    ordered = sorted(group.points, key=lambda point: abs(point.error))
    return ordered[int(0.9 * (len(ordered) - 1))]


@dataclass(frozen=True, slots=True)
class AccuracyCell(TableGroup):
    """One collective on one machine or on several, in one band of sizes."""

    band: Band

    @property
    def limits(self) -> tuple[float | None, float | None]:
        """The greatest median and 90th percentile that are accepted."""
        if self.points[0].bracketed:
            return None, None
        slack, limits = SLACK[self.of.collective], (self.band.median, self.band.p90)
        median, p90 = (None if limit is None else limit + slack for limit in limits)
        return median, p90

    @property
    def missed(self) -> bool:
        """Whether an error is greater than its limit.

        Over a bracketed network, it is the median of how often the longer of the two times is as
        long as the other.
        """
        if self.points[0].bracketed:
            return bool(np.exp(np.median(abs(np.log1p(self.errors)))) > BRACKETED_FACTOR)
        figures = zip((self.median, self.p90), self.limits, strict=True)
        return any(limit is not None and error > limit for error, limit in figures)


def cells(points: Iterable[TablePoint]) -> list[AccuracyCell]:
    """The errors by collective, number of machines and band; bracketed networks last."""
    groups = group_predicted(
        points, lambda p: (p.bracketed, list(SLACK).index(p.of.collective), p.nodes > 1)
    )
    return [
        AccuracyCell(mine, band)
        for key in sorted(groups)
        for band in BANDS
        if (mine := [p for p in groups[key].points if band.low <= p.nbytes < band.high])
    ]


class Coverage(NamedTuple):
    """Parts of points that lie within their 80 % intervals: of all, and of `unseen` ones.

    `unseen` points are on machines with no table that constants are fitted to; None without such
    points. `cells` have points on `DIVERSE` machines or more, the least part first; of `kept` ones
    it is from 70 to 90 %.
    """

    inside: float
    unseen: float | None
    cells: Sequence[AccuracyCell]
    kept: int


def cover(points: Iterable[TablePoint]) -> Coverage | None:
    """How often intervals cover the published times; bracketed networks do not count.

    None if no point has an interval.
    """
    mine = [point for point in points if point.high > 0 and not point.bracketed]
    if (whole := inside(PointGroup(mine))) is None:
        return None
    fitted = {machine_of(table.topology) for table in published_tables() if not table.held}
    unseen = inside(PointGroup([point for point in mine if point.machine not in fitted]))
    diverse = [c for c in cells(mine) if c.band.median and count_machines(c) >= DIVERSE]
    diverse.sort(key=lambda cell: inside(cell) or 0.0)
    kept = sum(ACCEPTED[0] <= (inside(cell) or 0.0) <= ACCEPTED[1] for cell in diverse)
    return Coverage(whole, unseen, diverse, kept)


def machines(points: Iterable[TablePoint]) -> list[TableGroup]:
    """The points of each machine, worst median first."""
    return sorted(
        group_predicted(points, lambda p: p.machine).values(), key=lambda group: -group.median
    )


NODES = ("one", "two", "more")
"""Machines that take part."""


def unseen(points: Iterable[TablePoint]) -> list[tuple[tuple[str, str, int], TableGroup]]:
    """The points by collective, which is "all_reduce" or "others", by machines and by the first
    size of the band: all-reduces first.
    """
    groups = group_predicted(
        points,
        lambda p: (
            p.of.collective if p.of.collective == "all_reduce" else "others",
            NODES[min(p.nodes, len(NODES)) - 1],
            SIZES[band_of(p.nbytes)],
        ),
    )
    return sorted(groups.items(), key=lambda e: (e[0][0], NODES.index(e[0][1]), e[0][2]))


class MachineOrder(NamedTuple):
    """Of `pairs` of machines, `right` are in the measured order.

    `regrets` are the parts by which the machine that is predicted fastest is slower than the
    fastest, for each collective, size and number of GPUs.
    """

    pairs: int
    right: int
    regrets: Sequence[float]


def order_machines(points: Iterable[TablePoint], least: int = MIB) -> MachineOrder:
    """The order of machines with as many GPUs by times of more than `least` bytes."""
    groups = group_predicted(
        (point for point in points if point.nbytes > least),
        lambda p: (p.of.collective, p.nbytes, p.ranks),
    ).values()
    found = [
        (
            group,
            in_order(
                (a, b)
                for a, b in combinations(group.points, 2)
                if a.of.topology != b.of.topology and a.published != b.published
            ),
        )
        for group in groups
    ]
    right = [each for _, mine in found for each in mine]
    return MachineOrder(len(right), sum(right), [group.regret for group, mine in found if mine])


def impossible(points: Iterable[TablePoint]) -> list[TablePoint]:
    """Predictions that are faster than any algorithm can be."""
    return [point for point in points if point.predicted < point.bound * (1 - 1e-9)]


def too_fast(points: Iterable[TablePoint]) -> list[TablePoint]:
    """Published points that are faster than the machine's figures allow."""
    return [point for point in points if point.published < point.bound * (1 - FASTER)]


def regrets(points: Iterable[TablePoint]) -> list[TablePoint]:
    """The predicted fastest of several settings of one size, with the regret.

    The regret is its measured time over the time of the measured fastest, less 1.
    """
    return [
        replace(group.chosen, regret=group.regret)
        for group in group_predicted(
            points, lambda p: (p.of.source, p.of.topology, p.of.gpus, p.of.collective, p.nbytes)
        ).values()
        if len({point.of.settings for point in group.points}) > 1
    ]
