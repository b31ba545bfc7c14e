"""Disturbances as users type them: `gpu3=1.5`, `gpu0>gpu3@1ms=0`, `0.1%`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from simreduce import units
from simreduce.engine.disturbance import MOST_TOLERANCE, SLOWEST, Disturbance, Fault
from simreduce.files.formats import Faults

LEAST_RATE, MOST_RATE = 1.0, 1e18
"""Bytes/s of a link that carries anything: what is beyond is a slip."""
LEAST_SHARE = 1e-4
"""Percent of its bandwidth that a link has at least, if any."""


def parse_disturbance(
    faults: Faults,
    dashes: str,
    jitter: str | None,
    seed: int | None,
    slow: Sequence[str],
    fault: Sequence[str],
    tolerance: str | None = None,
) -> Disturbance:
    """Return the disturbance of these texts.

    `faults` notes what is wrong with them, under names that begin with `dashes`.
    """
    slower: dict[str, float] = {}
    for text in slow:
        name, factor = faults.attempt(f"{dashes}slow {text}", _slow, text) or ("", 1.0)
        if name in slower:
            words = f"another {dashes}slow slows {name} down; give one factor"
            faults.add(f"{dashes}slow {text}", words)
        slower |= {name: factor} if name else {}
    found = [faults.attempt(f"{dashes}fault {text}", _fault, text) for text in fault]
    part = 0.0 if jitter is None else _number(jitter)
    if part is None or not 0.0 <= part <= 1.0:
        faults.add(f"{dashes}jitter {jitter}", "needs a part between 0 and 1")
        part = 0.0
    if seed is not None and jitter is None:
        words = f"only {dashes}jitter draws from it; give {dashes}jitter PART too"
        faults.add(f"{dashes}seed {seed}", words)
    early = 0.0 if tolerance is None else _part(tolerance)
    if early is None or not 0.0 <= early <= MOST_TOLERANCE:
        words = f"needs a part between 0 and {MOST_TOLERANCE:.0%}, as 0.1%"
        faults.add(f"{dashes}tolerance {tolerance}", words)
        early = 0.0
    return Disturbance(slower, part, seed or 0, tuple(filter(None, found)), early)


def _part(text: str) -> float | None:
    """`0.1%` or `0.001`; None if it is neither."""
    number = _number(text.removesuffix("%"))
    return number / 100.0 if number is not None and text.endswith("%") else number


def _slow(text: str) -> tuple[str, float]:
    """`gpu3=1.5`."""
    name, _, number = text.rpartition("=")
    factor = _number(number)
    if not name or factor is None or factor <= 0.0:
        raise ValueError("a device and a factor above 0, such as gpu3=1.5")
    if not 1 / SLOWEST <= factor <= SLOWEST:
        raise ValueError(f"the factor must be between {1 / SLOWEST:g} and {SLOWEST:g}")
    return name, factor


def _fault(text: str) -> Fault:
    """`gpu0>gpu3@1ms=0`, `nvlink2@0=5GB/s`, `gpu3@2ms=50%`."""
    place, _, rate = text.rpartition("=")
    link, _, when = place.rpartition("@")
    if not link or not when or not rate:
        raise ValueError("needs LINK@TIME=BANDWIDTH, such as gpu0>gpu3@1ms=0 or gpu3@2ms=50%")
    time = 0.0 if when == "0" else units.duration(when)
    if rate.endswith("%"):
        return Fault(time, link, factor=_share(rate))
    return Fault(time, link, 0.0 if rate == "0" else _rate(rate))


def _share(rate: str) -> float:
    """`50%` as 0.5."""
    percent = _number(rate[:-1])
    if percent != 0 and (percent is None or not LEAST_SHARE <= percent <= 100):
        raise ValueError(
            f"{rate!r} is not a share of a bandwidth, 0% or {LEAST_SHARE:g}% to 100%; "
            "write for example 50%"
        )
    return percent / 100


def _rate(rate: str) -> float:
    """Bytes/s of `5GB/s`."""
    value = units.bandwidth(rate)
    if value and not LEAST_RATE <= value <= MOST_RATE:
        raise ValueError(f"{rate!r} is no rate of a link: 0, or 1 B/s to 1e9 GB/s")
    return value


def _number(text: str) -> float | None:
    """None for what is no finite number."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
