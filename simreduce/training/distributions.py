"""How long a computation takes when it does not always take as long: distributions of seconds.

All are given by their quantile function, so that one even random number makes one time, and so that
what n workers take together can be worked out (`order_statistic`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from math import exp, inf, isfinite, lgamma, log, log1p, pi, sqrt

import numpy as np

from simreduce.arrays import Floats
from simreduce.errors import InputError


class Distribution(ABC):
    """Of seconds, 0 or more."""

    @abstractmethod
    def quantile(self, u: Floats) -> Floats:
        """The time that a part `u`, from 0 up to but not 1, of all times are below."""

    @property
    @abstractmethod
    def expected(self) -> float:
        """The mean, in seconds; `inf` if there is none."""

    def order_statistic(self, k: int, n: int) -> float:
        """The expected k-th smallest of n times that do not depend on one another; `inf` if there
        is none. So long takes an update of n workers that begin together and of whose gradients it
        needs k, if communication is free.
        """
        if not 1 <= k <= n:
            raise InputError(f"the k-th smallest of {n} times: k from 1 to {n}, not {k}")
        return self._order_statistic(k, n)

    def _order_statistic(self, k: int, n: int) -> float:
        """By quadrature: the k-th smallest of n even numbers is distributed as Beta(k, n - k + 1).
        Over normal scores, where the integrand is smooth and dies away on both sides, even steps
        are best.
        """
        from scipy.special import betaincinv, ndtr  # noqa: PLC0415 - takes a while to load

        score, step = np.linspace(-9.0, 9.0, 3601, retstep=True)
        # From the nearer end, so that small parts are not lost beside 1.
        low = betaincinv(k, n - k + 1, ndtr(score))
        u = np.where(low < 0.5, low, 1.0 - betaincinv(n - k + 1, k, ndtr(-score)))
        times = self.quantile(np.minimum(u, np.nextafter(1.0, 0.0)))
        return float(times @ np.exp(-0.5 * score**2)) * float(step) / sqrt(2.0 * pi)


@dataclass(frozen=True, slots=True)
class Constant(Distribution):
    """Always the same."""

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
    """Anything from `low` to `high`, equally likely."""

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
        found: Floats = self.low + u * (self.high - self.low)
        return found

    @property
    def expected(self) -> float:
        return (self.low + self.high) / 2.0


@dataclass(frozen=True, slots=True)
class Normal(Distribution):
    """A normal distribution of which only what is above 0 s counts: times below are drawn again,
    not raised to 0. Where `sd` is small beside `mean`, that is the normal distribution itself; else
    what is expected is above `mean`, and the spread below `sd`.
    """

    mean: float
    sd: float

    def __post_init__(self) -> None:
        _refuse(_above_zero("mean", self.mean), _from_zero("sd", self.sd))

    def quantile(self, u: Floats) -> Floats:
        from scipy.special import ndtri  # noqa: PLC0415 - takes a while to load

        if self.sd == 0.0:
            return np.full(np.shape(u), self.mean)
        below = self._below
        # From the near end, so that small parts of a half are not lost beside 1.
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
        """The part of the normal distribution that is below 0."""
        from scipy.special import ndtr  # noqa: PLC0415 - as above

        return float(ndtr(-self.mean / self.sd))


@dataclass(frozen=True, slots=True)
class Lognormal(Distribution):
    """Times whose logarithm is normal; `mean` and `sd` are those of the times themselves."""

    mean: float
    sd: float

    def __post_init__(self) -> None:
        _refuse(_above_zero("mean", self.mean), _from_zero("sd", self.sd))

    def quantile(self, u: Floats) -> Floats:
        from scipy.special import ndtri  # noqa: PLC0415 - as above

        variance = log1p((self.sd / self.mean) ** 2)
        found: Floats = np.exp(log(self.mean) - variance / 2.0 + sqrt(variance) * -ndtri(1.0 - u))
        return found

    @property
    def expected(self) -> float:
        return self.mean


@dataclass(frozen=True, slots=True)
class Exponential(Distribution):
    """At least `least`, and then without memory; `mean` is that of the whole."""

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
        found: Floats = self.least - (self.mean - self.least) * np.log1p(-u)
        return found

    @property
    def expected(self) -> float:
        return self.mean


@dataclass(frozen=True, slots=True)
class Pareto(Distribution):
    """A heavy tail: the part (least/t)^shape of all times is above t. There is a mean only if
    `shape` is above 1.
    """

    least: float
    shape: float

    def __post_init__(self) -> None:
        _refuse(_above_zero("least", self.least), _above_zero("shape", self.shape))

    def quantile(self, u: Floats) -> Floats:
        found: Floats = self.least * np.exp(-np.log1p(-u) / self.shape)
        return found

    @property
    def expected(self) -> float:
        return self.least * self.shape / (self.shape - 1.0) if self.shape > 1.0 else inf

    def _order_statistic(self, k: int, n: int) -> float:
        """Least G(n+1) G(n-k+1-1/shape) / (G(n-k+1) G(n+1-1/shape)): the tail is too heavy for
        quadrature.
        """
        rest = n - k + 1 - 1.0 / self.shape
        if rest <= 0.0:
            return inf
        whole = lgamma(n + 1) - lgamma(n + 1 - 1.0 / self.shape)
        return self.least * exp(whole + lgamma(rest) - lgamma(n - k + 1))


@dataclass(frozen=True)
class Empirical(Distribution):
    """Times that were measured: any of them, equally likely, whatever came before."""

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
        found: Floats = self._sorted[(u * len(self.seconds)).astype(np.int64)]
        return found

    @property
    def expected(self) -> float:
        return float(self._sorted.mean())

    def _order_statistic(self, k: int, n: int) -> float:
        """A sum, as there are only so many times."""
        from scipy.special import betainc  # noqa: PLC0415 - takes a while to load

        below = betainc(k, n - k + 1, np.linspace(0.0, 1.0, len(self.seconds) + 1))
        return float(self._sorted @ np.diff(below))


def _from_zero(name: str, value: float) -> str | None:
    return None if isfinite(value) and value >= 0.0 else f"{name}: 0 s or more, not {value:g}"


def _above_zero(name: str, value: float) -> str | None:
    return None if isfinite(value) and value > 0.0 else f"{name}: above 0, not {value:g}"


def _refuse(*problems: str | bool | None) -> None:
    told = [problem for problem in problems if isinstance(problem, str)]
    if told:
        raise InputError(told)
