"""How much longer than one GPU many take that differ, as all wait for the slowest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import NormalDist

from simreduce.files.formats import number

SPREAD = number(0.0, 0.5)
"""How files say a standard deviation, in parts of the mean."""

PERCENTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
"""Parts of all draws."""


def slowest_of(count: int, spread: float, part: float | None = None) -> float:
    """How many times as long as the mean the slowest of `count` is expected to take, if their times
    have the standard deviation `spread`, in parts of the mean.

    With a `part`, what the slowest takes at most in that part of all draws of so many: the largest
    of n is below x where all n are, so its distribution is the n-th power of one's. Times are
    normal (Blom's approximation of the largest of a sample), and the same whether GPUs differ from
    each other or each from step to step. GPUs of one kind differ by 8 % in clusters: Sinha et al.
    2022, https://arxiv.org/abs/2208.11035.
    """
    if not spread:
        return 1.0
    below = (count - 0.375) / (count + 0.25) if part is None else part ** (1.0 / count)
    return 1.0 + spread * NormalDist().inv_cdf(below)


def percentiles(seconds: Callable[[float], float]) -> Mapping[str, float]:
    """What `seconds` says of each part of all draws, by the names of `PERCENTILES`."""
    return {name: seconds(part) for name, part in PERCENTILES.items()}
