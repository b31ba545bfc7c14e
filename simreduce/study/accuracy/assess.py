"""Errors of predictions of tables, by collective, number of machines and size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from simreduce.engine.calibrate.intervals import SIZES, band_of
from simreduce.files.published import published_tables
from simreduce.study.accuracy.points import PointGroup, group_by, in_order
from simreduce.study.accuracy.predict import TablePoint
from simreduce.topology import machine_of

TableGroup = PointGroup[TablePoint]
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


def inside(group: TableGroup) -> float | None:
    """The part of the points with an interval that lie in it; None if there are none."""
    found = [point.low <= point.published <= point.high for point in group.points if point.high > 0]
    return sum(found) / len(found) if found else None


def interval(group: TableGroup) -> tuple[float | None, float | None]:
    """The medians of the intervals' ends as parts of the predicted time, or None."""
    sure = [point for point in group.points if point.high > 0]
    ends = [(point.low / point.predicted, point.high / point.predicted) for point in sure]
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
    groups = group_by(
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
    whole = inside(PointGroup(mine))
    if whole is None:
        return None
    fitted = {machine_of(table.topology) for table in published_tables() if not table.held}
    unseen = inside(PointGroup([point for point in mine if point.machine not in fitted]))
    diverse = [c for c in cells(mine) if c.band.median and count_machines(c) >= DIVERSE]
    diverse.sort(key=lambda cell: inside(cell) or 0.0)
    kept = sum(ACCEPTED[0] <= (inside(cell) or 0.0) <= ACCEPTED[1] for cell in diverse)
    return Coverage(whole, unseen, diverse, kept)


def machines(points: Iterable[TablePoint]) -> list[TableGroup]:
    """The points of each machine, worst median first."""
    groups = group_by(points, lambda p: p.machine).values()
    return sorted(groups, key=lambda group: -group.median)


NODES = ("one", "two", "more")
"""Machines that take part."""


def unseen(points: Iterable[TablePoint]) -> list[tuple[tuple[str, str, int], TableGroup]]:
    """The points by collective, which is "all_reduce" or "others", by machines and by the first
    size of the band: all-reduces first.
    """
    groups = group_by(
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
    large = (point for point in points if point.nbytes > least)
    groups = group_by(large, lambda p: (p.of.collective, p.nbytes, p.ranks)).values()
    found = [(group, in_order(_apart(group))) for group in groups]
    right = [each for _, mine in found for each in mine]
    return MachineOrder(len(right), sum(right), [group.regret for group, mine in found if mine])


def _apart(group: TableGroup) -> list[tuple[TablePoint, TablePoint]]:
    """The pairs of machines with different published times."""
    return [
        (a, b)
        for a, b in combinations(group.points, 2)
        if a.of.topology != b.of.topology and a.published != b.published
    ]


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
    groups = group_by(
        points, lambda p: (p.of.source, p.of.topology, p.of.gpus, p.of.collective, p.nbytes)
    )
    return [
        replace(group.chosen, regret=group.regret)
        for group in groups.values()
        if len({point.of.settings for point in group.points}) > 1
    ]
