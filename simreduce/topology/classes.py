"""The link classes whose figures are shipped."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING

from simreduce import units

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class LinkClass:
    """Figures per lane and direction: bytes/s on the wire and reached by a large copy, and seconds one way."""

    name: str
    bandwidth: float
    achievable: float
    latency: float
    holds_lane: bool
    source: str


@functools.cache
def link_classes() -> Mapping[str, LinkClass]:
    """Every shipped class by name, in the order of `link_classes.toml`."""
    text = (files("simreduce.topology") / "link_classes.toml").read_text(encoding="utf-8")
    return MappingProxyType(
        {
            name: LinkClass(
                name=name,
                bandwidth=units.bandwidth(figures["bandwidth"]),
                achievable=units.bandwidth(figures.get("achievable", figures["bandwidth"])),
                latency=units.duration(figures["latency"]),
                holds_lane=figures["holds_lane"],
                source=figures["source"],
            )
            for name, figures in tomllib.loads(text).items()
        }
    )
