"""Errors on times that took no part in a fit.

A site is left out of the fit of its generation. A generation has the constants of another. Or
constants are fitted to three sizes of a
table, as a short run of nccl-tests gives them, and the other sizes are compared.

Finds how far predictions are from published times, which intervals are made of.

`python -m simreduce.study.accuracy.hold_out` writes to `simreduce/files/calibrations` of a source
tree, in some minutes: the constants as `nccl-hopper.toml` and so on, fitted to published tables
that are not held out; then errors of all tables, `nccl-errors.csv` by these constants,
`nccl-errors-elsewhere.csv` by those of the generations before and after a machine's own, and
`nccl-errors-calibrated.csv` by constants fitted to three sizes of each table; and RCCL's likewise.
`write_shipped` writes the errors alone, by the constants as they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simreduce import units
from simreduce.computing import group_by, grouped
from simreduce.computing.arrays import Floats
from simreduce.computing.workers import in_processes
from simreduce.engine import NOMINAL, Calibration
from simreduce.engine.calibrate import (
    GENERATIONS,
    load_calibration,
    nccl_constants,
    nccl_names,
    to_toml,
    unit_of,
    with_values,
)
from simreduce.engine.calibrate.intervals import (
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
from simreduce.engine.runtime import NcclConstants
from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.files.published import PublishedTable, published_tables
from simreduce.planners.nccl.library import LIBRARIES
from simreduce.study.accuracy import (
    Point,
    TablePoint,
    calls_of,
    median_and_p90,
    own_names,
    predict,
    setup_for,
    site_of,
    strategy_for,
    workload_of,
)
from simreduce.study.accuracy.fit import FitCase, fit_machine, fit_nccl, left_out_residuals, sample
from simreduce.study.accuracy.kernels import BEFORE, SOURCE, fit_kernels
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
        with suppress(InputError):  # no plan, too many ops, or less than an element for each rank
            plan = setup.compile(strategy_for(table.collective), workload)
            if len(plan) <= most_ops:
                yield FitCase(setup, plan, nbytes, seconds, calls, link, group)


def chosen_tables() -> dict[str, list[PublishedTable]]:
    """The tables that constants are fitted to, by the name of the generation's calibration."""
    compared = (table for table in published_tables() if table.compared and not table.held)
    return grouped(
        (setup.generation, table)
        for table, setup in ((table, setup_for(table)) for table in compared)
        if setup.link_class != OTHER_NET
        and ((table.version or _OLDEST) >= _OLDEST or setup.generation == _OLD)
    )


def beside(generation: str) -> list[str]:
    """The names of the generations before and after one, of those there are."""
    library = generation.partition("-")[0]
    names = [GENERATIONS[key] for key in sorted(GENERATIONS) if key[0] == library]
    place = names.index(generation)
    return [*names[max(place - 1, 0) : place], *names[place + 1 : place + 2]]


class LeftOut(NamedTuple):
    """A machine and its errors by constants that were fitted with its site and without it."""

    calibration: str
    machine: str
    with_it: Floats
    without: Floats


class Fitted(NamedTuple):
    """A published time at a site of which constants were fitted to some.

    It has log(predicted / published) with its site and without it.
    """

    table: PublishedTable
    nbytes: int
    with_it: float
    without: float


def fitted_times(
    tables: Sequence[PublishedTable],
    calibration: Calibration,
    held: Sequence[PublishedTable] = (),
) -> list[Fitted]:
    """The times that the constants of a calibration were fitted to, then those of `held`."""
    cases, more = (
        [(table, case) for table in some for case in cases_of(table)] for some in (tables, held)
    )
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
            table,
            case.nbytes,
            math.log(case.predict(nccl) / case.seconds),
            float(off),
        )
        for (table, case), off in zip(cases, without, strict=True)
    ]


def predict_without_sites(
    tables: Sequence[PublishedTable], workers: int = 1
) -> Iterator[list[TablePoint]]:
    """The points of each table by its generation's constants, fitted without its site.

    A table has nine sizes at most there: the others are moved by what leaving the site out moves
    their neighbours. A held table is moved too if others of its site took part.
    """
    moved = dict[str, list[Fitted]]()
    for name, mine in chosen_tables().items():
        sites = {site_of(table) for table in mine}
        asked = [t for t in tables if setup_for(t).generation == name and site_of(t) in sites]
        if asked:
            more = [table for table in asked if table not in mine]
            times = fitted_times(mine, load_calibration(name), more)
            moved |= group_by(times, lambda time: time.table.name)
    for points in predict(tables, None, workers):
        yield [_move(p, moved.get(p.of.name, ())) for p in points]


def _move(point: TablePoint, fitted: Sequence[Fitted]) -> TablePoint:
    """Return the point as it is predicted when its site is left out of the fit."""
    if not fitted:
        return point
    sizes = np.log([time.nbytes for time in fitted])
    moves = [time.without - time.with_it for time in fitted]
    factor = math.exp(float(np.interp(np.log(point.nbytes), sizes, moves)))
    return replace(
        point, **{name: getattr(point, name) * factor for name in ("predicted", "low", "high")}
    )


def predict_without_generations(
    tables: Sequence[PublishedTable], workers: int = 1
) -> Iterator[list[TablePoint]]:
    """The points of each table by constants of the generations before and after its own.

    Their intervals leave out the errors of its machine, its site and its generation.
    """
    return in_processes(_elsewhere, tables, workers)


def predict_without(
    tables: Sequence[PublishedTable], what: str, workers: int = 1
) -> Iterator[list[TablePoint]]:
    """The points of each table without its site or its generation, as `what` says."""
    ways = {"site": predict_without_sites, "generation": predict_without_generations}
    return ways[what](tables, workers)


def _elsewhere(table: PublishedTable) -> list[TablePoint]:
    setup = setup_for(table)
    without = own_names(table) | {setup.generation}
    found = []
    for name in beside(setup.generation):
        for point in next(predict([table], load_calibration(name))):
            low, high = spread(
                table.collective, setup.link_class, point.nbytes, without, ELSEWHERE,
                library=(table.library or "nccl").lower(),
            )  # fmt: skip
            found.append(replace(point, low=point.predicted * low, high=point.predicted * high))
    return found


def leave_machines_out() -> Iterator[LeftOut]:
    """Every machine of the tables that constants are fitted to, by generation."""
    for name, tables in chosen_tables().items():
        by_machine = grouped(
            (machine_of(time.table.topology), (time.with_it, time.without))
            for time in fitted_times(tables, load_calibration(name))
        )
        yield from (LeftOut(name, each, *np.expm1(logs).T) for each, logs in by_machine.items())


@dataclass(frozen=True, slots=True)
class Calibrated(Point[PublishedTable]):
    """A size of a table that was not fitted, predicted by constants fitted to three other sizes.

    `before` is the error by the constants of the machine's generation. `low` and `high` are the
    ratios of the interval's ends to the prediction, by errors on other machines and sites; `misfit`
    is that of the three sizes before.
    """

    link: str
    nbytes: int
    before: float
    low: float = 1.0
    high: float = 1.0
    misfit: float = 0.0

    @property
    def inside(self) -> bool:
        """Whether the interval covers the published time."""
        return self.low <= 1 / (1 + self.error) <= self.high


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
    library = (table.library or "nccl").lower()
    return [
        Calibrated(
            table, case.seconds, case.predict(fitted), link, case.nbytes,
            case.predict(base) / case.seconds - 1,
            *spread(
                table.collective, link, case.nbytes, own_names(table), MACHINE, fitted.misfit,
                library,
            ),
            fitted.misfit,
        )
        for i, case in enumerate(cases)
        if i not in known
    ]  # fmt: skip


FOLDER = Path(__file__).parents[2] / "files" / "calibrations"
AFTER = {"nccl-blackwell": "nccl-hopper", "rccl-cdna3": "rccl-cdna4"}
"""Generations with too few tables begin with the constants of another one."""
_MOST_MACHINES = 64
"""Tables of more machines are left out: their plans take minutes."""


def predict_published(tables: Sequence[PublishedTable]) -> Iterator[list[TablePoint]]:
    """The points of each table by constants that were fitted without its site.

    Constants that one site has made and no other generation are as nothing without it: those of
    its held tables by the constants themselves.
    """
    chosen = chosen_tables()
    alone = {
        name
        for name, mine in chosen.items()
        if name not in AFTER and len({*map(site_of, mine)}) == 1
    }
    each = [*zip(tables, [setup_for(table).generation for table in tables], strict=True)]
    return chain(
        predict_without_sites([table for table, name in each if name not in alone]),
        predict([table for table, name in each if name in alone and table not in chosen[name]]),
    )


def _tables(library: str) -> list[PublishedTable]:
    return [
        table
        for table in published_tables()
        if (table.library or "nccl").lower() == library
        and copies_of(table.topology) <= _MOST_MACHINES
    ]


def _by_band(points: Sequence[TablePoint | Calibrated]) -> Iterator[Errors]:
    """The errors of a table by bands of sizes."""
    bands = grouped(
        (SIZES[band_of(point.nbytes)], math.log1p(point.error))
        for point in points
        if math.isfinite(point.predicted)
    )
    table, misfit = points[0].of, getattr(points[0], "misfit", None)
    setup, machine = setup_for(table), machine_of(table.topology)
    known = table.name, machine, table.collective, setup.link_class
    about = setup.node_kind, site_of(table), setup.generation, misfit
    return (Errors(*known, size, tuple(found), *about) for size, found in bands.items())


def write_shipped() -> None:
    """Write the errors by the shipped constants, and by constants fitted to each table."""
    nccl_constants.cache_clear()  # the files may just have been written
    ways: Mapping[str, Callable[[list[PublishedTable]], Iterator[Any]]] = {
        GENERATION: predict_published,
        ELSEWHERE: predict_without_generations,
        MACHINE: calibrate_on_three,
    }
    for library, (file, way) in product(LIBRARIES, ways.items()):
        found = chain.from_iterable(map(_by_band, filter(None, way(_tables(library)))))
        (FOLDER / f"{library}-{file}").write_text(write_errors(found), "utf-8")


_RCCL = {
    "nccl.channel_rate.simple": 5.5 / 24,
    "nccl.channel_rate.ll": 0.3,
    "nccl.copy_out.nvlink": 0.0,
}
"""Blocks of 256 threads: 4, 8 and 16 channels of MI355X move 46, 46 and 86 GB/s. Two GPUs have the
whole rate of a link.
"""
_CHANGED = {
    "nccl-hopper": {"nccl.launch_channel": 0.1, "nccl.channel_rate.ll": 141 / 39},
    "rccl-cdna3": {"nccl.launch": 0.3},
    "rccl-cdna4": _RCCL,
    "nccl-blackwell": {"nccl.efficiency.nvls.simple": 0.74 / 0.85, "nccl.channel_rate.nvls": 1.5},
}
"""Constants that differ from the generation before, or from the defaults, as factors. Hopper:
NCCL's limits of LL on one node, and channels cost nothing that shows. CDNA 3: without the
launch of PyTorch that is in the times of CDNA 4. Blackwell: NCCL's own model
gives the rate of NVLS; and 24 channels of B200 move 544 GB/s.
"""


_UNALIGNED_PEER = {"nccl": 1.6e9}
"""Bytes/s by library: all-to-alls of 5 and 7 A100 by NCCL 2.18 move 8 GB/s in all. Of RCCL's
such sends no times are public.
"""


def calibrations() -> Iterator[Calibration]:
    """The calibration of each generation, fitted."""
    by_name = chosen_tables()
    fitted: dict[str, NcclConstants] = {}
    for (runs, _), name in GENERATIONS.items():
        tables = by_name[name]
        cases = [case for table in tables for case in cases_of(table)]
        base = fitted.get(AFTER.get(name, ""), NcclConstants())
        at, changed = nccl_names(base), _CHANGED.get(name, {})
        base = replace(
            with_values(base, {key: at[key] * factor for key, factor in changed.items()}),
            unaligned_peer=_UNALIGNED_PEER.get(runs, math.inf),
        )
        constants, fit = fit_nccl(cases, base)
        fitted[name] = constants
        generation = re.sub(r"^Cdna", "CDNA ", name.partition("-")[2].title())  # Hopper, CDNA 3
        own = median_and_p90(np.expm1(fit.residuals))
        others = median_and_p90(
            np.expm1(left_out_residuals(cases, base, constants, list(fit.values)))
        )
        provenance = {
            "hardware": ", ".join(dict.fromkeys(table.topology for table in tables)),
            "software": f"{runs.upper()} "
            + ", ".join(sorted({table.nccl or "of an unknown version" for table in tables})),
            "source": "; ".join(dict.fromkeys(table.source for table in tables)),
            "tables": ", ".join(table.name for table in tables),
            "method": "robust least squares on log(predicted / published), from NCCL's own model;"
            " python -m simreduce.study.accuracy.hold_out",
            "errors": f"{own[0]:.0%} in the median, {own[1]:.0%} at the 90th"
            f" percentile; {others[0]:.0%} and {others[1]:.0%} for sites"
            " left out of the fit",
        }
        told = with_values(
            NcclConstants(unaligned_peer=base.unaligned_peer), _rounded(nccl_names(constants))
        )
        if name in BEFORE:
            told = replace(told, kernels=fit_kernels(name))
            provenance["kernels"] = SOURCE
        yield Calibration(
            name,
            f"{runs.upper()} on {generation}, fitted to {len(cases)} published times",
            nccl=told,
            provenance=provenance,
            errors=_rounded(fit.errors),
        )


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    """Three digits: more would say what the data cannot."""

    def rounded(name: str, value: float) -> float:
        if unit_of(name) == "time":  # as they are written
            return units.duration(f"{value * 1e6:.3g} us")
        if unit_of(name) == "rate":
            return units.bandwidth(f"{value / 1e9:.3g} GB/s")
        return float(f"{value:.3g}")

    return {name: rounded(name, value) for name, value in values.items() if np.isfinite(value)}


if __name__ == "__main__":
    for found in calibrations():
        (FOLDER / f"{found.name}.toml").write_text(to_toml(found), "utf-8")
    write_shipped()
