"""Fits of constants: robust least squares on what the simulator predicts for measured plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

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

_TELLING = 0.05
"""The slope from which on a measurement depends on a constant: log(seconds) by log(constant)."""

_WIDER, _FARTHEST = 1e2, 1e6
"""By how much bounds move at a time, and how far they are from the start at most, as factors."""

_STEP, _ENOUGH, _MOST = 1e-3, 1e-5, 30

_ROUGH = 8
"""Evaluations of a rough fit."""


@dataclass(frozen=True, slots=True)
class FreeConstant:
    """`name` as in the file, such as `links.cable.bandwidth`.

    The fit begins at `start` and stays between `low` and `high`, in SI units. `hard` bounds are
    values like others (a number of cores is 1 or more), while nothing is found at one that is only
    far away. `pull` is the residual of a value that is ten times `start`. Bounds that are `guessed`
    move away where a measurement depends on the constant. A constant that is `known` takes `start`
    where the measurements hardly determine it and do not contradict that.
    """

    name: str
    start: float
    low: float
    high: float
    hard: bool = False
    pull: float = PULL
    guessed: bool = False
    known: bool = False

    @staticmethod
    def about(
        name: str, start: float, factor: float = 1e3, pull: float = PULL, *, known: bool = False
    ) -> FreeConstant:
        """A constant whose size is thought to be known up to a factor."""
        return FreeConstant(name, start, start / factor, start * factor, False, pull, True, known)


@dataclass(frozen=True, slots=True)
class Fit:
    """`values` and their standard errors by name, in SI units.

    `vague` gives a reason for each constant that the measurements hardly determine, with or without
    a value; one that was held at its start has no standard error.
    `residuals` are log(predicted / measured), in the order of the measurements.
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
    bound that is only far away, has no value: the rest is fitted again without it. Of the `known`
    constants that are hardly determined, the least certain takes its start, unless that fits
    certainly worse; the rest is fitted again, until no such constant is left.
    """
    goal, held, refuted = np.log(np.array(measured)), dict[str, float](), set[str]()
    reasons: dict[str, str] = {}

    def settle(free: list[FreeConstant], first: _Settled, held: Mapping[str, float]) -> _Settled:
        return _settle(free, first, lambda found: predict({**found, **held}), goal, inlier)

    begin = _Settled([], {c.name: c.start for c in constants}, {}, np.zeros(0), {})
    now = settle(list(constants), begin, held)
    while True:
        hardly = {
            n: f"standard error {now.errors[n] / v:.0%}"
            for n, v in now.values.items()
            if now.errors[n] > VAGUE * v
        }
        doubtful = [c for c in now.free if c.known and c.name in hardly.keys() - refuted]
        if not doubtful:
            break
        worst = max(doubtful, key=lambda c: now.errors[c.name] / now.values[c.name])
        usual = {**held, worst.name: worst.start}
        then = settle([c for c in now.free if c != worst], now, usual)
        if _refutes(now, then, inlier):
            refuted.add(worst.name)
            continue
        reasons[worst.name] = f"{hardly[worst.name]}, so it keeps its usual value"
        now, held = then, usual
    return Fit(
        {**now.values, **held},
        now.errors,
        now.without | reasons | hardly,
        tuple(now.residuals.tolist()),
    )


@dataclass(frozen=True, slots=True)
class _Settled:
    """A fit of the constants that are `free`; those `without` a value have a reason."""

    free: list[FreeConstant]
    values: Mapping[str, float]
    errors: Mapping[str, float]
    residuals: Floats
    without: dict[str, str]


def _settle(
    free: list[FreeConstant],
    first: _Settled,
    predict: Callable[[Mapping[str, float]], Sequence[float]],
    goal: Floats,
    inlier: float,
) -> _Settled:
    """The fit from `first` on, with wider bounds and without constants until none is at a bound
    that is only far away.
    """
    values, without = first.values, dict(first.without)
    while True:
        found = _solve(free, values, predict, goal, inlier)
        values, errors, residuals, bound, slopes = found
        wide = [_widened(c) if bound[c.name] and slopes[c.name] > _TELLING else c for c in free]
        if wide != free:
            free = wide
            continue
        for constant in free:
            if bound[constant.name] and not constant.hard:
                without[constant.name] = (
                    f"no value from {constant.low:.3g} to {constant.high:.3g} fits best"
                )
            elif not np.isfinite(errors[constant.name]):
                without[constant.name] = "nothing that was measured depends on it"
        if not without.keys() & {c.name for c in free}:
            return _Settled(free, values, errors, residuals, without)
        free = [c for c in free if c.name not in without]


def _refutes(now: _Settled, then: _Settled, inlier: float) -> bool:
    """Whether a constant's usual value, held in `then`, is more than two standard errors away: by
    the F-test of the two losses, as constants far below their start are not linear.
    """
    before, after = (
        inlier**2 * float(_soft_l1((each.residuals / inlier) ** 2)[0].sum()) for each in (now, then)
    )
    freedom = max(len(now.residuals) - len(now.free), 1)
    return after - before > 4 * max(before / freedom, _EXACT**2)


def fit_roughly(
    constants: Sequence[FreeConstant],
    predict: Callable[[Mapping[str, float]], Sequence[float]],
    measured: Sequence[float],
) -> Fit:
    """The constants after the first `_ROUGH` steps of `fit_constants`, without standard errors."""
    first, goal = {c.name: c.start for c in constants}, np.log(np.array(measured))
    logs, residuals, *_ = _search(constants, first, predict, goal, INLIER, _ROUGH)
    values = dict(zip(first, np.exp(logs).tolist(), strict=True))
    return Fit(values, {}, {}, tuple(residuals(logs).tolist()))


def _search(
    free: Sequence[FreeConstant],
    first: Mapping[str, float],
    predict: Callable[[Mapping[str, float]], Sequence[float]],
    goal: Floats,
    inlier: float,
    steps: int,
) -> tuple[Floats, Callable[[Floats], Floats], Floats, Floats]:
    """Logarithms of the best constants after so many steps, the residuals by such logarithms, and
    the bounds of these.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415 - takes long; logs are read without

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
        np.clip(np.log([first[c.name] for c in free]), low + 1e-6, high - 1e-6),
        bounds=(low, high),
        loss=_soft_l1,
        f_scale=inlier,
        diff_step=_STEP,
        xtol=_ENOUGH,
        ftol=_ENOUGH,
        max_nfev=steps,
    )
    return found.x, residuals, low, high


def _solve(
    free: Sequence[FreeConstant],
    first: Mapping[str, float],
    predict: Callable[[Mapping[str, float]], Sequence[float]],
    goal: Floats,
    inlier: float,
) -> tuple[dict[str, float], dict[str, float], Floats, dict[str, bool], dict[str, float]]:
    if not free:
        return {}, {}, np.log(np.array(predict({}))) - goal, {}, {}
    logs, residuals, low, high = _search(free, first, predict, goal, inlier, _MOST)
    last = residuals(logs)
    slopes = find_slopes(residuals, logs)
    errors = _standard_errors(slopes, last, inlier)
    names = [c.name for c in free]
    steepest = dict(zip(names, np.abs(slopes).max(axis=0, initial=0.0).tolist(), strict=True))
    at_bound = [bool(x - a < 1e-3 or b - x < 1e-3) for x, a, b in zip(logs, low, high, strict=True)]
    values = dict(zip(names, np.exp(logs).tolist(), strict=True))
    spread = {
        name: values[name] * error for name, error in zip(names, errors.tolist(), strict=True)
    }
    return values, spread, last, dict(zip(names, at_bound, strict=True)), steepest


def _widened(constant: FreeConstant) -> FreeConstant:
    """The constant with bounds that are farther away, if they are guessed and not far yet."""
    low, high = constant.start / _FARTHEST, constant.start * _FARTHEST
    if not constant.guessed or constant.high >= high:
        return constant
    return replace(
        constant,
        low=max(constant.low / _WIDER, low),
        high=min(constant.high * _WIDER, high),
    )


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
