"""Robust least squares on what the simulator itself predicts for the plans that were measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from simreduce.computing.arrays import Floats

INLIER = 0.05
"""Residuals, as a part of the time, from which a measurement pulls less than in proportion."""

VAGUE = 0.5
"""A standard error of more than this part of its constant: the measurements hardly determine it."""

PULL = 0.02
"""The residual of a constant that is ten times its start: enough to settle undetermined ones."""

_UNKNOWN = np.log(10)
_EXACT = 1e-4
"""Residuals are taken to be no less: measurements without noise would know everything."""

_NOTHING = 1e-12
"""Of squared slopes: no measurement depends on such a constant."""

_STEP, _ENOUGH, _MOST = 1e-3, 1e-5, 30


@dataclass(frozen=True, slots=True)
class FreeConstant:
    """`name` as in the file, such as `links.cable.bandwidth`.

    The fit begins at `start` and stays between `low` and `high`, in SI units. `hard` bounds are
    values like others (a number of cores is 1 or more), while nothing is found at one that is only
    far away. `pull` is the residual of a value that is ten times `start`.
    """

    name: str
    start: float
    low: float
    high: float
    hard: bool = False
    pull: float = PULL

    @staticmethod
    def about(name: str, start: float, factor: float = 1e3) -> FreeConstant:
        """A constant whose size is known up to a factor."""
        return FreeConstant(name, start, start / factor, start * factor)


@dataclass(frozen=True, slots=True)
class Fit:
    """`values` and their standard errors by name, in SI units.

    `vague` gives a reason for each constant that the measurements hardly determine, with or without
    a value. `residuals` are log(predicted / measured), in the order of the measurements.
    """

    values: Mapping[str, float]
    errors: Mapping[str, float]
    vague: Mapping[str, str]
    residuals: tuple[float, ...]


def fit_constants(
    constants: Sequence[FreeConstant],
    predict: Callable[[Mapping[str, float]], Sequence[float]],
    measured: Sequence[float],
    inlier: float = INLIER,
) -> Fit:
    """The constants for which `predict` comes nearest to `measured` seconds.

    Residuals are logarithms of ratios, so that microseconds count as much as seconds, and count
    less beyond `inlier` (the loss is 2(sqrt(1 + z) - 1)). Constants are fitted as logarithms: they
    are above 0 and their errors are parts of them. Standard errors come from linear least squares
    at the solution, with constants known to a factor of ten before: so they have a limit also where
    constants can replace each other. A constant that nothing depends on, or that fits best at a
    bound that is only far away, has no value: the rest is fitted again without it.
    """
    without: dict[str, str] = {}
    while True:
        free = [c for c in constants if c.name not in without]
        values, errors, residuals, bound = _solve(free, predict, np.log(np.array(measured)), inlier)
        for constant in free:
            if bound[constant.name] and not constant.hard:
                without[constant.name] = (
                    f"no value from {constant.low:.3g} to {constant.high:.3g} fits best"
                )
            elif not np.isfinite(errors[constant.name]):
                without[constant.name] = "nothing that was measured depends on it"
        if len(free) == len(constants) - len(without):
            hardly = {
                n: f"standard error {errors[n] / v:.0%}"
                for n, v in values.items()
                if errors[n] > VAGUE * v
            }
            return Fit(values, errors, without | hardly, tuple(residuals.tolist()))


def _solve(
    free: Sequence[FreeConstant],
    predict: Callable[[Mapping[str, float]], Sequence[float]],
    goal: Floats,
    inlier: float,
) -> tuple[dict[str, float], dict[str, float], Floats, dict[str, bool]]:
    begin = np.log([c.start for c in free])
    pull = np.array([c.pull for c in free]) / _UNKNOWN

    def residuals(logs: Floats) -> Floats:
        predicted: Floats = np.array(
            predict({c.name: float(np.exp(x)) for c, x in zip(free, logs, strict=True)})
        )
        return np.log(predicted) - goal

    def with_pull(logs: Floats) -> Floats:
        return np.concatenate([residuals(logs), pull * (logs - begin)])

    low, high = (np.log([getattr(c, edge) for c in free]) for edge in ("low", "high"))
    found = least_squares(
        with_pull,
        np.clip(begin, low + 1e-6, high - 1e-6),
        bounds=(low, high),
        loss=_soft_l1,
        f_scale=inlier,
        diff_step=_STEP,
        xtol=_ENOUGH,
        ftol=_ENOUGH,
        max_nfev=_MOST,
    )
    last = residuals(found.x)
    errors = _standard_errors(find_slopes(residuals, found.x), last, inlier)
    names = [c.name for c in free]
    at_bound = [
        bool(x - a < 1e-3 or b - x < 1e-3) for x, a, b in zip(found.x, low, high, strict=True)
    ]
    values = dict(zip(names, np.exp(found.x).tolist(), strict=True))
    spread = {
        name: values[name] * error for name, error in zip(names, errors.tolist(), strict=True)
    }
    return values, spread, last, dict(zip(names, at_bound, strict=True))


def _soft_l1(z: Floats) -> Floats:
    """The loss of squared scaled residuals and its two derivatives."""
    t = 1 + z
    return np.stack([2 * (t**0.5 - 1), t**-0.5, -0.5 * t**-1.5])


def weights(residuals: Floats, inlier: float = INLIER) -> Floats:
    """The weight of each measurement in the fit: 1 for small residuals, less beyond `inlier`."""
    _, weight, _ = _soft_l1((residuals / inlier) ** 2)
    return np.asarray(weight)


def find_slopes(residuals: Callable[[Floats], Floats], at: Floats) -> Floats:
    """The slope of every residual by every constant, from both sides."""
    steps = 0.02 * np.eye(len(at))
    columns = [(residuals(at + step) - residuals(at - step)) / 0.04 for step in steps]
    return np.stack(columns, axis=1)


def _standard_errors(slopes: Floats, residuals: Floats, inlier: float) -> Floats:
    """Standard errors, weighted as in the loss; infinite where nothing depends on a constant."""
    weight = weights(residuals, inlier)
    freedom = max(len(residuals) - slopes.shape[1], 1)
    variance = max(float((weight * residuals**2).sum()) / freedom, _EXACT**2)
    normal = slopes.T @ (weight[:, None] * slopes)
    known = np.diag(normal) > _NOTHING
    errors = np.full(len(known), np.inf)
    information = normal[np.ix_(known, known)] / variance + np.eye(int(known.sum())) / _UNKNOWN**2
    errors[known] = np.sqrt(np.diag(np.linalg.inv(information)))
    return errors
