"""Errors on machines that took no part in a fit: each is left out of that of its generation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simreduce.accuracy.chosen import cases_of, chosen_tables
from simreduce.accuracy.fit import left_out_residuals
from simreduce.arrays import Floats
from simreduce.calibrate import load_calibration
from simreduce.engine import NOMINAL, Calibration
from simreduce.formats.documents import (
    COUNT,
    RATIO,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
)
from simreduce.published import PublishedTable
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


@dataclass(frozen=True, slots=True)
class Fitted:
    """A time that constants were fitted to: log(predicted / published) with its machine and without
    it.
    """

    table: str
    machine: str
    nbytes: int
    with_it: float
    without: float


def fitted_times(tables: Sequence[PublishedTable], calibration: Calibration) -> list[Fitted]:
    """The times that the constants of a calibration were fitted to."""
    cases = [(table.name, case) for table in tables for case in cases_of(table)]
    every, nccl = [case for _, case in cases], calibration.nccl
    without = left_out_residuals(every, NOMINAL.nccl, nccl, list(calibration.errors))
    return [
        Fitted(
            name, case.group, case.nbytes, math.log(case.predict(nccl) / case.seconds), float(off)
        )
        for (name, case), off in zip(cases, without, strict=True)
    ]


def leave_machines_out() -> Iterator[LeftOut]:
    """Every machine of the tables that constants are fitted to, by generation."""
    for name, tables in chosen_tables().items():
        times = fitted_times(tables, load_calibration(name))
        for machine in dict.fromkeys(time.machine for time in times):
            mine = [time for time in times if time.machine == machine]
            with_it, without = (
                _errors(np.array([getattr(time, each) for time in mine]))
                for each in ("with_it", "without")
            )
            yield LeftOut(name, machine, len(mine), with_it, without)


def _errors(residuals: Floats) -> tuple[float, float]:
    errors = abs(np.expm1(residuals))
    return float(np.median(errors)), float(np.quantile(errors, 0.9))


LEFT_OUT = Document(
    "accuracy-leave-one-out",
    "`simreduce accuracy nccl --leave-one-out --json`: errors on each machine by constants that "
    "were fitted without it.",
    Key(
        "machines",
        list_of(
            Record(
                "machine",
                "A machine.",
                Key("calibration", TEXT, "The constants of its generation."),
                Key("machine", TEXT, "The machine."),
                Key("cases", COUNT, "Published times."),
                Key("median_error", RATIO, "The median of |predicted / published - 1|."),
                Key("p90_error", RATIO, "The 90th percentile of that."),
                Key("median_error_without_it", RATIO, "The median without it in the fit."),
                Key("p90_error_without_it", RATIO, "The 90th percentile without it in the fit."),
            )
        ),
        "Every machine of the tables that constants are fitted to.",
    ),
    command="accuracy nccl",
)


def left_out_document(found: list[LeftOut]) -> dict[str, Any]:
    """The document of `--json`: `LEFT_OUT`."""
    machines = [
        {
            "calibration": each.generation,
            "machine": each.machine,
            "cases": each.cases,
            "median_error": each.with_it[0],
            "p90_error": each.with_it[1],
            "median_error_without_it": each.without[0],
            "p90_error_without_it": each.without[1],
        }
        for each in found
    ]
    return {**LEFT_OUT.head(), "machines": machines}


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
