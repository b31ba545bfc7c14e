"""Finds how far predictions are from published times, which intervals are made of.

`python -m simreduce.study.accuracy.errors` writes them to `simreduce/files/calibrations` of a
source tree: `nccl-errors.csv` by the constants in the same folder, and
`nccl-errors-calibrated.csv` by constants fitted to three sizes of each table.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from simreduce.engine import Calibration
from simreduce.engine.calibrate import GENERATIONS, load_calibration, nccl_constants
from simreduce.engine.calibrate.sure import (
    GENERATION,
    MACHINE,
    SIZES,
    Errors,
    band_of,
    write_errors,
)
from simreduce.files.published import PublishedTable, published_tables
from simreduce.study.accuracy.hold_out import (
    Fitted,
    calibrate_on_three,
    chosen_tables,
    fitted_times,
    generation_of,
)
from simreduce.study.accuracy.predict import Point, copies_of, machine_of, predict, setup_for

FOLDER = Path(__file__).parents[2] / "files" / "calibrations"
_MOST_MACHINES = 64
"""Tables of more machines are left out: their plans take minutes."""


def find_errors(calibrations: Mapping[str, Calibration]) -> Iterator[Errors]:
    """The errors of every published table, by constants that were fitted without its machine.

    A table that took part in the fit has nine sizes at most there: the others are moved by what
    leaving the machine out moves its neighbours.
    """
    moved: defaultdict[str, list[Fitted]] = defaultdict(list)
    for name, tables in chosen_tables().items():
        for time in fitted_times(tables, calibrations[name]):
            moved[time.table].append(time)
    for table in _tables():
        setup = setup_for(table)
        (points,) = predict([table], calibrations[generation_of(setup)])
        errors = (
            (p.nbytes, math.log(p.predicted / p.seconds) + _move(p, moved[table.name]))
            for p in points
            if p.predicted is not None
        )
        yield from _by_band(table, setup.link_class, errors)


def find_calibrated_errors() -> Iterator[Errors]:
    """The errors at all sizes of each table besides three, to which constants are fitted."""
    for found in filter(None, calibrate_on_three(_tables())):
        errors = ((each.nbytes, math.log1p(each.after)) for each in found)
        yield from _by_band(found[0].table, found[0].link, errors)


def _tables() -> list[PublishedTable]:
    return [
        table
        for table in published_tables()
        if not table.library and copies_of(table.topology) <= _MOST_MACHINES
    ]


def _by_band(
    table: PublishedTable, link: str, errors: Iterable[tuple[int, float]]
) -> Iterator[Errors]:
    """The errors of a table by bands of sizes, from sizes and errors."""
    bands: defaultdict[int, list[float]] = defaultdict(list)
    for nbytes, error in errors:
        bands[SIZES[band_of(nbytes)]].append(error)
    machine = machine_of(table.topology)
    for size, found in bands.items():
        yield Errors(table.name, machine, table.collective, link, size, tuple(found))


def _move(point: Point, fitted: Sequence[Fitted]) -> float:
    """Return what a point's error gains when its machine is left out of the fit."""
    if not fitted:
        return 0.0
    sizes = np.log([time.nbytes for time in fitted])
    moves = [time.without - time.with_it for time in fitted]
    return float(np.interp(np.log(point.nbytes), sizes, moves))


def write_shipped() -> None:
    """Write the errors by the shipped constants, and by constants fitted to each table."""
    nccl_constants.cache_clear()  # the files may just have been written
    shipped = {name: load_calibration(name) for name in GENERATIONS.values()}
    (FOLDER / GENERATION).write_text(write_errors(find_errors(shipped)), "utf-8")
    (FOLDER / MACHINE).write_text(write_errors(find_calibrated_errors()), "utf-8")


if __name__ == "__main__":
    write_shipped()
