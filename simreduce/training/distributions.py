"""Distributions of compute times in seconds.

Each has a quantile function: one uniform random number gives one time, and order statistics of n
workers follow (`order_statistic`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from math import exp, inf, isfinite, lgamma, log, log1p, pi, sqrt

import numpy as np

from simreduce.computing.arrays import Floats
from simreduce.errors import InputError, refuse


class Distribution(ABC):
    """A distribution of seconds, 0 or more."""

    @abstractmethod
    def quantile(self, u: Floats) -> Floats:
        """The quantiles at `u` in [0, 1), in seconds."""

    @property
    @abstractmethod
    def expected(self) -> float:
        """The mean, in seconds; `inf` if there is none."""

    def order_statistic(self, k: int, n: int) -> float:
        """The expected k-th smallest of n independent times; `inf` if there is none.

        It is the time of an update that needs k of n gradients, if workers begin together and
        communication is free.
        """
        if not 1 <= k <= n:
            raise InputError(f"the k-th smallest of {n} times: k from 1 to {n}, not {k}")
        return self._order_statistic(k, n)

    def _order_statistic(self, k: int, n: int) -> float:
        """By quadrature: the k-th smallest of n uniform numbers has Beta(k, n - k + 1).

        Equal steps of normal scores suit, as the integrand is smooth there and vanishes on both
        sides.
        """
        from scipy.special import betaincinv, ndtr  # noqa: PLC0415 - takes a while to load

        score, step = np.linspace(-9.0, 9.0, 3601, retstep=True)
        # From the nearer end, so that small probabilities are not lost beside 1.
        low = betaincinv(k, n - k + 1, ndtr(score))
        u = np.where(low < 0.5, low, 1.0 - betaincinv(n - k + 1, k, ndtr(-score)))
        times = self.quantile(np.minimum(u, np.nextafter(1.0, 0.0)))
        return float(times @ np.exp(-0.5 * score**2)) * float(step) / sqrt(2.0 * pi)


@dataclass(frozen=True, slots=True)
class Constant(Distribution):
    """Always the same time."""

    seconds: float

    def __post_init__(self) -> None:
        _refuse(_from_zero("seconds", self.seconds))

    def quantile(self, u: Floats) -> Floats:
        return np.full(np.shape(u), self.seconds)

    @property
    def expected(self) -> float:
        return self.seconds

    def _order_statistic(self, k: int, n: int) -> float:  # noqa: ARG002
        return self.seconds


@dataclass(frozen=True, slots=True)
class Uniform(Distribution):
    """Uniform from `low` to `high`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _refuse(
            _from_zero("low", self.low),
            _from_zero("high", self.high),
            self.high < self.low
            and f"high: no less than low ({self.low:g} s), not {self.high:g} s",
        )

    def quantile(self, u: Floats) -> Floats:
        return self.low + u * (self.high - self.low)

    @property
    def expected(self) -> float:
        return (self.low + self.high) / 2.0


@dataclass(frozen=True, slots=True)
class _Scattered(Distribution):
    """Times with a mean and a standard deviation."""

    mean: float
    sd: float

    def __post_init__(self) -> None:
        _refuse(_above_zero("mean", self.mean), _from_zero("sd", self.sd))

    @property
    def expected(self) -> float:
        return self.mean


@dataclass(frozen=True, slots=True)
class Normal(_Scattered):
    """A normal distribution truncated at 0 s.

    Unless `sd` is small beside `mean`, the expected time is above `mean` and the standard deviation
    below `sd`.
    """

    def quantile(self, u: Floats) -> Floats:
        from scipy.special import ndtri  # noqa: PLC0415 - takes a while to load

        if self.sd == 0.0:
            return np.full(np.shape(u), self.mean)
        below = self._below
        # From the near end, so that small probabilities are not lost beside 1.
        rest = (1.0 - u) * (1.0 - below)
        found: Floats = self.mean - self.sd * ndtri(rest)
        return np.maximum(found, 0.0)

    @property
    def expected(self) -> float:
        if self.sd == 0.0:
            return self.mean
        z = self.mean / self.sd
        density = float(np.exp(-0.5 * z * z)) / sqrt(2.0 * pi)
        return self.mean + self.sd * density / (1.0 - self._below)

    @property
    def _below(self) -> float:
        """The probability below 0 of the normal distribution."""
        from scipy.special import ndtr  # noqa: PLC0415 - as above

        return float(ndtr(-self.mean / self.sd))


@dataclass(frozen=True, slots=True)
class Lognormal(_Scattered):
    """Times whose logarithm is normal; `mean` and `sd` are the moments of the times themselves."""

    def quantile(self, u: Floats) -> Floats:
        from scipy.special import ndtri  # noqa: PLC0415 - as above

        variance = log1p((self.sd / self.mean) ** 2)
        found: Floats = np.exp(log(self.mean) - variance / 2.0 + sqrt(variance) * -ndtri(1.0 - u))
        return found


@dataclass(frozen=True, slots=True)
class Exponential(Distribution):
    """`least` plus an exponential time; `mean` is that of the sum."""

    mean: float
    least: float = 0.0

    def __post_init__(self) -> None:
        _refuse(
            _above_zero("mean", self.mean),
            _from_zero("least", self.least),
            self.least > self.mean
            and f"least: no more than the mean ({self.mean:g} s), not {self.least:g} s",
        )

    def quantile(self, u: Floats) -> Floats:
        return self.least - (self.mean - self.least) * np.log1p(-u)

    @property
    def expected(self) -> float:
        return self.mean


@dataclass(frozen=True, slots=True)
class Pareto(Distribution):
    """A heavy tail: P(time > t) = (least/t)^shape. The mean is finite if `shape` is above 1."""

    least: float
    shape: float

    def __post_init__(self) -> None:
        _refuse(_above_zero("least", self.least), _above_zero("shape", self.shape))

    def quantile(self, u: Floats) -> Floats:
        return self.least * np.exp(-np.log1p(-u) / self.shape)

    @property
    def expected(self) -> float:
        return self.least * self.shape / (self.shape - 1.0) if self.shape > 1.0 else inf

    def _order_statistic(self, k: int, n: int) -> float:
        """Least G(n+1) G(n-k+1-1/shape) / (G(n-k+1) G(n+1-1/shape)), G the gamma function: the tail
        is too heavy for quadrature.
        """
        rest = n - k + 1 - 1.0 / self.shape
        if rest <= 0.0:
            return inf
        whole = lgamma(n + 1) - lgamma(n + 1 - 1.0 / self.shape)
        return self.least * exp(whole + lgamma(rest) - lgamma(n - k + 1))


@dataclass(frozen=True)
class Empirical(Distribution):
    """Measured times, drawn independently with equal probability."""

    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        _refuse(
            not self.seconds and "a trace of no times",
            *(_from_zero(f"time {i}", t) for i, t in enumerate(self.seconds)),
        )

    @cached_property
    def _sorted(self) -> Floats:
        return np.sort(np.array(self.seconds))

    def quantile(self, u: Floats) -> Floats:
        return self._sorted[(u * len(self.seconds)).astype(np.int64)]

    @property
    def expected(self) -> float:
        return float(self._sorted.mean())

    def _order_statistic(self, k: int, n: int) -> float:
        """A sum over the times."""
        from scipy.special import betainc  # noqa: PLC0415 - takes a while to load

        below = betainc(k, n - k + 1, np.linspace(0.0, 1.0, len(self.seconds) + 1))
        return float(self._sorted @ np.diff(below))


def _from_zero(name: str, value: float) -> str | None:
    return None if isfinite(value) and value >= 0.0 else f"{name}: 0 s or more, not {value:g}"


def _above_zero(name: str, value: float) -> str | None:
    return None if isfinite(value) and value > 0.0 else f"{name}: above 0, not {value:g}"


def _refuse(*problems: str | bool | None) -> None:
    refuse(problem for problem in problems if isinstance(problem, str))
