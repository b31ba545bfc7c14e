"""The link classes whose figures are shipped."""

from __future__ import annotations

import functools
import math
import tomllib
from dataclasses import dataclass, replace
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING

from simreduce import units
from simreduce.topology.elements import BOTH_WAYS, Cable, Node

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class LinkClass:
    """Figures per lane and direction: bytes/s on the wire and reached by a large copy, and seconds
    one way.

    `both_ways` is what copies out of a device and into it reach together, infinite when unstated:
    only for classes of self-links, which copies through the host take at each end.
    """

    name: str
    bandwidth: float
    achievable: float
    latency: float
    holds_lane: bool
    source: str
    both_ways: float = math.inf

    def cable(self, a: Node, b: Node, lanes: int = 1) -> Cable:
        """A cable of this class."""
        # A staged copy waits at its two ends, not in between.
        latency = 0.0 if a == b and a.kind != "gpu" else self.latency
        return Cable(
            a.name, b.name, self.name, lanes, self.bandwidth * lanes, self.achievable * lanes,
            latency, self.holds_lane,
        )  # fmt: skip

    def tolls(self, node: Node, lanes: int = 1) -> list[Cable]:
        """The tolls of copies at a node: of each direction, and of both together if they share."""
        tolls = [self.cable(node, node, lanes)]
        if math.isfinite(self.both_ways):
            both, name = self.both_ways * lanes, self.name + BOTH_WAYS
            tolls.append(
                replace(tolls[0], link_class=name, nominal=both, bandwidth=both, latency=0.0)
            )
        return tolls


def networks() -> tuple[str, ...]:
    """The classes of links between machines."""
    return tuple(name for name, figures in link_classes().items() if not figures.holds_lane)


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
                both_ways=units.bandwidth(figures["both_ways"])
                if "both_ways" in figures
                else math.inf,
            )
            for name, figures in tomllib.loads(text).items()
        }
    )
