"""Errors of predictions, by collective, number of machines and size.

How far off differences of two predictions are, by pairs of sizes of one published table.

Each pair stands for two ways to move the same bytes: in calls of one size, or of the other. So both
times are seconds of a byte, of the same machine, library and constants.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from operator import itemgetter
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from simreduce.engine.calibrate.sure import (
    SIZES,
    Errors,
    NcclCall,
    band_of,
    difference_error,
    published_errors,
    spread,
)
from simreduce.files.published import PublishedTable, published_tables
from simreduce.study.accuracy.predict import Point, own_names, setup_for
from simreduce.topology import machine_of

K = TypeVar("K")
T = TypeVar("T")
MIB = 1 << 20


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


@dataclass(frozen=True, slots=True)
class Group:
    """Errors of some points.

    `median` and `p90` are of |predicted / measured - 1|, `bias` is the median of predicted /
    measured - 1, `inside` the part of the points within the interval.

    `factor` is the median of how often the longer of the two times is as long as the other. `low`
    and `high` are the medians of the interval's ends as parts of the predicted time.
    """

    machines: int
    tables: int
    points: int
    median: float
    p90: float
    bias: float
    factor: float
    inside: float | None
    low: float | None
    high: float | None


def median_and_p90(errors: npt.ArrayLike) -> tuple[float, float]:
    """The median and the 90th percentile of the errors' sizes."""
    sizes = np.abs(errors)
    return float(np.median(sizes)), float(np.quantile(sizes, 0.9))


def summarize(points: Iterable[Point]) -> Group | None:
    """The errors of the points that have a prediction; None if there are none."""
    shown = [point for point in points if point.predicted is not None]
    if not shown:
        return None
    errors = np.array([point.error for point in shown])
    median, p90 = median_and_p90(errors)
    sure = [p for p in shown if p.high > 0]
    inside = [p.low <= p.seconds <= p.high for p in sure]
    ends = [(p.low / p.predicted, p.high / p.predicted) for p in sure if p.predicted]
    low, high = np.median(ends, axis=0).tolist() if ends else (None, None)
    return Group(
        machines=len({point.machine for point in shown}),
        tables=len({point.table.name for point in shown}),
        points=len(shown),
        median=median,
        p90=p90,
        bias=float(np.median(errors)),
        factor=float(np.exp(np.median(abs(np.log(1 + errors))))),
        inside=sum(inside) / len(inside) if inside else None,
        low=low,
        high=high,
    )


@dataclass(frozen=True, slots=True)
class AccuracyCell:
    """One collective on one machine or on several, in one band of sizes."""

    collective: str
    several: bool
    bracketed: bool
    band: Band
    group: Group

    @property
    def limits(self) -> tuple[float | None, float | None]:
        """The greatest median and 90th percentile that are accepted."""
        if self.bracketed:
            return None, None
        slack = SLACK[self.collective]
        median, p90 = (
            None if limit is None else limit + slack for limit in (self.band.median, self.band.p90)
        )
        return median, p90

    @property
    def missed(self) -> bool:
        """Whether an error is greater than its limit."""
        if self.bracketed:
            return self.group.factor > BRACKETED_FACTOR
        median, p90 = self.limits
        found = self.group
        return (median is not None and found.median > median) or (
            p90 is not None and found.p90 > p90
        )


def cells(points: Sequence[Point]) -> list[AccuracyCell]:
    """The errors by collective, number of machines and band; bracketed networks last."""
    groups = _by(
        points, lambda p: (p.bracketed, list(SLACK).index(p.table.collective), p.nodes > 1)
    )
    found = []
    for (bracketed, place, several), mine in sorted(groups.items()):
        for band in BANDS:
            group = summarize(p for p in mine if band.low <= p.nbytes < band.high)
            if group is not None:
                found.append(AccuracyCell(list(SLACK)[place], several, bracketed, band, group))
    return found


@dataclass(frozen=True, slots=True)
class Coverage:
    """Parts of points that lie within their 80 % intervals: of all, and of `unseen` ones.

    `unseen` points are on machines with no table that constants are fitted to; None without such
    points. `cells` have points on `DIVERSE` machines or more.
    """

    inside: float
    unseen: float | None
    cells: tuple[AccuracyCell, ...]

    @property
    def kept(self) -> int:
        """Cells whose part is from 70 to 90 %."""
        return sum(ACCEPTED[0] <= (cell.group.inside or 0.0) <= ACCEPTED[1] for cell in self.cells)

    @property
    def worst(self) -> AccuracyCell | None:
        """The cell of the least part."""
        return min(self.cells, key=lambda cell: cell.group.inside or 0.0, default=None)


def cover(points: Sequence[Point]) -> Coverage | None:
    """How often intervals cover the published times; bracketed networks do not count.

    None if no point has an interval.
    """
    mine = [point for point in points if point.high > 0 and not point.bracketed]
    whole = summarize(mine)
    if whole is None or whole.inside is None:
        return None
    fitted = {machine_of(table.topology) for table in published_tables() if not table.held}
    unseen = summarize(point for point in mine if point.machine not in fitted)
    diverse = [c for c in cells(mine) if c.band.median and c.group.machines >= DIVERSE]
    return Coverage(whole.inside, unseen.inside if unseen else None, tuple(diverse))


class MachineErrors(NamedTuple):
    """The errors on a machine, and a point at which it is off most."""

    name: str
    group: Group
    off_most: Point


def machines(points: Sequence[Point]) -> list[MachineErrors]:
    """Machines with their errors, worst median first."""
    found = []
    for name, mine in _by(points, lambda p: p.machine).items():
        group = summarize(mine)
        if group is not None:
            found.append(MachineErrors(name, group, _typical_miss(mine)))
    return sorted(found, key=lambda each: -each.group.median)


def _typical_miss(points: Iterable[Point]) -> Point:
    """The point at the 90th percentile of the errors: bad, and no outlier."""
    ordered = sorted((p for p in points if p.predicted is not None), key=lambda p: abs(p.error))
    return ordered[int(0.9 * (len(ordered) - 1))]


NODES = ("one", "two", "more")
"""Machines that take part."""


@dataclass(frozen=True, slots=True)
class Unseen:
    """Errors of times that took no part in anything that predicted them.

    Of one collective, or "others", on so many `machines`, in the band that begins at `size` bytes.
    """

    collective: str
    machines: str
    size: int
    group: Group


def unseen(points: Sequence[Point]) -> list[Unseen]:
    """The errors of all-reduces, then of the others, by machines and bands of sizes."""
    groups = _by(
        points,
        lambda p: (
            p.table.collective != "all_reduce", min(p.nodes, len(NODES)), band_of(p.nbytes)
        ),
    )  # fmt: skip
    found = []
    for (others, nodes, band), mine in sorted(groups.items()):
        if group := summarize(mine):
            name = "others" if others else "all_reduce"
            found.append(Unseen(name, NODES[nodes - 1], SIZES[band], group))
    return found


@dataclass(frozen=True, slots=True)
class MachineOrder:
    """Of `pairs` of machines, `right` are in the measured order.

    `regrets` are the parts by which the machine that is predicted fastest is slower than the
    fastest, for each collective, size and number of GPUs.
    """

    pairs: int
    right: int
    regrets: tuple[float, ...]


def order_machines(points: Iterable[Point], least: int = MIB) -> MachineOrder:
    """The order of machines with as many GPUs by times of more than `least` bytes."""
    shown = [(p, p.predicted) for p in points if p.predicted is not None and p.nbytes > least]
    groups = _by(shown, lambda each: (each[0].table.collective, each[0].nbytes, each[0].ranks))
    pairs, right, slower = 0, 0, list[float]()
    for mine in groups.values():
        apart = [
            (before < after) == (a.seconds < b.seconds)
            for (a, before), (b, after) in combinations(mine, 2)
            if a.table.topology != b.table.topology and a.seconds != b.seconds
        ]
        pairs += len(apart)
        right += sum(apart)
        if apart:
            chosen, _ = min(mine, key=itemgetter(1))
            slower.append(chosen.seconds / min(p.seconds for p, _ in mine) - 1)
    return MachineOrder(pairs, right, tuple(slower))


def impossible(points: Iterable[Point]) -> list[Point]:
    """Predictions that are faster than any algorithm can be."""
    return [p for p in points if p.predicted is not None and p.predicted < p.bound * (1 - 1e-9)]


def too_fast(points: Iterable[Point]) -> list[Point]:
    """Published points that are faster than the machine's figures allow."""
    return [p for p in points if p.seconds < p.bound * (1 - FASTER)]


def regrets(points: Iterable[Point]) -> list[Point]:
    """The predicted fastest of several settings of one size, with the regret.

    The regret is its measured time over the time of the measured fastest, less 1.
    """
    groups = _by(
        points,
        lambda p: (p.table.source, p.table.topology, p.table.gpus, p.table.collective, p.nbytes),
    )
    found = []
    for mine in groups.values():
        shown = [p for p in mine if p.predicted is not None]
        if len({p.table.settings for p in shown}) > 1:
            chosen = min(shown, key=lambda p: p.predicted or math.inf)
            regret = chosen.seconds / min(p.seconds for p in shown) - 1
            found.append(replace(chosen, regret=regret))
    return found


def _by(points: Iterable[T], key: Callable[[T], K]) -> Mapping[K, list[T]]:
    groups: defaultdict[K, list[T]] = defaultdict(list)
    for point in points:
        groups[key(point)].append(point)
    return groups


_MOST = 8
"""Octaves between the sizes of a pair: settings of one job are hardly farther apart."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sizes of a table, whose difference is predicted so many seconds too long.

    Factors of the calls are made of errors on other machines and sites.
    """

    table: PublishedTable
    errors: Errors
    one: NcclCall
    other: NcclCall
    off: float

    @property
    def octaves(self) -> int:
        """Octaves between the sizes, rounded."""
        return round(abs(math.log2(self.one.nbytes / self.other.nbytes)))

    @property
    def alike(self) -> bool:
        """Whether NCCL sends both by one algorithm and protocol."""
        return self.one[:3] == self.other[:3]

    @property
    def inside(self) -> bool:
        """Whether the 80 % interval covers the published difference."""
        return abs(self.off) <= difference_error([self.one], [self.other])


def pairs(tables: Iterable[PublishedTable]) -> Iterator[Pair]:
    """All pairs of near sizes of each table, by constants that were fitted without its site."""
    rows = defaultdict[str, list[Errors]](list)
    for row in published_errors():
        rows[row.table].append(row)
    for table in tables:
        setup, points = setup_for(table), list[tuple[Errors, NcclCall, float]]()
        for row in rows[table.name]:
            times = [each for each in table.times if SIZES[band_of(each[0])] == row.size]
            for (nbytes, seconds), error in zip(times, row.errors, strict=True):
                ends = spread(row.collective, row.link, nbytes, own_names(table))
                call = setup.call(nbytes, row.collective)._replace(
                    seconds=seconds / nbytes * math.exp(error),
                    factor=math.sqrt(ends[1] / ends[0]),
                )
                points.append((row, call, seconds / nbytes))
        for (row, one, took), (_, other, took_other) in combinations(points, 2):
            off = one.seconds - other.seconds - (took - took_other)
            if (pair := Pair(table, row, one, other, off)).octaves <= _MOST:
                yield pair


def part_inside(found: Iterable[Pair]) -> float:
    """The part of the differences within their intervals.

    Each machine counts once for a link and a number of octaves.
    """
    cells = [((p.errors.machine, p.errors.link, p.octaves), p.inside) for p in found]
    count = Counter(cell for cell, _ in cells)
    return sum(inside / count[cell] for cell, inside in cells) / len(count)
