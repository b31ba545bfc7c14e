"""The constants of a prediction that no data sheet gives: a value, fitted elsewhere, used by the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LinkConstants:
    """Replaces what the topology says of a link class. None keeps the topology's figure."""

    bandwidth: float | None = None  # bytes/s, per lane and direction
    latency: float | None = None  # s


@dataclass(frozen=True, slots=True)
class Calibration:
    """Constants by op kind and link class.

    `dispatch[kind]` is what one op of that kind (`copy`, `add`, ...) costs before its latency, in seconds, while it
    holds its lanes. `provenance` says what was measured, where and when; `errors` the standard error of each
    constant that has one, under the name the file gives it.
    """

    name: str
    title: str = ""
    dispatch: Mapping[str, float] = field(default_factory=dict)
    links: Mapping[str, LinkConstants] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)


NOMINAL = Calibration("nominal", "published link rates and latencies, no fitted constant, no dispatch cost")
"""The topology's own figures and nothing else."""
