"""`fat_tree:1024,radix=32,oversubscription=2`: hosts under leaves under spines, one path for every
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

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from simreduce.topology.elements import Node
from simreduce.topology.generators.inline import (
    DEVICES_LIMIT,
    InlineSettings,
    Join,
    NetworkParts,
    switches,
)
from simreduce.topology.routing.rules import FatTreeRule
from simreduce.units import plural

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
    if "pods" in settings.values:
        settings.faults.add("pods", "is for levels=3")
    radix = settings.whole("radix", min(RADIX, hosts), 2, DEVICES_LIMIT)
    up = up_links(settings, radix)
    return FatTree(hosts, radix, up if hosts > radix else 0, settings.flag("reduce"))


def up_links(settings: InlineSettings, radix: int) -> int:
    """The up-links of a leaf over `radix` hosts: `radix` / `oversubscription=`."""
    ratio = settings.ratio("oversubscription")
    up = radix / ratio
    if up.denominator != 1 or not 1 <= up <= DEVICES_LIMIT:
        settings.faults.add(
            "oversubscription",
            (
                f"{radix} hosts under a leaf / {float(ratio):g} is not a number of up-links from "
                f"1 to {DEVICES_LIMIT}"
            ),
        )
        return 1
    return int(up)


def _three_levels(settings: InlineSettings, hosts: int) -> FatTree:
    ports = settings.whole("radix", 0, 2, DEVICES_LIMIT)
    ratio = settings.ratio("oversubscription")
    pods = settings.whole("pods", 0, 1, DEVICES_LIMIT)
    reduces = settings.flag("reduce")
    sizes = [ports] if ports else range(2, DEVICES_LIMIT + 1, 2)
    fits = next((k for k in sizes if k % 2 == 0 and _most(k, ratio) >= hosts), 0)
    if not fits:
        settings.faults.add("radix" if ports else "oversubscription", _misfit(ports, ratio, hosts))
        return FatTree(hosts, hosts, 0)
    up = _up_links(fits, ratio)
    leaves = -(-hosts // (fits - up))
    pod = -(-leaves // pods) if pods else fits // 2
    if pod > fits // 2 or pods > min(fits, leaves):
        settings.faults.add(
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


def _most(ports: int, ratio: Fraction) -> int:
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
        f"three levels of switches with {ports} ports hold {_most(ports, ratio)} hosts, and "
        f"here are {hosts}"
    )
