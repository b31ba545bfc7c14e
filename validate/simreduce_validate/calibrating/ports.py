"""Ports whose rate is not that of the others, from transfers between pairs, each alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

APART = 0.05
"""A port differs if its rate differs from the usual one by more."""

Pair = tuple[int, int]


def port_rates(
    seconds: Mapping[Pair, float], nbytes: int
) -> tuple[dict[int, float], dict[int, float]]:
    """Bytes/s out of and into every device. `seconds` is what the bytes take over the slower of two
    ports, so that a port carries at least what the fastest of its transfers shows: with two
    partners, of which one is not slower, just that.
    """
    rates = {pair: nbytes / taken for pair, taken in seconds.items()}
    out = {a: max(rate for (x, _), rate in rates.items() if x == a) for a, _ in rates}
    into = {b: max(rate for (_, x), rate in rates.items() if x == b) for _, b in rates}
    return out, into


def slow_ports(
    seconds: Mapping[Pair, float], nbytes: int
) -> tuple[dict[int, float], dict[int, float]]:
    """Bytes/s of the ports out and in that differ from the usual rate, by device. The usual one is
    the median of all.
    """
    out, into = port_rates(seconds, nbytes)
    usual = float(np.median([*out.values(), *into.values()]))
    return tuple(
        {device: rate for device, rate in ports.items() if abs(rate / usual - 1) > APART}
        for ports in (out, into)
    )  # type: ignore[return-value]
