"""A published step of five all-reduces beside predictions.

tensorflow/benchmarks, commit 3777598 (2018-04-24): ResNet-50 gradients, fp32, 8 GPUs, time per step
of 5 chained all-reduces. The machine is not named: the link rates of a DGX-1 with P100 explain the
packed step, those of one with V100 do not.

    simreduce accuracy step          # published beside predicted
    simreduce accuracy step --fit    # fits the constants of dgx1p-tf2018
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import click
import numpy as np
from scipy.optimize import bisect

import simreduce as sr
from simreduce.app.cli import command
from simreduce.app.cli.reply import Progress
from simreduce.app.cli.terminal import show, wide_option
from simreduce.computing.arrays import Floats
from simreduce.engine import NOMINAL, Calibration, LinkConstants
from simreduce.engine.setup import Setup
from simreduce.files.formats.syntax import Faults
from simreduce.files.tables import Column, Table, columns
from simreduce.plan import Plan

STEPS = 5
PUBLISHED: Mapping[str, float] = {
    "copy_to_cpu": 0.322 / STEPS,
    "copy_to_gpus": 0.290 / STEPS,
    "hierarchical_copy": 0.130 / STEPS,
    "hierarchical_copy+packs=8": 0.050 / STEPS,
}
"""Seconds of one all-reduce, by strategy."""

FITTED = "dgx1p-tf2018"
FITTED_TO = ("copy_to_cpu", "copy_to_gpus", "hierarchical_copy")
"""The points that the two constants are fitted to; the fourth is predicted without them."""

_START = (50e-6, 4e9)
_FINEST = 0.012
"""The last step of the search, about 1 %: the published digits say no more."""
_SLOPE = 0.1


@cache
def _load_step(strategy: str, machine: str) -> tuple[Plan, Setup]:
    setup = Setup(machine, "tensorflow")
    return sr.repeat(setup.compile(strategy, "resnet50"), STEPS), setup


def predict(strategy: str, machine: str, calibration: Calibration) -> float:
    """Seconds of one all-reduce, as a fifth of the chained step."""
    plan, setup = _load_step(strategy, machine)
    return setup.but(calibration=calibration).simulate(plan).seconds / STEPS


def constants(dispatch: float, qpi: float) -> Calibration:
    """The calibration with these constants: seconds per transfer, bytes/s per QPI lane and
    direction.
    """
    links = {"qpi": LinkConstants(bandwidth=qpi)}
    return Calibration(FITTED, dispatch={"copy": dispatch}, links=links)


@dataclass(frozen=True, slots=True)
class DispatchFit:
    """Least squares on log(predicted / published), one degree of freedom.

    Errors are one standard error.
    """

    dispatch: float
    dispatch_error: float
    qpi: float
    qpi_error: float
    residuals: Mapping[str, float]


def _residuals(logs: Floats) -> Floats:
    calibration = constants(*np.exp(logs).tolist())
    return np.array([math.log(predict(p, "dgx1p", calibration) / PUBLISHED[p]) for p in FITTED_TO])


def squared_error(logs: Floats) -> float:
    """Sum over the fitted points of log(predicted / published) squared, at the constants' logs."""
    residuals = _residuals(logs)
    return float(residuals @ residuals)


def fit() -> DispatchFit:
    """Pattern search in the logarithms of both constants: to the best of 8 neighbours, or half the
    step.

    The error is jagged, as a constant decides which of two copies is first in a queue, so its
    gradient leads nowhere. Standard errors come from slopes over a step as wide as they are.
    """
    x, step = np.log(_START), 0.2
    best = squared_error(x)
    directions = [np.array([i, j]) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j]
    while step > _FINEST:
        neighbours = [x + step * direction for direction in directions]
        errors = [squared_error(each) for each in neighbours]
        if min(errors) < best:
            best = min(errors)
            x = neighbours[errors.index(best)]
        else:
            step /= 2
    rises = [_residuals(x + _SLOPE * d) - _residuals(x - _SLOPE * d) for d in np.eye(2)]
    jacobian = np.stack(rises, axis=1) / (2 * _SLOPE)
    variance = best / max(len(FITTED_TO) - 2, 1)
    error = np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian)) * variance) * np.exp(x)
    dispatch, qpi = np.exp(x).tolist()
    residuals = dict(zip(FITTED_TO, _residuals(x).tolist(), strict=True))
    return DispatchFit(dispatch, float(error[0]), qpi, float(error[1]), residuals)


def fit_alone(point: str, start: DispatchFit) -> tuple[float | None, float | None]:
    """(dispatch, qpi) that fit this point, each with the other constant of `start`, or None."""

    def solve(axis: int, low: float, high: float) -> float | None:
        def miss(log: float) -> float:
            pair = (math.exp(log), start.qpi) if axis == 0 else (start.dispatch, math.exp(log))
            return predict(point, "dgx1p", constants(*pair)) - PUBLISHED[point]

        low, high = math.log(low), math.log(high)
        if miss(low) * miss(high) > 0:
            return None
        return math.exp(bisect(miss, low, high, xtol=1e-5))

    return solve(0, 1e-7, 1e-3), solve(1, 5e8, 2e10)


def report() -> str:
    """Published beside predicted: nominal on both machines, and with the fitted constants."""
    cases = (("dgx1p", NOMINAL), ("dgx1v", NOMINAL), ("dgx1p", sr.load_calibration(FITTED)))
    rows = []
    for strategy, seconds in PUBLISHED.items():
        found = (predict(strategy, machine, calibration) for machine, calibration in cases)
        cells = (f"{each * 1e3:.2f} ms ({each / seconds - 1:+6.1%})" for each in found)
        rows.append((strategy, f"{seconds * 1e3:.1f} ms", *cells))
    head = columns("one all-reduce of ResNet-50|published", left="one all-reduce of ResNet-50")
    settings = (Column(f"{machine}, {calibration.name}") for machine, calibration in cases)
    return "\n".join(Table((*head, *settings), tuple(rows)).lines())


def fit_report() -> str:
    """The two constants, their errors, and what each point alone would have given."""
    found = fit()
    rows = [
        ("all points", f"{found.dispatch * 1e6:.1f} us", f"{found.qpi / 1e9:.2f} GB/s", ""),
        ("", f"+- {found.dispatch_error * 1e6:.1f} us", f"+- {found.qpi_error / 1e9:.2f} GB/s", ""),
    ]
    for point in FITTED_TO:
        dispatch, qpi = fit_alone(point, found)
        one = f"{dispatch * 1e6:.1f} us" if dispatch else "says nothing"
        two = f"{qpi / 1e9:.2f} GB/s" if qpi else "says nothing"
        rows.append((f"{point} alone", one, two, f"{math.expm1(found.residuals[point]):+.1%}"))
    head = columns("fitted to|dispatch per transfer|QPI per lane|residual", left="fitted to")
    return "\n".join(Table(head, tuple(rows)).lines())


@command(examples="simreduce accuracy step")
@click.option("--fit", "fitting", is_flag=True, help="Fit the two constants (a minute or two).")
@wide_option
def step(faults: Faults, fitting: bool) -> None:
    """Compare a published step of five all-reduces with predictions."""
    faults.raise_any()
    with Progress("fitting" if fitting else "predicting"):
        text = fit_report() if fitting else report()
    show(text)
