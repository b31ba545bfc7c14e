"""How far off differences of two predictions are, by pairs of sizes of one published table.

Each pair stands for two ways to move the same bytes: in calls of one size, or of the other. So both
times are seconds of a byte, of the same machine, library and constants.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

from simreduce.engine.calibrate.intervals import (
    SIZES,
    Errors,
    NcclCall,
    band_of,
    difference_error,
    published_errors,
    spread,
)
from simreduce.files.published import PublishedTable
from simreduce.study.accuracy import own_names, setup_for

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
