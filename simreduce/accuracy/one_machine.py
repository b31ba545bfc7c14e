"""Fits NCCL's constants to times of one machine: to a user's logs, or to three sizes of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simreduce.accuracy.fit import Case, fit_nccl
from simreduce.calibrate.fit import INLIER, Fit
from simreduce.engine.calibration import NcclConstants

_FEW = 6
"""Times below which none can be told to be an outlier: each constant needs them all."""
_ANY = 1.0
"""Residuals up to this, as logarithms, then count in full."""


def fit_machine(cases: Sequence[Case]) -> tuple[NcclConstants, Fit]:
    """The constants of a machine, known before as those of its generation, and the fit."""
    base = replace(cases[0].setup.constants.nccl, measured=find_measured(cases))
    return fit_nccl(cases, base, _ANY if len(cases) < _FEW else INLIER)


def find_measured(cases: Sequence[Case]) -> dict[str, tuple[int, ...]]:
    """The collectives of the cases, and on how many GPUs."""
    found: dict[str, tuple[int, ...]] = {}
    for case in cases:
        name, count = case.plan.contract.collective, case.setup.layout.n
        found[name] = tuple(sorted({*found.get(name, ()), count}))
    return found
