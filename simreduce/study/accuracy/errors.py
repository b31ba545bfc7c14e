"""Finds how far predictions are from published times, which intervals are made of.

`python -m simreduce.study.accuracy.errors` writes them to `simreduce/files/calibrations` of a
source tree: `nccl-errors.csv` by the constants in the same folder,
`nccl-errors-elsewhere.csv` by those of the generations before and after a machine's own, and
`nccl-errors-calibrated.csv` by constants fitted to three sizes of each table; and RCCL's likewise.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from simreduce.engine.calibrate import nccl_constants
from simreduce.engine.calibrate.sure import (
    ELSEWHERE,
    GENERATION,
    MACHINE,
    SIZES,
    Errors,
    band_of,
    write_errors,
)
from simreduce.files.published import PublishedTable, published_tables
from simreduce.planners.nccl.library import LIBRARIES
from simreduce.study.accuracy.hold_out import (
    calibrate_on_three,
    chosen_tables,
    predict_without_generations,
    predict_without_sites,
)
from simreduce.study.accuracy.predict import Point, predict, setup_for, site_of
from simreduce.topology import copies_of, machine_of

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
