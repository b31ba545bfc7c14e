"""`dragonfly:1056`: groups of routers, all linked inside a group, and every two groups linked (Kim
et al. 2008).

    router      p hosts, a - 1 local cables to the others of its group, and at most h global ones
    group       a routers
    network     g groups, at most a h + 1: every two share floor(a h / (g - 1)) global cables,
                one when g = a h + 1
    full        p a (a h + 1) hosts on a (a h + 1) routers, with
                (a h + 1) (a (a - 1) / 2 + a h / 2) cables between them
    bisection   in global cables, floor(a h / (g - 1)) floor(g^2 / 4) between floor(g / 2)
                groups and the others, if hosts and local cables can fill them

Balanced are a = 2p = 2h: what is not stated follows from what is, and p is the least that holds all
hosts if nothing is. There are as many groups as hosts fill unless stated. Routes are minimal:
local, global, local. Traffic between two groups shares their own cables, in the worst case one
cable for a p hosts. Adaptive routing over a third group is not modelled.
With `equal_cost=hashed` or `split` the equal paths are all paths of fewest hops over routers of the
two groups, which cross one global cable as well; they differ only where two groups share several.

`dragonfly_plus:720`: groups of leaves under spines, and the spines of every two groups linked
(Shpiner et al. 2017, Dragonfly+: Low Cost Topology for Scaling Datacenters; also called megafly).

    leaf        p hosts and a cable to each spine of its group
    spine       a cable to each leaf of its group, and one to the spine of its number in every other
    group       `leaves` leaves and `spines` spines, so that two groups share `spines` cables

Balanced are p = leaves = spines, with the least p for which p + 1 groups hold all hosts; what is
not stated is p. There are as many groups as hosts fill. Routes are minimal, leaf, spine, spine,
leaf, and choose a spine by `equal_cost`; adaptive routing over a third group is not modelled.
Leonardo has p = 10, and 18 leaves and 18 spines in a group (De Sensi et al. 2024, arXiv
2408.14090).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simreduce.topology.elements import Node
from simreduce.topology.generators.inline import (
    DEVICES_LIMIT,
    InlineSettings,
    Join,
    NetworkParts,
    Shape,
    cable,
    ends,
    seat_devices,
    switches,
)
from simreduce.topology.routing.rules import DragonflyRule
from simreduce.units import plural

DRAGONFLY_KEYS = ("p", "a", "h", "g")


@dataclass(frozen=True, slots=True)
class Dragonfly:
    """Over `hosts` hosts, in the letters of the paper; the last routers may have free ports."""

    hosts: int
    p: int
    a: int
    h: int
    g: int

    @property
    def parallel(self) -> int:
        """The global cables that two groups share."""
        return self.a * self.h // (self.g - 1) if self.g > 1 else 0

    @property
    def cables(self) -> int:
        """The number of cables of hosts, local ones and global ones."""
        pairs = self.a * (self.a - 1) // 2, self.g * (self.g - 1) // 2
        return self.hosts + self.g * pairs[0] + pairs[1] * self.parallel

    @property
    def title(self) -> str:
        """Its description."""
        words = f"a dragonfly, {plural(self.g, 'group')} of {plural(self.a, 'router')} "
        words += f"with {plural(self.p, 'host port')}"
        return words + (
            f", {self.parallel} global cables for two groups" if self.parallel > 1 else ""
        )

    def wire(
        self, nodes: Sequence[Node], hosts: Sequence[int], first: int, join: Join
    ) -> NetworkParts:
        """See `Blueprint`; hosts beyond its own sit at the last router."""
        rule = DragonflyRule(tuple(hosts), self.p, self.a, self.g, self.parallel, first)
        routers = switches("router", self.g * self.a)
        cables = [
            join(nodes[host], routers[min(i // self.p, len(routers) - 1)])
            for i, host in enumerate(hosts)
        ]
        for i in range(self.g):
            group = routers[i * self.a :][: self.a]
            cables += [join(one, other) for one, other in itertools.combinations(group, 2)]
        shared = np.arange(self.parallel)
        for i, j in itertools.combinations(range(self.g), 2):
            ends = zip(
                rule.router(shared, i, j).tolist(), rule.router(shared, j, i).tolist(), strict=True
            )
            cables += [
                join(routers[i * self.a + one], routers[j * self.a + other]) for one, other in ends
            ]
        return NetworkParts(routers, cables, rule)


def read_dragonfly(settings: InlineSettings, machines: int, nics: int) -> Dragonfly:
    """The one that the settings ask for; its hosts are all NICs, machine by machine."""
    hosts = machines * nics
    p, a, h, g = (settings.whole(key, 0, 1, DEVICES_LIMIT) for key in DRAGONFLY_KEYS)
    if not (p or a or h):
        p = next(
            p for p in itertools.count(1) if _most(p, 2 * p, p, g) >= hosts and g <= 2 * p * p + 1
        )
    half = p or h or -(-a // 2)
    p, a, h = p or half, a or 2 * half, h or half
    groups = g or min(-(-hosts // (p * a)), a * h + 1)
    made = Dragonfly(hosts, p, a, h, groups)
    if groups > a * h + 1:
        settings.faults.add(
            "g",
            (
                f"{a} routers with {h} global cables each link at most {a * h + 1} groups, not "
                f"{groups}"
            ),
        )
    elif _most(p, a, h, g) < hosts:
        settings.faults.add(
            "",
            (
                f"{groups} groups of {a} routers with {plural(p, 'host')} hold "
                f"{p * a * groups}, not {hosts}"
            ),
        )
    return made


def _most(p: int, a: int, h: int, g: int) -> int:
    """The hosts that fit, in g groups or as many as there can be."""
    return p * a * (g or a * h + 1)


PLUS_KEYS = ("p", "leaves", "spines")


def dragonfly_plus(settings: InlineSettings) -> Shape:
    """GPUs as the hosts, and the host `cpu0` on the last leaf; half of the latency is on each
    cable.
    """
    bandwidth, latency = settings.bandwidth(), settings.latency() / 2
    count = settings.size(DEVICES_LIMIT)
    p, leaves, spines = (settings.whole(key, 0, 1, DEVICES_LIMIT) for key in PLUS_KEYS)
    p = p or leaves or spines or next(p for p in itertools.count(1) if p * p * (p + 1) >= count)
    leaves, spines = leaves or p, spines or p
    groups = -(-count // (p * leaves))
    places = seat_devices(settings, count)
    settings.check()
    nodes = ends(count)
    leaf, spine = switches("leaf", -(-count // p)), switches("spine", groups * spines)

    ends_of = [(nodes[gpu], leaf[seat // p]) for seat, gpu in enumerate(places)]
    ends_of.append((nodes[count], leaf[-1]))
    for i, each in enumerate(leaf):
        group = i // leaves
        ends_of += [(each, other) for other in spine[group * spines : (group + 1) * spines]]
    for a, b in itertools.combinations(range(groups), 2):
        ends_of += [(spine[a * spines + i], spine[b * spines + i]) for i in range(spines)]
    words = f"{plural(groups, 'group')} of {plural(leaves, 'leaf', 'leaves')} with {p} host ports"
    title = f"{plural(count, 'device')} on a dragonfly+, {words} and {plural(spines, 'spine')}"
    cables = [cable(*pair, bandwidth, latency) for pair in ends_of]
    return Shape(title, [*nodes, *leaf, *spine], cables)
