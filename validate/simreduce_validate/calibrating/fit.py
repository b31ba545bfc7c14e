"""Robust least squares on what the simulator itself predicts for the plans that were measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from simreduce_validate.calibrating.constants import Constant

Floats = npt.NDArray[np.float64]

INLIER = 0.05
"""Residuals, as a part of the time, from which a measurement pulls less than in proportion."""

VAGUE = 0.5
"""A standard error of more than this part of its constant: the measurements do not determine it."""

_STEP = 1e-3


@dataclass(frozen=True, slots=True)
class Fit:
    """`values` and their standard errors by name, in SI units, of what is determined; `vague` what is not, and why. `residuals` are
    log(predicted / measured), in the order of the measurements.
    """

    values: Mapping[str, float]
    errors: Mapping[str, float]
    vague: Mapping[str, str]
    residuals: tuple[float, ...]


def fitted(
    constants: Sequence[Constant],
    predict: Callable[[Mapping[str, float]], Sequence[float]],
    measured: Sequence[float],
) -> Fit:
    """The constants for which `predict` comes nearest to `measured` seconds.

    Residuals are logarithms of ratios, so that microseconds count as much as seconds, and count less beyond `INLIER` (the
    loss is 2(sqrt(1 + z) - 1)). Constants are fitted as logarithms: they are above 0 and their errors are parts of them.
    Standard errors are those of linear least squares at the solution. What is at a bound, or vague, is taken out, and the rest is
    fitted again with it at its start, so that what is kept does not lean on it.
    """
    vague: dict[str, str] = {}
    while True:
        free = [c for c in constants if c.name not in vague]
        rest = {c.name: c.start for c in constants if c.name in vague}
        values, errors, residuals, bound = _solved(free, rest, predict, np.log(np.array(measured)))
        poor = {c.name: why for c in free if (why := _why(c, values[c.name], errors[c.name], bound[c.name]))}
        if not poor:
            return Fit(values, errors, vague, tuple(residuals.tolist()))
        # One at a time, the worst first: others may be determined without it.
        worst = max(poor, key=lambda name: (bound[name], errors[name] / values[name]))
        vague[worst] = poor[worst]


def _why(constant: Constant, value: float, error: float, at_bound: bool) -> str:
    if at_bound and constant.hard:
        return ""
    if at_bound:
        return f"no value from {constant.low:.3g} to {constant.high:.3g} fits best"
    return f"standard error {error / value:.0%}" if not error <= VAGUE * value else ""


def _solved(
    free: Sequence[Constant],
    rest: Mapping[str, float],
    predict: Callable[[Mapping[str, float]], Sequence[float]],
    goal: Floats,
) -> tuple[dict[str, float], dict[str, float], Floats, dict[str, bool]]:
    def residuals(logs: Floats) -> Floats:
        values = {c.name: float(np.exp(x)) for c, x in zip(free, logs, strict=True)}
        predicted: Floats = np.array(predict({**rest, **values}))
        return np.log(predicted) - goal

    if not free:
        return {}, {}, residuals(np.zeros(0)), {}
    low, high = (np.log([getattr(c, edge) for c in free]) for edge in ("low", "high"))
    start = np.clip(np.log([c.start for c in free]), low + 1e-6, high - 1e-6)
    found = least_squares(
        residuals,
        start,
        bounds=(low, high),
        loss="soft_l1",
        f_scale=INLIER,
        diff_step=_STEP,
        x_scale=1.0,
        max_nfev=60,
    )
    last = residuals(found.x)
    errors = _errors(_slopes(residuals, found.x), last)
    names = [c.name for c in free]
    at_bound = [bool(x - a < 1e-3 or b - x < 1e-3) for x, a, b in zip(found.x, low, high, strict=True)]
    values = dict(zip(names, np.exp(found.x).tolist(), strict=True))
    spread = {name: values[name] * error for name, error in zip(names, errors.tolist(), strict=True)}
    return values, spread, last, dict(zip(names, at_bound, strict=True))


def _slopes(residuals: Callable[[Floats], Floats], at: Floats) -> Floats:
    """Of every residual by every constant, from both sides."""
    columns = []
    for i in range(len(at)):
        step = np.zeros(len(at))
        step[i] = 0.02
        columns.append((residuals(at + step) - residuals(at - step)) / 0.04)
    return np.stack(columns, axis=1)


def _errors(slopes: Floats, residuals: Floats) -> Floats:
    """Standard errors; infinite where nothing depends on a constant. Residuals beyond `INLIER` count as in the loss."""
    weight = 1 / np.sqrt(1 + (residuals / INLIER) ** 2)
    freedom = max(len(residuals) - slopes.shape[1], 1)
    variance = float((weight * residuals**2).sum()) / freedom
    normal = slopes.T @ (weight[:, None] * slopes)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = 1 / np.sqrt(np.diag(normal))
    known = np.isfinite(scale) & (scale < 1e6)
    errors = np.full(len(scale), np.inf)
    if known.any():
        part = normal[np.ix_(known, known)] * np.outer(scale[known], scale[known])
        inverse = np.linalg.pinv(part, hermitian=True, rcond=1e-12)
        errors[known] = np.sqrt(np.maximum(np.diag(inverse), 0.0) * variance) * scale[known]
    return errors
