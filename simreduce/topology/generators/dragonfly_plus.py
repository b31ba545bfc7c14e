"""`dragonfly_plus:720`: groups of leaves under spines, and the spines of every two groups linked
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

from simreduce.topology.elements import Cable, Node
from simreduce.topology.generators.inline import DEVICES_LIMIT, InlineSettings
from simreduce.topology.generators.shape import Shape, cable, ends, seat_devices, switches
from simreduce.units import plural

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

    cables: list[Cable] = []

    def join(one: Node, other: Node) -> None:
        cables.append(cable(one, other, bandwidth, latency))

    for seat, gpu in enumerate(places):
        join(nodes[gpu], leaf[seat // p])
    join(nodes[count], leaf[-1])
    for i, each in enumerate(leaf):
        group = i // leaves
        for other in spine[group * spines : (group + 1) * spines]:
            join(each, other)
    for a, b in itertools.combinations(range(groups), 2):
        for i in range(spines):
            join(spine[a * spines + i], spine[b * spines + i])
    words = f"{plural(groups, 'group')} of {plural(leaves, 'leaf', 'leaves')} with {p} host ports"
    title = f"{plural(count, 'device')} on a dragonfly+, {words} and {plural(spines, 'spine')}"
    return Shape(title, [*nodes, *leaf, *spine], cables)
