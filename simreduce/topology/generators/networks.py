"""`full:8`: a link for every pair of GPUs.

`ring:8`: GPUs in a circle.

`switch:64`: every GPU on one switch.

`torus:8x8`, `torus:4x4x4`: a router for every GPU, each linked to its neighbours in every
dimension.

Machines of this shape (Blue Gene, Tofu, TPU pods) route in the network, so a GPU passes nothing on
and its router does. The cable between a GPU and its router is as wide as all cables of the router
to others: it bounds nothing that those do not. A dimension of size 2 has one cable per pair, one of
size 1 none. Between halves along a dimension of even size s > 2 there are 2 n / s cables, of size 2
n / s, where n is the number of routers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simreduce.topology.elements import Cable, Node
from simreduce.topology.generators.fat_tree import FatTree
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
from simreduce.topology.routing.rules import TorusRule
from simreduce.units import plural

_LIMIT = 512
"""There are n x n links."""


def full(settings: InlineSettings) -> Shape:
    """Every two GPUs are linked, and each to the host."""
    bandwidth, latency = settings.bandwidth(), settings.latency()
    count = settings.size(_LIMIT)
    settings.check()
    *gpus, cpu = nodes = ends(count)
    cables = [cable(a, b, bandwidth, latency) for i, a in enumerate(gpus) for b in gpus[i + 1 :]]
    cables += [cable(gpu, cpu, bandwidth, latency) for gpu in gpus]
    return Shape(f"{plural(count, 'device')}, every pair linked", nodes, cables)


def ring(settings: InlineSettings) -> Shape:
    """Each GPU is linked to its two neighbours, and to the host."""
    bandwidth, latency = settings.bandwidth(), settings.latency()
    count = settings.size(DEVICES_LIMIT)
    settings.check()
    *gpus, cpu = nodes = ends(count)
    steps = {1: 0, 2: 1}.get(count, count)
    cables = [cable(gpus[i], gpus[(i + 1) % count], bandwidth, latency) for i in range(steps)]
    cables += [cable(gpu, cpu, bandwidth, latency) for gpu in gpus]
    return Shape(f"{plural(count, 'device')} in a ring", nodes, cables)


def read_switch(settings: InlineSettings, machines: int, nics: int) -> FatTree:
    """A port for every NIC."""
    hosts = machines * nics
    return FatTree(hosts, hosts, 0, settings.flag("reduce"), alone=True)


TORUS_KEYS = ("dims",)


@dataclass(frozen=True, slots=True)
class TorusNetwork:
    """Router i is at x = i mod X, y = i / X mod Y, and so on, and has `each` hosts."""

    sizes: tuple[int, ...]
    each: int = 1

    @property
    def routers(self) -> int:
        """The product of the sizes."""
        return math.prod(self.sizes)

    @property
    def cables(self) -> int:
        """The number of cables of hosts and between routers."""
        return self.routers * self.each + sum(
            self.routers if size > 2 else self.routers // 2 * (size - 1) for size in self.sizes
        )

    @property
    def title(self) -> str:
        """Its description."""
        return f"a torus of {' x '.join(map(str, self.sizes))}"

    def wire(
        self, nodes: Sequence[Node], hosts: Sequence[int], first: int, join: Join
    ) -> NetworkParts:
        """See `Blueprint`; hosts beyond its own sit at router 0."""
        count = self.routers
        routers = switches("router", count)
        seats = (port // self.each for port in range(len(hosts)))
        cables = [
            join(nodes[host], routers[seat if seat < count else 0])
            for host, seat in zip(hosts, seats, strict=True)
        ]
        stride = 1
        for size in self.sizes:
            for i in range(count):
                x = i // stride % size
                if size > 2 or x + 1 < size:
                    cables.append(join(routers[i], routers[i + ((x + 1) % size - x) * stride]))
            stride *= size
        return NetworkParts(routers, cables, TorusRule(tuple(hosts), self.sizes, first, self.each))


def torus(settings: InlineSettings) -> Shape:
    """A GPU for every router; the host `cpu0` is at router 0 with GPU 0."""
    bandwidth, latency = settings.bandwidth(), settings.latency()
    shape = TorusNetwork(settings.sizes())
    count = shape.routers
    places = seat_devices(settings, count)
    settings.check()
    inject = bandwidth * max(sum(min(size - 1, 2) for size in shape.sizes), 1)

    def join(a: Node, b: Node) -> Cable:
        if a.kind == "switch":
            return cable(a, b, bandwidth, latency)
        return cable(a, b, inject, 0.0 if a.kind == "gpu" else latency)

    nodes = ends(count)
    wired = shape.wire(nodes, [*places, count], 0, join)
    return Shape(
        f"{plural(count, 'device')} on {shape.title}",
        [*nodes, *wired.switches],
        wired.cables,
        wired.rule,
    )


def read_torus(settings: InlineSettings, machines: int, nics: int) -> TorusNetwork:
    """A router for every machine, with all its NICs."""
    sizes = settings.sizes("dims")
    if math.prod(sizes) != machines and "dims" in settings.values:
        settings.faults.add(
            "dims",
            f"{'x'.join(map(str, sizes))} are {math.prod(sizes)} routers for {machines} machines",
        )
    return TorusNetwork(sizes, max(nics, 1))
