"""Finds how far predictions are from published times, which intervals are made of.

`python -m simreduce.accuracy.errors` writes `simreduce/calibrations/nccl-errors.csv` of a source
tree, by the constants that stand beside it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from simreduce.accuracy.chosen import chosen_tables, generation_of
from simreduce.accuracy.leave_out import Fitted, fitted_times
from simreduce.accuracy.predict import Point, copies_of, predict, setup_for
from simreduce.calibrate import GENERATIONS, load_calibration
from simreduce.calibrate.sure import SIZES, Errors, band_of, write_errors
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


def write_shipped() -> None:
    """Write the errors by the constants that are shipped."""
    shipped = {name: load_calibration(name) for name in GENERATIONS.values()}
    (FOLDER / "nccl-errors.csv").write_text(write_errors(find_errors(shipped)), "utf-8")


if __name__ == "__main__":
    write_shipped()
