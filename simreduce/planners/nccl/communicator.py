"""The facts of a communicator in NCCL's terms: its nodes, and what its model of time knows.

A node is read from a topology with the planner's rates instead of measured ones: capacities, and a
path of one class between every two devices. All NVSwitches are one. Links of no product and
switches between the GPUs of one machine count as NVLink with their own rate.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import Any

from simreduce.computing import breadth_first, grouped, once
from simreduce.errors import StrategyError
from simreduce.planners.layouts import aggregations, layout
from simreduce.planners.layouts.rings import rules_of
from simreduce.planners.nccl.constants import NVLINK, PCI, XGMI, tables
from simreduce.planners.nccl.environment import DEFAULTS, Settings
from simreduce.planners.nccl.nics import port_of
from simreduce.planners.synthesis import way_to
from simreduce.topology import Folded, Link, Node, Topology, link_classes, route
from simreduce.topology.elements import DEFAULT_REACH, OFF, TCP
from simreduce.topology.importers.parts import model_in
from simreduce.topology.routing import XGMI as XGMI_LINKS, is_nvlink
from simreduce.topology.routing.rules import EqualMachines

CLASSES = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")
"""Classes of paths, nearest first."""
LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB, SYS, _, DIS = range(len(CLASSES))
LOCAL = 5000.0
"""GB/s of a path from a device to itself."""


@dataclass(frozen=True, slots=True)
class BoxPath:
    """A way between two devices of a box: its class, the capacities it loads, the narrowest of them
    in GB/s, and how many links it has.
    """

    kind: int
    arcs: tuple[int, ...]
    rate: float
    hops: int


@dataclass(frozen=True, slots=True)
class Nic:
    """A NIC and its rate in GB/s."""

    name: str
    rate: float


@dataclass(frozen=True, eq=False)
class Box:
    """One node. `to_nic[u][k]` leads from GPU u to a NIC and `from_nic[k][u]` back; None without a
    way. `capacity` is in GB/s, by arc. GPUs that all hang on NVSwitches have `ports`; others,
    and those that do not copy by these, have `paths` from each to each.
    """

    gpus: tuple[str, ...]
    nics: tuple[Nic, ...]
    capacity: tuple[float, ...]
    to_nic: tuple[tuple[BoxPath | None, ...], ...]
    from_nic: tuple[tuple[BoxPath | None, ...], ...]
    nvlink: tuple[float, ...]
    """Sum of the NVLinks of each GPU."""
    pcie: tuple[float, ...]
    up: tuple[tuple[int, ...], ...]
    """Arcs of each GPU's PCIe link, out and in; () without one."""
    paths: tuple[tuple[BoxPath | None, ...], ...] = ()
    ports: tuple[tuple[int, int, float], ...] = ()
    """Arcs out of each GPU and into it, and their rate."""
    order: tuple[int, ...] = ()
    """The GPUs as NCCL's graph of the node has them, which is how a search tries them."""

    @property
    def switched(self) -> bool:
        """Whether every two GPUs are joined by the port of each."""
        return bool(self.ports) and not self.paths

    @property
    def total(self) -> float:
        """The rate at which the best-linked GPU can send, in GB/s."""
        return max(max(pair) for pair in zip(self.nvlink, self.pcie, strict=True))

    def between(self, u: int, v: int) -> BoxPath | None:
        """The path from GPU u to GPU v."""
        if self.paths:
            return self.paths[u][v]
        if u == v:
            return BoxPath(LOC, (), LOCAL, 0)
        out, into = self.ports[u], self.ports[v]
        return BoxPath(NVL, (out[0], into[1]), min(out[2], into[2]), 2)


def crossbar(gpus: tuple[str, ...], port: float) -> Box:
    """GPUs on one switch."""
    n = len(gpus)
    ports = tuple((u, n + u, port) for u in range(n))
    return Box(
        gpus, (), (port,) * (2 * n), ((),) * n, (), (port,) * n, (0.0,) * n, ((),) * n,
        ports=ports, order=tuple(range(n)),
    )  # fmt: skip


def hardware(kind: int) -> str:
    """The row of the latency tables for a class of paths within a node; single GPUs count as PCI,
    as in NCCL.
    """
    return NVLINK if kind == NVL else PCI


_GENERATION = {
    "nvlink1": 60, "nvlink2": 70, "nvlink3": 80, "nvlink3_ga102": 86, "nvlink4": 90, "nvlink5": 100,
}  # fmt: skip
_SOCKETS = {"qpi": 6.0, "upi": 10.0, "upi2": 22.0, "grace_link": 6.0}
_EMERALD_RAPIDS = 38e9
"""Bytes/s of a UPI link from which on a Xeon counts as Emerald Rapids."""
_BESIDE_C2C = 48.0
"""GB/s of the PCIe port beside the C2C of a GPU, which counts in its place."""
_TEN_GIGABIT = 1.25
"""GB/s of a port whose network is not stated, as NCCL takes one of unknown speed: the library too,
asked of 2.27.
"""
_REACHES = {OFF: LOC, "NV": NVL, "PIX": PIX, "PXB": PXB, "PHB": PHB, "SYS": SYS}
_LEVELS = {"LOC": LOC, "NVL": NVL, "PIX": PIX, "PXB": PXB, "PHB": PHB, "NODE": PHB, "SYS": SYS}


def capability(topology: Topology, gpu: str) -> int:
    """The compute capability of a GPU, times 10: of its model, else of its NVLinks, else 8.0."""
    model = model_in(topology.nodes[gpu].model)
    if model is not None:
        return model.sm
    classes = (link.link_class for link in topology.wires_from[gpu])
    return max((_GENERATION.get(name, 0) for name in classes), default=0) or 80


class NodeReading:
    """A node as it is read: capacities by pair of nodes of the planner's graph."""

    def __init__(
        self, topology: Topology, around: Sequence[Node], gpus: Sequence[str], settings: Settings,
        copies: int, several: bool,
    ) -> None:  # fmt: skip
        self.several = several
        self.topology, self.settings, self.copies = topology, settings, copies
        self.tables = tables(settings.release)
        self.gpus = tuple(gpus)
        self.place = {gpu: i for i, gpu in enumerate(gpus)}  # as there may be thousands
        self.around = {node.name: node for node in around}
        # The switches of a network that counts as one machine belong to no machine.
        ends = {link.target for gpu in self.gpus for link in topology.wires_from[gpu]}
        self.crossbars = {node.name for node in around if node.kind in ("nvswitch", "switch")}
        self.crossbars |= {name for name in ends if topology.nodes[name].kind == "switch"}
        nics, self.hosts = (
            [name for name, node in self.around.items() if node.kind == kind]
            for kind in ("nic", "cpu")
        )
        # Where none has a name that is listed, `with_nics` keeps or refuses all.
        self.nics = [n for n in nics if settings.takes_nic(*port_of(topology, n))] or nics
        self.rates = self._rates()
        self.arcs = {pair: arc for arc, pair in enumerate(self.rates)}

    def _rates(self) -> dict[tuple[str, str], float]:
        """GB/s by pair of nodes. Where NVLinks join two nodes, only these count, all together."""
        wires: dict[tuple[str, str], float] = {}
        nvlinks: dict[tuple[str, str], float] = {}
        for name in dict.fromkeys((*self.gpus, *self.around, *sorted(self.crossbars))):
            if name in self.around and self.around[name].kind == "gpu" and name not in self.place:
                continue
            for link in self.topology.wires_from[name]:
                a, b = ("NVS" if e in self.crossbars else e for e in (link.source, link.target))
                device = b in self.around and self.around[b].kind != "gpu"
                if a == b or not (device or self._between_gpus(b)):
                    continue
                if self.is_nvlink(link):
                    nvlinks[a, b] = nvlinks.get((a, b), 0.0) + self.rate(link)
                else:
                    wires[a, b] = max(wires.get((a, b), 0.0), self.rate(link))
        return wires | nvlinks

    def is_nvlink(self, link: Link) -> bool:
        """Whether a link counts as NVLink: links of no product between GPUs do."""
        joined = self._kinds(link) <= {"gpu", "switch", "nvswitch"}
        return is_nvlink(link) or (joined and not link.link_class.startswith("pcie"))

    def _kinds(self, link: Link) -> set[str]:
        return {self.topology.nodes[end].kind for end in (link.source, link.target)}

    def rate(self, link: Link) -> float:
        """The planning rate of a link in GB/s."""
        if link.link_class in _GENERATION:
            gpu = next((e for e in (link.source, link.target) if e in self.place), "")
            cc = capability(self.topology, gpu) if gpu else _GENERATION[link.link_class]
            return link.lanes * self.tables.nvlink_rate(cc)
        if (
            link.link_class.startswith(XGMI_LINKS)
            and {link.source, link.target} <= self.place.keys()
        ):
            cc = capability(self.topology, link.source)
            return link.lanes * XGMI.get(cc, link.bandwidth / 1e9)
        if match := re.fullmatch(r"pcie(\d)_x(\d+)", link.link_class):
            return link.lanes * 12.0 * 2.0 ** (int(match[1]) - 3) * int(match[2]) / 16
        if self._kinds(link) == {"cpu"}:
            if link.link_class.startswith("xgmi"):
                return self.tables.amd_sockets
            usual = _SOCKETS.get(link.link_class, 10.0)
            known = 40.0 if link.nominal / link.lanes > _EMERALD_RAPIDS else usual
            return min(known, self.tables.socket_cap)
        return link.nominal / 1e9 if link.link_class == "c2c" else link.bandwidth / 1e9

    def signature(self) -> object:
        """Equal for nodes that the planner cannot tell apart."""
        place = {name: i for i, name in enumerate((*self.gpus, *self.nics))}
        place |= {name: -1 - i for i, name in enumerate(self.around) if name not in place}
        place["NVS"] = -len(self.around) - 2
        rates = tuple(
            (place.get(a, 0), place.get(b, 0), rate) for (a, b), rate in self.rates.items()
        )
        reach = tuple(self.topology.nodes[gpu].peer for gpu in self.gpus)
        return rates, reach, tuple(self._nic(name).rate for name in self.nics), len(self.gpus)

    def boxes(self) -> list[tuple[Box, tuple[int, ...]]]:
        """The node, or a node for each part of it that NCCL joins by the network, with the places
        of its GPUs.
        """
        parts = self._parts()
        if len(parts) == 1:
            box = self.box()
            return [(box, tuple(range(len(box.gpus))))]
        around = [*self.around.values()]
        return [
            (NodeReading(self.topology, around, part, self.settings, 1, several=True).box(),
             tuple(map(self.place.__getitem__, part)))
            for part in parts
        ]  # fmt: skip

    def _parts(self) -> list[list[str]]:
        """GPUs that reach each other, directly or through the host, at least as fast as by NICs.

        Without NVLink GPUs of two sockets with NICs of 100 Gbit/s do not: NCCL takes them for two
        nodes (in its source since 2.14; asked of 2.27 and 2.30).
        """
        if self.settings.release < (2, 14) or not self.nics:
            return [[*self.gpus]]
        by_nic = dict(zip(self.gpus, map(self._rate_to_nic, self.gpus), strict=True))
        firsts: list[int] = []
        for i, gpu in enumerate(self.gpus):
            near = (first for first, other in zip(firsts, self.gpus, strict=False)
                    if self._stays_inside(gpu, other, min(by_nic[gpu], by_nic[other])))  # fmt: skip
            firsts.append(min(near, default=i))
        return [*grouped(zip(firsts, self.gpus, strict=True)).values()]

    def _stays_inside(self, u: str, v: str, by_nic: float) -> bool:
        path = self._between(u, v)
        return not path or path.kind == NVB or path.rate >= by_nic

    def _rate_to_nic(self, gpu: str) -> float:
        """GB/s of a GPU's widest way to a NIC that passes no host; 0 without one."""
        walks = {name: self._walk(gpu, name) for name in self.nics}
        near = [name for name, walk in walks.items() if walk and self._kind(walk) <= PXB]
        rates = (min(self._path(walks[name], PIX).rate, self._nic(name).rate) for name in near)
        return max(rates, default=0.0)

    def box(self) -> Box:
        """The node as the search sees it."""
        gpus = self.gpus
        if self.copies > 1:
            return crossbar(gpus * self.copies, self.rates.get((gpus[0], "NVS"), LOCAL))
        links = [((gpu, "NVS"), ("NVS", gpu)) for gpu in gpus]
        switched = len(gpus) > 1 and all(way in self.rates for link in links for way in link)
        off = any(self._copies_off(gpu, gpu) for gpu in gpus)
        ports_of = grouped(
            (a, rate) for (a, b), rate in self.rates.items() if self._between_gpus(b)
        )
        nvlink = tuple(
            sum(ports_of.get(gpu, ())) + self.tables.c2c_as_nvlink * self._is_on_c2c(gpu)
            for gpu in gpus
        )
        pcie = tuple(
            max((_BESIDE_C2C if link.link_class == "c2c" else self.rate(link)
                 for link in self.topology.wires_from[gpu]
                 if (gpu, link.target) in self.rates and not self._between_gpus(link.target)),
                default=0.0)
            for gpu in gpus
        )  # fmt: skip
        nics = [self._nic(name) for name in self.nics]
        if not nics and self.several:
            # The network is reached by no NIC of a machine file: as if by one near all GPUs.
            nics = [Nic("net", self.network)]
        # Every NIC sends and receives at the rate of its port.
        nic_ports = [(nic, len(self.rates) + 2 * i) for i, nic in enumerate(nics)]
        ports = tuple((self.arcs[a], self.arcs[b], self.rates[a]) for a, b in links if switched)
        return Box(
            gpus=gpus,
            nics=tuple(nics),
            capacity=(*self.rates.values(), *(rate for nic in nics for rate in (nic.rate,) * 2)),
            to_nic=tuple(
                tuple(self._to_nic(gpu, *port, out=True) for port in nic_ports) for gpu in gpus
            ),
            from_nic=tuple(
                tuple(self._to_nic(gpu, *port, out=False) for gpu in gpus) for port in nic_ports
            ),
            nvlink=nvlink,
            pcie=pcie,
            up=tuple(map(self._pcie_arcs, gpus)),
            paths=() if ports and not off else tuple(
                tuple(self._between(u, v) for v in gpus) for u in gpus
            ),
            ports=ports,
            order=self._order(),
        )  # fmt: skip

    def _order(self) -> tuple[int, ...]:
        """The first rank's graph has its GPU and all NICs as the file has them, and from 2.21 on
        other ranks add theirs in turn: so did the library wherever some switches have no NIC.
        """
        ways = {name: self._way_from_host(name) for name in (*self.gpus, *self.nics)}
        arcs = {
            name: [way[0], *(self.arcs[pair] for pair in itertools.pairwise(way[1:]))]
            for name, way in ways.items()
        }
        number: dict[str, int] = {}
        later = {gpu: i for i, gpu in enumerate(self.gpus) if i and self.settings.release >= FUSED}
        for name in sorted(ways, key=lambda name: (later.get(name, 0), arcs[name])):
            for part in ways[name][1:]:
                number.setdefault(part, len(number))

        places = [
            [host, *map(number.__getitem__, parts)]
            for host, *parts in (ways[gpu] for gpu in self.gpus)
        ]
        return tuple(sorted(range(len(self.gpus)), key=places.__getitem__))

    def _way_from_host(self, name: str) -> list[Any]:
        """The place of the nearest host, and the nodes from there to a device."""
        walks = [[i, *self._walk(name, host)[::-1]] for i, host in enumerate(self.hosts)]
        return min((walk for walk in walks if len(walk) > 1), key=len, default=[0, name])

    def _is_on_c2c(self, gpu: str) -> bool:
        return any(link.link_class == "c2c" for link in self.topology.wires_from[gpu])

    def _pcie_arcs(self, gpu: str) -> tuple[int, ...]:
        ups = ((gpu, b) for b in self._ends.get(gpu, ()) if not self._between_gpus(b))
        return next(((self.arcs[a, b], self.arcs[b, a]) for a, b in ups), ())

    @cached_property
    def network(self) -> float:
        """GB/s of the route from the first GPU to a GPU of another node."""
        other = next(gpu for gpu in self.topology.devices if gpu not in self.around)
        return route(self.topology, self.gpus[0], other).bandwidth / 1e9

    def _between_gpus(self, name: str) -> bool:
        return name == "NVS" or name in self.place

    def _nic(self, name: str) -> Nic:
        """A NIC with the rate of its link to the network, else the rate of its class."""
        for link in self.topology.wires_from[name]:
            if link.target not in self.around or link.link_class.startswith(TCP):
                return Nic(name, link.nominal / 1e9)
        network = self.topology.nodes[name].network
        known = link_classes().get(network)
        return Nic(name, known.bandwidth / 1e9 if known else _TEN_GIGABIT)

    def _path(self, names: Sequence[str], kind: int) -> BoxPath:
        arcs = tuple(self.arcs[pair] for pair in itertools.pairwise(names))
        rate = min((self.rates[pair] for pair in itertools.pairwise(names)), default=LOCAL)
        return BoxPath(kind, arcs, rate, len(arcs))

    def _between(self, u: str, v: str) -> BoxPath | None:
        if u == v:
            return BoxPath(LOC, (), LOCAL, 0)
        nvlinks = not self._copies_off(u, v)
        if nvlinks and (u, v) in self.rates:
            return self._path((u, v), NVL)
        relays = [w for w in ("NVS", *self.gpus) if {(u, w), (w, v)} <= self.rates.keys()]
        if nvlinks and relays:
            ways = [self._path((u, w, v), NVL if w == "NVS" else NVB) for w in relays]
            return min(ways, key=lambda path: (path.kind, -path.rate))
        walk = self._walk(u, v)
        kind = self._kind(walk)
        if not walk:
            return None
        if kind <= PXB and not (nvlinks and kind <= self._peer_level(u, v)):
            # Without peer access data goes through the memory of the host.
            walk, kind = self._through_host(u, v) or walk, PHB
        return self._path(walk, kind)

    def _copies_off(self, u: str, v: str) -> bool:
        return OFF in (self.settings.reach, *(self.topology.nodes[gpu].peer for gpu in (u, v)))

    def _peer_level(self, u: str, v: str) -> int:
        """The farthest path over which two GPUs copy directly."""
        level = _LEVELS[self.settings.p2p_level or "PXB"]
        return min(level, *(_REACHES[self.topology.nodes[gpu].peer] for gpu in (u, v)))

    def _through_host(self, u: str, v: str) -> list[str]:
        ways = [(self._walk(u, host), self._walk(host, v)) for host in self.hosts]
        whole = [[*one, *other[1:]] for one, other in ways if one and other]
        return min(whole, key=len, default=[])

    def _walk(self, u: str, v: str) -> list[str]:
        """The nodes from `u` to `v` over PCIe, C2C and sockets, the fewest there are."""

        def onwards(name: str) -> list[str]:
            # Not networkx's: a GPU is an end of a path and never inside it, so each pair would
            # need a graph of its own.
            inside = ("pcie_switch", "cpu")
            return [b for b in self._edges.get(name, ()) if b == v or self.around[b].kind in inside]

        before = breadth_first(u, onwards)
        return way_to(before, v) if v in before else []

    @cached_property
    def _ends(self) -> dict[str, list[str]]:
        """Where links of each node lead, in their order."""
        return grouped(self.rates)

    @cached_property
    def _edges(self) -> dict[str, list[str]]:
        return grouped(
            (a, b) for a, b in self.rates if "NVS" not in (a, b) and not {a, b} <= self.place.keys()
        )

    def _kind(self, walk: Sequence[str]) -> int:
        kinds = [self.around[name].kind for name in walk]
        if "cpu" in kinds:
            return SYS if kinds.count("cpu") > 1 else PHB
        return PXB if kinds.count("pcie_switch") > 1 else PIX

    def _to_nic(self, gpu: str, nic: Nic, port: int, *, out: bool) -> BoxPath | None:
        """The way between a GPU and a NIC, whose port has the arcs `port` out and the next in."""
        if not self.nics:
            return BoxPath(PIX, (port if out else port + 1,), nic.rate, 1)
        walk = self._walk(gpu, nic.name)
        if not walk:
            return None
        kind, off = self._kind(walk), self.topology.nodes[gpu].gpudirect == OFF
        if kind == PHB and not off and self._is_on_c2c(gpu) and self.tables.since(27):
            kind = P2C
        level = _LEVELS.get(self.settings.gdr_level, SYS)
        if kind <= PXB and (kind > level or off):
            # Without GPUDirect data goes through the memory of the host.
            walk, kind = self._through_host(gpu, nic.name) or walk, PHB
        path = self._path(walk if out else walk[::-1], kind)
        arcs = (*path.arcs, port) if out else (port + 1, *path.arcs)
        return BoxPath(kind, arcs, min(path.rate, nic.rate), path.hops + 1)


@dataclass(frozen=True, eq=False)
class Facts:
    """A communicator: its nodes, the slowest and the newest compute capability, and the CPUs.

    `ranks` are the GPUs by rank, machine by machine; in a folded machine they repeat. Equal nodes
    share a box, which has the names of the first; `members` are the ranks of each box's GPUs.
    """

    name: str
    ranks: tuple[str, ...]
    boxes: tuple[Box, ...]
    members: tuple[tuple[int, ...], ...]
    capability: int
    newest: int
    arch: str
    vendor: str
    multicast: bool
    network: str = ""
    """The class of the first NIC's link to others; "" on one node, or if no NIC has one."""
    library: str = "nccl"
    """The library that the GPUs run: nccl or rccl."""
    aggregates: Callable[[], bool] = field(default=lambda: False, repr=False)
    """Whether switches of the network sum what all nodes send."""
    exceeds: Callable[[str], bool] = field(default=lambda _: False, repr=False)
    """Whether some GPUs of a node copy to each other directly over a farther path than this."""
    cache: dict[object, Any] = field(default_factory=dict, repr=False)

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.boxes)

    @property
    def n(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    @property
    def kinds(self) -> tuple[Box, ...]:
        """The nodes that differ."""
        return tuple(dict.fromkeys(self.boxes))


FUSED = (2, 21)
"""From this version on each rank reads its own GPU, and NCCL joins what they read."""
_SWITCHES = ("nvswitch", "switch")

_FOUND: dict[object, Facts] = {}
_MOST_FOUND = 1024
"""Upper limit of communicators kept: more than a machine has nodes, as each may be one."""


def facts(
    machine: Topology | Folded | Facts,
    gpus: Sequence[str] = (),
    settings: Settings = DEFAULTS,
) -> Facts:
    """The facts of a machine, or of some of its GPUs; made once for each machine.

    Raises `TopologyError` for a machine with no way between two of the GPUs.
    """
    if isinstance(machine, Facts):
        return machine
    gpus = () if tuple(gpus) == machine.devices else gpus
    key = (
        machine.digest, machine.name, tuple(gpus), settings.release, settings.p2p_disable,
        settings.p2p_level, settings.gdr_level, settings.ib_hca, settings.socket_ifname,
    )  # fmt: skip
    return once(_FOUND, key, lambda: _facts(machine, gpus, settings), most=_MOST_FOUND)


def _facts(machine: Topology | Folded, gpus: Sequence[str], settings: Settings) -> Facts:
    topology, copies, one_task = (
        (machine.pair, machine.machines, machine.one_task)
        if isinstance(machine, Folded)
        else (machine, 1, False)
    )
    chosen = tuple(gpus) or machine.devices
    by_machine = grouped((topology.nodes[gpu].machine, gpu) for gpu in chosen)
    around = {name: topology.nodes_of[name] for name in by_machine}
    made: dict[object, list[tuple[Box, tuple[int, ...]]]] = {}
    several = len(by_machine) > 1 or (copies > 1 and not one_task)
    boxes: list[tuple[Box, tuple[int, ...]]] = []
    first = 0
    for name, members in by_machine.items():
        seen = NodeReading(
            topology, around[name], members, settings, copies if one_task else 1, several
        )
        alike = once(made, seen.signature(), seen.boxes)
        boxes += [(box, tuple(first + i for i in places)) for box, places in alike]
        first += len(members)
    ranks = tuple(gpu for members in by_machine.values() for gpu in members) * copies
    if not one_task:
        boxes = [
            (box, tuple(copy * first + rank for rank in members))
            for copy in range(copies)
            for box, members in boxes
        ]
    capabilities = [capability(topology, gpu) for gpu in chosen]
    arch, vendor = _cpu(topology, around)
    inside = {node.name: node for node in next(iter(around.values()))}
    networks = [
        link.link_class
        for name, node in inside.items()
        if node.kind == "nic"
        for link in topology.wires_from[name]
        if link.target not in inside
    ]
    # A node that the network splits has no link that leaves it.
    stated = [node.network for node in inside.values() if node.network]
    return Facts(
        machine.name, ranks, tuple(box for box, _ in boxes), tuple(members for _, members in boxes),
        min(capabilities), max(capabilities), arch, vendor,
        any(node.reduces for nodes in around.values() for node in nodes if node.kind in _SWITCHES),
        (networks or stated or [""])[0] if len(boxes) > 1 else "",
        rules_of(topology.nodes[chosen[0]].model).library,
        partial(_aggregates, topology, tuple(chosen)), partial(_exceeds, topology, tuple(chosen)),
    )  # fmt: skip


def peer_reach(known: Facts, settings: Settings) -> str:
    """The farthest path over which channels write to peers' memory, as in `Node.peer`, by the
    settings or by NCCL's own choice, whatever GPUs can; DEFAULT_REACH if no GPU can more.

    Unless it is told, NCCL stays below host bridges, but on AMD's hosts before 2.23 and of two GPUs
    since; 2.4 to 2.8 within a socket (NVIDIA/nccl src/graph/paths.cc and transport/p2p.cc). RCCL
    goes as far as GPUs do.
    """
    asked, release = settings.reach, settings.release
    if asked in (OFF, "NV", "PIX") or known.library != "nccl":
        return asked or DEFAULT_REACH
    usual = "PXB" if release >= (2, 9) else "PHB"
    if known.vendor == "AMD" and release >= (2, 9):
        usual = "SYS" if release < (2, 23) or len(known.boxes[0].gpus) <= _PAIR else usual
    reach = asked or usual
    return reach if known.exceeds(reach) else DEFAULT_REACH


_PAIR = 2


@lru_cache(maxsize=64)
def _exceeds(topology: Topology, gpus: tuple[str, ...], reach: str) -> bool:
    """Whether some of these GPUs copies directly to one of its machine over a farther path."""
    router, nodes = topology.router, topology.nodes
    if isinstance(router.rule, EqualMachines):
        gpus = tuple(gpu for gpu in gpus if nodes[gpu].machine == nodes[gpus[0]].machine)
    # Whoever hangs on an NVSwitch reaches its peers by that.
    loose = [gpu for gpu in gpus if not any(nodes[link.target].kind == "nvswitch"
                                            for link in topology.wires_from[gpu])]  # fmt: skip
    machines = grouped((nodes[gpu].machine, gpu) for gpu in loose).values()
    pairs = itertools.chain(*(itertools.combinations(each, 2) for each in machines))
    return any(router.is_peer(a, b) and not router.is_peer(a, b, reach) for a, b in pairs)


@lru_cache(maxsize=64)
def _aggregates(topology: Topology, gpus: tuple[str, ...]) -> bool:
    shape = layout(topology)
    try:
        aggregations(shape, [shape.ranks.index(gpu) for gpu in gpus])
    except StrategyError:
        return False
    return True


def _cpu(topology: Topology, around: Mapping[str, list[Node]]) -> tuple[str, str]:
    """Architecture and vendor of the first host."""
    hosts = [node for nodes in around.values() for node in nodes if node.kind == "cpu"]
    model = hosts[0].model.lower() if hosts else ""
    classes = {link.link_class for host in hosts[:1] for link in topology.wires_from[host.name]}
    if "grace" in model or "grace_link" in classes or "c2c" in classes:
        return "arm64", "ARM"
    if "power" in model:
        return "ppc64", "IBM"
    return "x86_64", "AMD" if "epyc" in model or classes & {"xgmi", "xgmi3"} else "Intel"
