"""Errors on times that took no part in a fit.

A site is left out of the fit of its generation. A generation has the constants of another. Or
constants are fitted to three sizes of a
table, as a short run of nccl-tests gives them, and the other sizes are compared.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simreduce.computing.workers import in_processes
from simreduce.engine import NOMINAL, Calibration
from simreduce.engine.calibrate import GENERATIONS, load_calibration
from simreduce.engine.calibrate.sure import ELSEWHERE, MACHINE, OTHER_NET, spread
from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.files.published import PublishedTable, published_tables
from simreduce.study.accuracy.assess import median_and_p90
from simreduce.study.accuracy.fit import FitCase, fit_machine, left_out_residuals, sample
from simreduce.study.accuracy.predict import (
    Point,
    calls_of,
    own_names,
    predict,
    setup_for,
    site_of,
    strategy_for,
    workload_of,
)
from simreduce.topology import machine_of

_SIZES = 9
"""Sizes of a table that are fitted, spread over all it has."""
_MOST_OPS, _MOST_OPS_OF_ONE = 24_000, 200_000
"""Ops of a plan in the fit of a generation, and of one table: larger plans take too long."""
_OLDEST = (2, 5)
"""Versions of NCCL before this have no model of time, and other protocols."""
_OLD = "nccl-pascal"
"""The generation that was measured with these versions alone."""
_LEAST = 6
"""Sizes of a table that is calibrated: three are fitted, the others compared."""


def cases_of(table: PublishedTable) -> Iterator[FitCase]:
    """Some sizes of a table, first and last included."""
    setup = setup_for(table, NOMINAL).but(calibration=NOMINAL)
    return make_cases(table, setup, sample(table.times, _SIZES), _MOST_OPS)


def make_cases(
    table: PublishedTable, setup: Setup, times: Sequence[tuple[int, float]], most_ops: int
) -> Iterator[FitCase]:
    """Cases of some times of a table, without those that have no plan of so few ops."""
    shape, group = setup.layout, site_of(table)
    calls, link = calls_of(table, setup), setup.slowest_link
    for nbytes, seconds in times:
        workload = workload_of(table.collective, nbytes, table.dtype, shape.n)
        try:
            plan = setup.compile(strategy_for(table.collective), workload)
        except InputError:  # no plan, too many ops, or less than an element for each rank
            continue
        if len(plan) <= most_ops:
            yield FitCase(setup, plan, nbytes, seconds, calls, link, group)


def chosen_tables() -> dict[str, list[PublishedTable]]:
    """The tables that constants are fitted to, by the name of the generation's calibration."""
    found: defaultdict[str, list[PublishedTable]] = defaultdict(list)
    for table in published_tables():
        if table.held or not table.compared:
            continue
        setup = setup_for(table)
        if _is_old(table.version) and setup.generation != _OLD:
            continue
        if setup.link_class != OTHER_NET:
            found[setup.generation].append(table)
    return dict(found)


def beside(generation: str) -> list[str]:
    """The names of the generations before and after one, of those there are."""
    library = generation.partition("-")[0]
    names = [GENERATIONS[key] for key in sorted(GENERATIONS) if key[0] == library]
    place = names.index(generation)
    return [*names[max(place - 1, 0) : place], *names[place + 1 : place + 2]]


def _is_old(version: tuple[int, int] | None) -> bool:
    return version is not None and version < _OLDEST


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A machine and the errors of constants that were fitted with its site and without it.

    It has its cases, and the median and 90th percentile of |predicted / published - 1|.
    """

    calibration: str
    machine: str
    cases: int
    median_error: float
    p90_error: float
    median_error_without_it: float
    p90_error_without_it: float


@dataclass(frozen=True, slots=True)
class Fitted:
    """A published time at a site of which constants were fitted to some.

    It has log(predicted / published) with its site and without it.
    """

    table: str
    machine: str
    nbytes: int
    with_it: float
    without: float


def fitted_times(
    tables: Sequence[PublishedTable],
    calibration: Calibration,
    held: Sequence[PublishedTable] = (),
) -> list[Fitted]:
    """The times that the constants of a calibration were fitted to, then those of `held`."""
    cases = [(table, case) for table in tables for case in cases_of(table)]
    more = [(table, case) for table in held for case in cases_of(table)]
    nccl = calibration.nccl
    without = left_out_residuals(
        [case for _, case in cases],
        NOMINAL.nccl,
        nccl,
        list(calibration.errors),
        [case for _, case in more],
    )
    cases += more
    return [
        Fitted(
            table.name,
            machine_of(table.topology),
            case.nbytes,
            math.log(case.predict(nccl) / case.seconds),
            float(off),
        )
        for (table, case), off in zip(cases, without, strict=True)
    ]


def predict_without_sites(
    tables: Sequence[PublishedTable], workers: int = 1
) -> Iterator[list[Point]]:
    """The points of each table by its generation's constants, fitted without its site.

    A table has nine sizes at most there: the others are moved by what leaving the site out moves
    their neighbours. A held table is moved too if others of its site took part.
    """
    moved: defaultdict[str, list[Fitted]] = defaultdict(list)
    for name, mine in chosen_tables().items():
        fitted, sites = {table.name for table in mine}, {site_of(table) for table in mine}
        asked = [t for t in tables if setup_for(t).generation == name and site_of(t) in sites]
        if asked:
            held = [table for table in asked if table.name not in fitted]
            for time in fitted_times(mine, load_calibration(name), held):
                moved[time.table].append(time)
    for points in predict(tables, None, workers):
        yield [_times(p, math.exp(_move(p, moved[p.table.name]))) for p in points]


def _move(point: Point, fitted: Sequence[Fitted]) -> float:
    """Return what a point's error gains when its site is left out of the fit."""
    if not fitted:
        return 0.0
    sizes = np.log([time.nbytes for time in fitted])
    moves = [time.without - time.with_it for time in fitted]
    return float(np.interp(np.log(point.nbytes), sizes, moves))


def _times(point: Point, factor: float) -> Point:
    if point.predicted is None:
        return point
    low, high = point.low * factor, point.high * factor
    return replace(point, predicted=point.predicted * factor, low=low, high=high)


def predict_without_generations(
    tables: Sequence[PublishedTable], workers: int = 1
) -> Iterator[list[Point]]:
    """The points of each table by constants of the generations before and after its own.

    Their intervals leave out the errors of its machine, its site and its generation.
    """
    return in_processes(_elsewhere, tables, workers)


def _elsewhere(table: PublishedTable) -> list[Point]:
    setup = setup_for(table)
    own = setup.generation
    without = own_names(table) | {own}
    found = []
    for name in beside(own):
        for p in next(predict([table], load_calibration(name))):
            ends = spread(
                table.collective, setup.link_class, p.nbytes, without, ELSEWHERE,
                library=(table.library or "nccl").lower(),
            )  # fmt: skip
            low, high = ((p.predicted or 0.0) * end for end in ends)
            found.append(replace(p, low=low, high=high))
    return found


def leave_machines_out() -> Iterator[LeftOut]:
    """Every machine of the tables that constants are fitted to, by generation."""
    for name, tables in chosen_tables().items():
        times = fitted_times(tables, load_calibration(name))
        for machine in dict.fromkeys(time.machine for time in times):
            mine = [time for time in times if time.machine == machine]
            with_it = median_and_p90(np.expm1([time.with_it for time in mine]))
            without = median_and_p90(np.expm1([time.without for time in mine]))
            yield LeftOut(name, machine, len(mine), *with_it, *without)


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A size of a table that was not fitted, with its errors (0.1 is 10 % too long).

    The errors are by the constants of the machine's generation, and by constants fitted to three
    other sizes of the table. `low` and `high` are the ratios of the interval's ends to the latter,
    by errors on other machines and sites; `misfit` is that of the three sizes before.
    """

    table: PublishedTable
    link: str
    nbytes: int
    before: float
    after: float
    low: float = 1.0
    high: float = 1.0
    misfit: float = 0.0

    @property
    def bracketed(self) -> bool:
        """Whether the network has software of its own."""
        return self.link == OTHER_NET

    @property
    def several(self) -> bool:
        """Whether there are several machines."""
        return self.link in ("net", OTHER_NET)

    @property
    def inside(self) -> bool:
        """Whether the interval covers the published time."""
        return self.low <= 1 / (1 + self.after) <= self.high


def calibrate_on_three(
    tables: Sequence[PublishedTable], workers: int = 1
) -> Iterator[list[Calibrated]]:
    """The sizes of each table besides its smallest, its middle and its largest one.

    The constants of the machine's generation are fitted to these three. Empty for a table with few
    sizes.
    """
    return in_processes(_calibrated, tables, workers)


def _calibrated(table: PublishedTable) -> list[Calibrated]:
    if len(table.times) < _LEAST:
        return []
    setup = setup_for(table)
    cases = list(make_cases(table, setup, table.times, _MOST_OPS_OF_ONE))
    if len(cases) < _LEAST:
        return []
    known = sorted({0, len(cases) // 2, len(cases) - 1})
    base, link = setup.constants.nccl, setup.link_class
    fitted, _ = fit_machine([cases[i] for i in known])
    return [
        Calibrated(
            table,
            link,
            case.nbytes,
            case.predict(base) / case.seconds - 1,
            case.predict(fitted) / case.seconds - 1,
            *spread(
                table.collective,
                link,
                case.nbytes,
                own_names(table),
                MACHINE,
                fitted.misfit,
                (table.library or "nccl").lower(),
            ),
            fitted.misfit,
        )
        for i, case in enumerate(cases)
        if i not in known
    ]
