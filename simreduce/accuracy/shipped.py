"""Fits the NCCL constants that simreduce ships, from published tables that are not held out.

`python -m simreduce.accuracy.shipped` writes them to `simreduce/calibrations` of a
source tree, `nccl-hopper.toml` and so on. It takes some minutes for each generation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from simreduce import units
from simreduce.accuracy.fit import Case, fit_nccl, left_out_residuals, spread_of
from simreduce.accuracy.predict import (
    gpus_of_a_process,
    is_bracketed,
    machine_of,
    setup_for,
    strategy_for,
)
from simreduce.calibrate import GENERATIONS, to_toml
from simreduce.calibrate.files import unit_of
from simreduce.calibrate.nccl import nccl_names, with_values
from simreduce.engine import NOMINAL, Calibration
from simreduce.engine.calibration import NcclConstants
from simreduce.errors import InputError
from simreduce.nccl import facts
from simreduce.published import PublishedTable, published_tables
from simreduce.tune.bench import DIVIDED, tensor

FOLDER = Path(__file__).parents[1] / "calibrations"
_SIZES = 9
"""Sizes of a table that are fitted, spread over all it has."""
_MOST_OPS = 24_000
"""Ops of a plan that is fitted: larger ones take too long."""
_AFTER = {"nccl-blackwell": "nccl-hopper"}
"""Generations with too few tables begin with the constants of another one."""
_OLDEST = (2, 5)
"""Versions of NCCL before this have no model of time, and other protocols."""


def cases_of(table: PublishedTable) -> Iterator[Case]:
    """Some sizes of a table, first and last included."""
    setup = setup_for(table, NOMINAL).but(calibration=NOMINAL)
    shape = setup.layout
    gpus = gpus_of_a_process(table, shape)
    link = setup.slowest_link
    steps = np.linspace(0, len(table.times) - 1, min(_SIZES, len(table.times)))
    for i in sorted(set(steps.round().astype(int).tolist())):
        nbytes, seconds = table.times[i]
        parts = shape.n if table.collective in DIVIDED else 1
        try:
            plan = setup.compile(strategy_for(table.collective), tensor(nbytes, table.dtype, parts))
        except InputError:  # no plan for this collective, or too many ops
            continue
        if len(plan) <= _MOST_OPS:
            yield Case(setup, plan, nbytes, seconds, gpus, link, machine_of(table.topology))


def chosen_tables() -> Iterator[tuple[str, PublishedTable]]:
    """The tables that constants are fitted to, each with the name of its generation."""
    for table in published_tables():
        if table.held or table.library or _is_old(table.nccl):
            continue
        setup = setup_for(table)
        if len(setup.layout.tasks) > 1 and is_bracketed(setup.topology):
            continue
        capability = facts(setup.machine, setup.layout.ranks).capability
        yield GENERATIONS[max(each for each in GENERATIONS if each <= capability)], table


def _is_old(version: str) -> bool:
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    return bool(parts) and len(parts) == 2 and parts < _OLDEST and parts != (2, 0)


def calibrations() -> Iterator[Calibration]:
    """The calibration of each generation, fitted."""
    by_name: defaultdict[str, list[PublishedTable]] = defaultdict(list)
    for name, table in chosen_tables():
        by_name[name].append(table)
    everything: list[tuple[Case, float]] = []
    fitted: list[tuple[Any, ...]] = []
    for name in GENERATIONS.values():
        tables = by_name[name]
        cases = [case for table in tables for case in cases_of(table)]
        base = next((k for n, _, _, k, *_ in fitted if _AFTER.get(name) == n), NcclConstants())
        constants, fit = fit_nccl(cases, base)
        off = left_out_residuals(cases, base, constants, list(fit.values))
        everything += zip(cases, off.tolist(), strict=True)
        own = np.abs(np.expm1(fit.residuals))
        others = np.abs(np.expm1(off))
        fitted.append((name, tables, len(cases), constants, fit.errors, own, others))
    residuals = np.array([each for _, each in everything])
    spread = spread_of([case for case, _ in everything], residuals)
    for name, tables, count, constants, errors, own, others in fitted:
        provenance = {
            "hardware": ", ".join(dict.fromkeys(table.topology for table in tables)),
            "software": "NCCL "
            + ", ".join(sorted({table.nccl or "of an unknown version" for table in tables})),
            "source": "; ".join(dict.fromkeys(table.source for table in tables)),
            "tables": ", ".join(table.name for table in tables),
            "method": "robust least squares on log(predicted / published), from NCCL's own model;"
            " python -m simreduce.accuracy.shipped",
            "errors": f"{np.median(own):.0%} in the median, {np.quantile(own, 0.9):.0%} at the 90th"
            f" percentile; {np.median(others):.0%} and {np.quantile(others, 0.9):.0%} for machines"
            " left out of the fit",
            "spread": "by size and slowest link, over machines of all generations, each left out",
        }
        rounded = with_values(NcclConstants(), _rounded(nccl_names(constants)))
        yield Calibration(
            name,
            f"NCCL on {name.removeprefix('nccl-').title()}, fitted to {count} published times",
            nccl=replace(rounded, spread=spread),
            provenance=provenance,
            errors=_rounded(errors),
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
