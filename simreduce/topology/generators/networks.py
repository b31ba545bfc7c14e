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

`dragonfly:1056`: groups of routers, all linked inside a group, and every two groups linked (Kim
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

`fat_tree:1024,radix=32,oversubscription=2`: hosts under leaves under spines, one path for every
pair.

Two levels: `radix` hosts under each leaf, radix / oversubscription spines, and a cable from each
leaf to each spine.

Three levels, of switches with k = `radix` ports (Al-Fares et al. 2008, who have o = 1):

    leaf        d = k o / (1 + o) hosts and u = k / (1 + o) up-links, for oversubscription o
    pod         at most k/2 leaves, and u spines; each leaf has a cable to each spine of its pod
    core        u k/2 of them, k/2 for each spine of a pod, each with a cable to that spine in
                all pods, at most k
    full tree   d k^2/2 hosts on (k/2 + u) k + u k/2 switches: k^3/4 and 5 k^2/4 for o = 1
    bisection   in cables, half of the hosts / o, between halves of whole pods

A tree that is not full has as many leaves and pods as the hosts need, or as many pods as `pods`
says, among which the leaves are dealt evenly: the first pods have one more where that does not come
out. A single leaf has no spines, a single pod no cores.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from simreduce.files.formats import BANDWIDTH
from simreduce.topology.elements import Cable, Node
from simreduce.topology.generators.inline import (
    DEVICES_LIMIT,
    InlineSettings,
    Join,
    NetworkParts,
    Shape,
    cable,
    ends,
    over_gpus,
    seat_devices,
    switches,
)
from simreduce.topology.routing.rules import DragonflyRule, FatTreeRule, TorusRule
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
    title = (
        f"{plural(count, 'device')} on a dragonfly+, {plural(groups, 'group')} of "
        f"{plural(leaves, 'leaf', 'leaves')} with {p} host ports"
        f" and {plural(spines, 'spine')}"
    )
    cables = [cable(*pair, bandwidth, latency) for pair in ends_of]
    return Shape(title, [*nodes, *leaf, *spine], cables)


RADIX = 32
TREE_KEYS = ("radix", "oversubscription", "levels", "pods", "reduce")


@dataclass(frozen=True, slots=True)
class FatTree:
    """A fat tree over `hosts` hosts: `radix` under each leaf, which has one cable to each of
    `spines`.

    With `rails` above 1 the hosts are the NICs of machines, so many of each, and the i-th ones of
    `radix` machines share a leaf. With `pod`, at most so many leaves share `spines` of their own,
    and each spine has a cable to each of `cores`; all pods but the last are full, or there are
    `dealt` pods, which differ by a leaf at most. A leaf that is `alone` is called a switch.
    """

    hosts: int
    radix: int
    spines: int
    reduces: bool = False
    rails: int = 1
    pod: int = 0
    cores: int = 0
    dealt: int = 0
    alone: bool = False

    @property
    def leaves(self) -> int:
        """The number of leaves; the last may have free ports."""
        return -(-self.hosts // self.rails // self.radix) * self.rails

    @property
    def pods(self) -> int:
        """The number of pods; one if all leaves share their spines."""
        return self.dealt or (-(-self.leaves // self.pod) if self.pod else 1)

    @property
    def cables(self) -> int:
        """The number of cables of hosts, from leaf to spine and from spine to core."""
        return self.hosts + self.leaves * self.spines + self.pods * self.spines * self.cores

    @property
    def title(self) -> str:
        """Its description."""
        leaves = f"{plural(self.leaves, 'leaf', 'leaves')} of {self.radix}"
        spines = f"{plural(self.spines, 'spine')}"
        words = "a fat tree, " if self.rails == 1 else f"{self.rails} rails, "
        if self.alone:
            return "one switch" + (" that reduces" if self.reduces else "")
        if self.rails > 1 and not self.spines:
            words += "each a switch of its own"
        elif self.pod:
            words += f"{leaves} in {plural(self.pods, 'pod')} of {spines}, "
            words += f"and {plural(self.spines * self.cores, 'core')}"
        else:
            words += f"{leaves} and {spines}"
        return words + (", switches that reduce" if self.reduces else "")

    def wire(
        self, nodes: Sequence[Node], hosts: Sequence[int], first: int, join: Join
    ) -> NetworkParts:
        """See `Blueprint`; hosts beyond the tree's sit on the last leaf."""
        large = self.leaves - self.dealt * (self.pod - 1) if self.dealt else self.pods
        rule = FatTreeRule(
            tuple(hosts),
            self.radix,
            self.leaves,
            self.spines,
            first,
            self.rails,
            self.pod,
            self.cores,
            large,
        )
        leaves, spines, cores = (
            switches(name, count, reduces=self.reduces)
            for name, count in (
                ("switch" if self.alone else "leaf", self.leaves),
                ("spine", self.pods * self.spines),
                ("core", self.spines * self.cores),
            )
        )
        seats = rule.seat(np.arange(len(hosts)))[0].tolist()
        cables = [join(nodes[host], leaves[seat]) for host, seat in zip(hosts, seats, strict=True)]
        pods = rule.in_pod(np.arange(self.leaves)).tolist() if self.pod else [0] * self.leaves
        for leaf, pod in zip(leaves, pods, strict=True):
            cables += [join(leaf, spine) for spine in spines[pod * self.spines :][: self.spines]]
        for i, spine in enumerate(spines if cores else ()):
            place = i % self.spines
            cables += [join(spine, core) for core in cores[place * self.cores :][: self.cores]]
        return NetworkParts([*leaves, *spines, *cores], cables, rule)


def read_tree(settings: InlineSettings, machines: int, nics: int) -> FatTree:
    """The tree that the settings ask for; its hosts are all NICs, machine by machine."""
    hosts = machines * nics
    if settings.whole("levels", 2, 2, 3) == 3:
        return _three_levels(settings, hosts)
    settings.faults.check("pods" not in settings.values, "pods", "is for levels=3")
    radix = settings.whole("radix", min(RADIX, hosts), 2, DEVICES_LIMIT)
    up = up_links(settings, radix)
    return FatTree(hosts, radix, up if hosts > radix else 0, settings.flag("reduce"))


def up_links(settings: InlineSettings, radix: int) -> int:
    """The up-links of a leaf over `radix` hosts: `radix` / `oversubscription=`."""
    ratio = settings.ratio("oversubscription")
    up = radix / ratio
    if not settings.faults.check(
        up.denominator == 1 and 1 <= up <= DEVICES_LIMIT,
        "oversubscription",
        f"{radix} hosts under a leaf / {float(ratio):g} is not a number of up-links from "
        f"1 to {DEVICES_LIMIT}",
    ):
        return 1
    return int(up)


def _three_levels(settings: InlineSettings, hosts: int) -> FatTree:
    ports = settings.whole("radix", 0, 2, DEVICES_LIMIT)
    ratio = settings.ratio("oversubscription")
    pods = settings.whole("pods", 0, 1, DEVICES_LIMIT)
    reduces = settings.flag("reduce")
    sizes = [ports] if ports else range(2, DEVICES_LIMIT + 1, 2)
    fits = next((k for k in sizes if k % 2 == 0 and _fat_tree_most(k, ratio) >= hosts), 0)
    if not fits:
        settings.faults.add("radix" if ports else "oversubscription", _misfit(ports, ratio, hosts))
        return FatTree(hosts, hosts, 0)
    up = _up_links(fits, ratio)
    leaves = -(-hosts // (fits - up))
    pod = -(-leaves // pods) if pods else fits // 2
    settings.faults.check(
        pod <= fits // 2 and pods <= min(fits, leaves),
        "pods",
        f"{leaves} leaves of switches with {fits} ports take {-(-leaves // (fits // 2))} "
        f"to {min(fits, leaves)} "
        f"pods, not {pods}",
    )
    if leaves <= pod:
        return FatTree(hosts, fits - up, up if leaves > 1 else 0, reduces)
    return FatTree(hosts, fits - up, up, reduces, pod=pod, cores=fits // 2, dealt=pods)


def _up_links(ports: int, ratio: Fraction) -> int:
    """The up-links of a leaf with `ports` ports, 0 if they do not come out even."""
    up = ports / (1 + ratio)
    return int(up) if up.denominator == 1 else 0


def _fat_tree_most(ports: int, ratio: Fraction) -> int:
    """The hosts of a full tree of three levels, 0 if there is none."""
    up = _up_links(ports, ratio)
    return (ports - up) * ports * ports // 2 if up else 0


def _misfit(ports: int, ratio: Fraction, hosts: int) -> str:
    """Why no tree of three levels of switches with `ports` (0: any number) holds the hosts."""
    over = f"{float(ratio):g}"
    if not ports:
        return (
            f"no switch of up to {DEVICES_LIMIT} ports has {over} times as many hosts as up-links"
        )
    if ports % 2:
        return f"{ports} is odd, and half of the ports of a spine go down"
    if not _up_links(ports, ratio):
        return (
            f"{ports} ports of a leaf do not come out even with {over} times as many hosts "
            "as up-links"
        )
    return (
        f"three levels of switches with {ports} ports hold {_fat_tree_most(ports, ratio)} hosts, "
        f"and here are {hosts}"
    )


FULL_LIMIT = 512
"""There are n x n links."""
Pair = tuple[int, int]


def linked(
    settings: InlineSettings, limit: int, words: str, pairs: Callable[[int], Iterable[Pair]]
) -> Shape:
    """GPUs that are linked by `pairs` of their numbers, and each to the host."""
    bandwidth, latency = settings.bandwidth(), settings.latency()
    host = settings.read("host", BANDWIDTH, bandwidth)
    memory = settings.read("memory", BANDWIDTH, math.inf)
    count = settings.size(limit)
    settings.check()
    *gpus, cpu = ends(count)
    gpus = [replace(gpu, memory_bandwidth=memory) for gpu in gpus]
    cables = [cable(gpus[a], gpus[b], bandwidth, latency) for a, b in pairs(count)]
    to_host = [cable(gpu, cpu, host, latency) for gpu in gpus]
    if "host" in settings.values:
        to_host = [replace(each, link_class="host") for each in to_host]
    return Shape(f"{plural(count, 'device')}{words}", [*gpus, cpu], [*cables, *to_host])


def neighbours(count: int) -> Iterable[Pair]:
    """Each with the next on a circle; two have one link."""
    return ((i, (i + 1) % count) for i in range(count if count > 2 else count - 1))


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
    inject = bandwidth * max(sum(min(size - 1, 2) for size in shape.sizes), 1)

    def join(a: Node, b: Node) -> Cable:
        if a.kind == "switch":
            return cable(a, b, bandwidth, latency)
        return cable(a, b, inject, 0.0 if a.kind == "gpu" else latency)

    return over_gpus(settings, shape, shape.routers, join)


def read_torus(settings: InlineSettings, machines: int, nics: int) -> TorusNetwork:
    """A router for every machine, with all its NICs."""
    sizes = settings.sizes("dims")
    settings.faults.check(
        math.prod(sizes) == machines or "dims" not in settings.values,
        "dims",
        f"{'x'.join(map(str, sizes))} are {math.prod(sizes)} routers for {machines} machines",
    )
    return TorusNetwork(sizes, max(nics, 1))
