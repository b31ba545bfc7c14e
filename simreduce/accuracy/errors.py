"""Finds how far predictions are from published times, which intervals are made of.

`python -m simreduce.accuracy.errors` writes them to `simreduce/calibrations` of a source tree:
`nccl-errors.csv` by the constants that stand beside it, and `nccl-errors-calibrated.csv` by those
fitted to three sizes of each table.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from simreduce.accuracy.chosen import chosen_tables, generation_of
from simreduce.accuracy.leave_out import Fitted, fitted_times
from simreduce.accuracy.predict import Point, copies_of, machine_of, predict, setup_for
from simreduce.accuracy.three_sizes import calibrate_on_three
from simreduce.calibrate import GENERATIONS, load_calibration, nccl_constants
from simreduce.calibrate.sure import GENERATION, MACHINE, SIZES, Errors, band_of, write_errors
from simreduce.engine import Calibration
from simreduce.published import published_tables

FOLDER = Path(__file__).parents[1] / "calibrations"
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
    for table in published_tables():
        if table.library or copies_of(table.topology) > _MOST_MACHINES:
            continue
        setup = setup_for(table)
        (points,) = predict([table], calibrations[generation_of(setup)])
        bands: defaultdict[int, list[float]] = defaultdict(list)
        for point in points:
            if point.predicted is not None:
                off = math.log(point.predicted / point.seconds) + _move(point, moved[table.name])
                bands[SIZES[band_of(point.nbytes)]].append(off)
        for size, errors in bands.items():
            machine, link = points[0].machine, setup.link_class
            yield Errors(table.name, machine, table.collective, link, size, tuple(errors))


def _move(point: Point, fitted: Sequence[Fitted]) -> float:
    """What leaving its machine out of the fit adds to the error of a point."""
    if not fitted:
        return 0.0
    sizes = np.log([time.nbytes for time in fitted])
    moves = [time.without - time.with_it for time in fitted]
    return float(np.interp(np.log(point.nbytes), sizes, moves))


def find_calibrated_errors() -> Iterator[Errors]:
    """The errors at all sizes of each table besides three, to which constants are fitted."""
    tables = [
        table
        for table in published_tables()
        if not table.library and copies_of(table.topology) <= _MOST_MACHINES
    ]
    for found in calibrate_on_three(tables):
        bands: defaultdict[int, list[float]] = defaultdict(list)
        for each in found:
            bands[SIZES[band_of(each.nbytes)]].append(math.log1p(each.after))
        for size, errors in bands.items():
            table, link = found[0].table, found[0].link
            machine = machine_of(table.topology)
            yield Errors(table.name, machine, table.collective, link, size, tuple(errors))


def write_shipped() -> None:
    """Write the errors by the constants that are shipped, and by those of each table."""
    nccl_constants.cache_clear()  # the files may just have been written
    shipped = {name: load_calibration(name) for name in GENERATIONS.values()}
    (FOLDER / GENERATION).write_text(write_errors(find_errors(shipped)), "utf-8")
    (FOLDER / MACHINE).write_text(write_errors(find_calibrated_errors()), "utf-8")


if __name__ == "__main__":
    write_shipped()
