"""Errors on machines that took no part in a fit: each is left out of that of its generation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simreduce.accuracy.fit import Case, left_out_residuals
from simreduce.accuracy.shipped import cases_of, chosen_tables
from simreduce.calibrate import load_calibration
from simreduce.engine import NOMINAL
from simreduce.tables import Table, columns


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A machine: cases, and median and 90th percentile of |predicted / published - 1| by constants
    that were fitted with it and without it.
    """

    generation: str
    machine: str
    cases: int
    with_it: tuple[float, float]
    without: tuple[float, float]


def leave_machines_out() -> Iterator[LeftOut]:
    """Every machine of the tables that constants are fitted to, by generation."""
    by_name: defaultdict[str, list[Case]] = defaultdict(list)
    for name, table in chosen_tables():
        by_name[name] += cases_of(table)
    for name, cases in by_name.items():
        fitted = load_calibration(name)
        off = left_out_residuals(cases, NOMINAL.nccl, fitted.nccl, list(fitted.errors))
        own = np.log([case.predict(fitted.nccl) / case.seconds for case in cases])
        groups = np.array([case.group for case in cases])
        for machine in dict.fromkeys(groups.tolist()):
            mine = groups == machine
            yield LeftOut(name, machine, int(mine.sum()), _errors(own[mine]), _errors(off[mine]))


def _errors(residuals: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> tuple[float, float]:
    errors = abs(np.expm1(residuals))
    return float(np.median(errors)), float(np.quantile(errors, 0.9))


def left_out_lines(found: list[LeftOut]) -> list[str]:
    """The table."""
    head = "calibration|machine|cases|median|90 %|median without it|90 % without it"
    rows = tuple(
        (r.generation, r.machine, str(r.cases), *(f"{e:.1%}" for e in (*r.with_it, *r.without)))
        for r in found
    )
    return [
        *Table(columns(head, left="calibration|machine"), rows).lines(),
        "# without it: one step of least squares away from the constants that are shipped",
    ]
