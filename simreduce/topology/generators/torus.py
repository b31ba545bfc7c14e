"""`torus:8x8`, `torus:4x4x4`: a router for every GPU, each linked to its neighbours in every dimension.

Machines of this shape (Blue Gene, Tofu, TPU pods) route in the network, so a GPU passes nothing on and its router
does. The cable between a GPU and its router is as wide as all cables of the router to others: it bounds nothing that
those do not. A dimension of size 2 has one cable per pair, one of size 1 none.
"""

from __future__ import annotations

import math

from simreduce.topology.generators.inline import DEVICES_LIMIT, Settings
from simreduce.topology.generators.shape import Shape, cable, ends, placed
from simreduce.topology.graph import Node
from simreduce.topology.ways import TorusWays


def torus(settings: Settings) -> Shape:
    """Router i is at x = i mod X, y = i / X mod Y, and so on; the host `cpu0` sits at router 0 with GPU 0."""
    bandwidth, latency = settings.bandwidth(), settings.latency()
    sizes = settings.sizes(DEVICES_LIMIT, 2, 3)
    count = math.prod(sizes)
    places = placed(settings, count)
    settings.check()
    nodes = ends(count)
    routers = [Node(f"router{i}", "switch", machine="") for i in range(count)]
    directions = sum(min(size - 1, 2) for size in sizes)
    inject = bandwidth * max(directions, 1)
    cables = [cable(nodes[gpu], router, inject, 0.0) for gpu, router in zip(places, routers, strict=True)]
    cables.append(cable(nodes[count], routers[0], inject, latency))
    stride = 1
    for size in sizes:
        for i in range(count):
            x = i // stride % size
            if size > 2 or x + 1 < size:
                cables.append(
                    cable(routers[i], routers[i + ((x + 1) % size - x) * stride], bandwidth, latency)
                )
        stride *= size
    title = f"{count} devices on a torus of {' x '.join(map(str, sizes))}"
    return Shape(title, [*nodes, *routers], cables, TorusWays((*places, count), sizes))
