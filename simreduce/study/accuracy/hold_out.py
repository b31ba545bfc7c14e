"""Errors on times that took no part in a fit.

A site is left out of the fit of its generation. A generation has the constants of another. Or
constants are fitted to three sizes of a
table, as a short run of nccl-tests gives them, and the other sizes are compared.

Finds how far predictions are from published times, which intervals are made of.

`python -m simreduce.study.accuracy.hold_out` writes them to `simreduce/files/calibrations` of a
source tree: `nccl-errors.csv` by the constants in the same folder,
`nccl-errors-elsewhere.csv` by those of the generations before and after a machine's own, and
`nccl-errors-calibrated.csv` by constants fitted to three sizes of each table; and RCCL's likewise.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np

from simreduce.computing.workers import in_processes
from simreduce.engine import NOMINAL, Calibration
from simreduce.engine.calibrate import GENERATIONS, load_calibration, nccl_constants
from simreduce.engine.calibrate.sure import (
    ELSEWHERE,
    GENERATION,
    MACHINE,
    OTHER_NET,
    SIZES,
    Errors,
    band_of,
    spread,
    write_errors,
)
from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.files.published import PublishedTable, published_tables
from simreduce.planners.nccl.library import LIBRARIES
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
from simreduce.topology import copies_of, machine_of

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


FOLDER = Path(__file__).parents[2] / "files" / "calibrations"
AFTER = {"nccl-blackwell": "nccl-hopper", "rccl-cdna3": "rccl-cdna4"}
"""Generations with too few tables begin with the constants of another one."""
_MOST_MACHINES = 64
"""Tables of more machines are left out: their plans take minutes."""


def find_errors(library: str) -> Iterator[Errors]:
    """The errors of every published table, by constants that were fitted without its site.

    Constants that one site has made and no other generation are as nothing without it: those of
    its held tables by the constants themselves.
    """
    chosen = chosen_tables()
    alone = {
        name
        for name, mine in chosen.items()
        if name not in AFTER and len({*map(site_of, mine)}) == 1
    }
    tables, held = list[PublishedTable](), list[PublishedTable]()
    for table in _tables(library):
        generation = setup_for(table).generation
        if generation not in alone:
            tables.append(table)
        elif table not in chosen[generation]:
            held.append(table)
    for points in chain(predict_without_sites(tables), predict(held)):
        yield from _by_band(points[0].table, _logs(points))


def find_errors_elsewhere(library: str) -> Iterator[Errors]:
    """The errors of every published table, by constants of the generations beside its own."""
    for points in predict_without_generations(_tables(library)):
        yield from _by_band(points[0].table, _logs(points))


def _logs(points: Iterable[Point]) -> Iterator[tuple[int, float]]:
    return ((p.nbytes, math.log(p.predicted / p.seconds)) for p in points if p.predicted)


def find_calibrated_errors(library: str) -> Iterator[Errors]:
    """The errors at all sizes of each table besides three, to which constants are fitted."""
    for found in filter(None, calibrate_on_three(_tables(library))):
        errors = ((each.nbytes, math.log1p(each.after)) for each in found)
        yield from _by_band(found[0].table, errors, found[0].misfit)


def _tables(library: str) -> list[PublishedTable]:
    return [
        table
        for table in published_tables()
        if (table.library or "nccl").lower() == library
        and copies_of(table.topology) <= _MOST_MACHINES
    ]


def _by_band(
    table: PublishedTable,
    errors: Iterable[tuple[int, float]],
    misfit: float | None = None,
) -> Iterator[Errors]:
    """The errors of a table by bands of sizes, from sizes and errors."""
    bands: defaultdict[int, list[float]] = defaultdict(list)
    for nbytes, error in errors:
        bands[SIZES[band_of(nbytes)]].append(error)
    setup, machine = setup_for(table), machine_of(table.topology)
    known = table.name, machine, table.collective, setup.link_class
    about = setup.node_kind, site_of(table), setup.generation, misfit
    for size, found in bands.items():
        yield Errors(*known, size, tuple(found), *about)


def write_shipped() -> None:
    """Write the errors by the shipped constants, and by constants fitted to each table."""
    nccl_constants.cache_clear()  # the files may just have been written
    ways = {
        GENERATION: find_errors,
        ELSEWHERE: find_errors_elsewhere,
        MACHINE: find_calibrated_errors,
    }
    for library in LIBRARIES:
        for file, find in ways.items():
            (FOLDER / f"{library}-{file}").write_text(write_errors(find(library)), "utf-8")


if __name__ == "__main__":
    write_shipped()
