"""Fits the NCCL constants that simreduce ships, and finds how sure predictions by them are.

`python -m simreduce.study.accuracy.shipped` writes both to `simreduce/files/calibrations` of a
source tree: the constants as `nccl-hopper.toml` and so on, fitted to published tables that are not
held out, and the errors of all tables as `nccl-errors.csv`, see `hold_out`. It takes some minutes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf

import numpy as np

from simreduce import units
from simreduce.engine import Calibration
from simreduce.engine.calibrate import GENERATIONS, to_toml, unit_of
from simreduce.engine.calibrate.files import nccl_names, with_values
from simreduce.engine.runtime import NcclConstants
from simreduce.study.accuracy.fit import fit_nccl, left_out_residuals
from simreduce.study.accuracy.hold_out import AFTER, FOLDER, cases_of, chosen_tables, write_shipped
from simreduce.study.accuracy.kernels import BEFORE, SOURCE, fit_kernels
from simreduce.study.accuracy.points import median_and_p90

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
        base = with_values(base, {key: at[key] * factor for key, factor in changed.items()})
        base = replace(base, unaligned_peer=_UNALIGNED_PEER.get(runs, inf))
        constants, fit = fit_nccl(cases, base)
        fitted[name] = constants
        generation = re.sub(r"^Cdna", "CDNA ", name.partition("-")[2].title())  # Hopper, CDNA 3
        own = median_and_p90(np.expm1(fit.residuals))
        left_out = left_out_residuals(cases, base, constants, list(fit.values))
        others = median_and_p90(np.expm1(left_out))
        provenance = {
            "hardware": ", ".join(dict.fromkeys(table.topology for table in tables)),
            "software": f"{runs.upper()} "
            + ", ".join(sorted({table.nccl or "of an unknown version" for table in tables})),
            "source": "; ".join(dict.fromkeys(table.source for table in tables)),
            "tables": ", ".join(table.name for table in tables),
            "method": "robust least squares on log(predicted / published), from NCCL's own model;"
            " python -m simreduce.study.accuracy.shipped",
            "errors": f"{own[0]:.0%} in the median, {own[1]:.0%} at the 90th"
            f" percentile; {others[0]:.0%} and {others[1]:.0%} for sites"
            " left out of the fit",
        }
        told = NcclConstants(unaligned_peer=base.unaligned_peer)
        told = with_values(told, _rounded(nccl_names(constants)))
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
