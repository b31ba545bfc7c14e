"""NCCL's model of time: latency and bandwidth of each algorithm and protocol, and the estimate.

    t = latency x operations + M / bandwidth

It is a chooser, not a prediction: its rates of LL and LL128 are ceilings that are rarely met.
Latencies are in microseconds and bandwidths in GB/s, of M bytes, here as in NCCL's log.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from simreduce.planners.nccl.channel_search import Graphs
from simreduce.planners.nccl.communicator import NVB, NVL, P2C, PXB, PXN, Facts, hardware
from simreduce.planners.nccl.constants import (
    AMPERE,
    BLACKWELL,
    COLLECTIVES,
    COLLNET,
    HOPPER,
    NET,
    PROTOCOLS,
    VOLTA,
    tables,
)
from simreduce.planners.nccl.environment import Settings, allows
from simreduce.planners.nccl.orders import PLAIN
from simreduce.topology.importers.parts import EFA_LATENCY, SIMPLE_ONLY

Entry = tuple[str, str, str]
"""Collective, algorithm, protocol."""
LL, LL128, SIMPLE = range(3)
_OF = {
    "broadcast": ("ring",),
    "reduce": ("ring",),
    "all_gather": ("ring", "nvls", "pat"),
    "reduce_scatter": ("ring", "nvls", "pat"),
    "all_reduce": ("tree", "ring", "nvls", "nvlstree", COLLNET),
}
"""The algorithms that NCCL has for each collective, CollNet of all-reduces only."""
_COLLNET_INSIDE, _COLLNET_NET = {True: 3.7, False: 2.8}, {True: 31.0, False: 30.0}
"""Microseconds of a step in a node and of the network, where a switch joins the GPUs
(CollNetDirect) and where a chain does (CollNetChain): NVIDIA/nccl src/graph/tuning.cc since 2.19.
No published table was compared with them: nominal.
"""
_COLLNET_ARITY, _COLLNET_HOPPER = 0.4, 0.85
"""Microseconds that each GPU of a node adds to CollNetDirect, and what it reaches on Hopper (same
file).
"""
_WARP, _MOST_THREADS = 32, 640
_RISING = {
    ("all_reduce", False): 5, ("all_reduce", True): 32, ("all_gather", True): 31,
    ("reduce_scatter", True): 31,
}  # fmt: skip
"""Since when the latency of a ring by Simple rises, by collective and whether there is one node."""
_POST = {"AMD": 2.0}
"""Microseconds to post a network operation on a host, 1 unless stated."""


def generation(capability: int, version: tuple[int, int]) -> int:
    """The row of the tables."""
    if capability >= 100 and version >= (2, 25):
        return BLACKWELL
    if capability >= 90 and version >= (2, 14):
        return HOPPER
    return AMPERE if capability >= 80 and version >= (2, 7) else VOLTA


def bounded(count: int, settings: Settings) -> int:
    """A number of channels within NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS, and those of CTAs."""
    count = _within(count, settings.min_channels, settings.max_channels)
    return _within(count, settings.min_ctas, settings.max_ctas)


def _within(count: int, least: int | None, most: int | None) -> int:
    count = max(count, least or 0)
    return min(count, most or count)


class RingLimit(NamedTuple):
    """A library takes only so many `rings` on a node, unless NCCL_MIN_NCHANNELS asks for more
    `channels`, as its makers advise.
    """

    rings: int
    channels: int


class TimeModel:
    """The model of one communicator: `latency` in microseconds and `bandwidth` in GB/s of every
    choice, 0 of what is not allowed; `threads` of a block, and running `channels` of rings and of
    trees.
    """

    def __init__(self, facts: Facts, graphs: Graphs, settings: Settings) -> None:
        self.facts, self.settings = facts, settings
        self.tables = tables(settings.release)
        self.graphs = {"ring": graphs.ring, "tree": graphs.tree, "pat": graphs.tree}
        if graphs.nvls:
            self.graphs |= {"nvls": graphs.nvls, "nvlstree": graphs.nvls}
        if settings.collnet and facts.nodes > 1 and facts.aggregates():
            self.graphs[COLLNET] = graphs.ring
        self.nodes, self.n = facts.nodes, facts.n
        self.local = self.n / self.nodes
        self.scale = min(self.nodes, 3) - 1
        self.row = generation(facts.capability, settings.release)
        host = AMPERE if facts.vendor == "AMD" else VOLTA
        self.ll_row = self.row if self.nodes == 1 else host

        modelled = self.n > 1 and self.tables.since(5)
        every = {
            (collective, algorithm, PROTOCOLS[place]): (collective, algorithm, place)
            for collective, algorithms in _OF.items() if modelled
            for algorithm in filter(self._has, algorithms)
            for place in ((LL, LL128, SIMPLE) if algorithm in ("ring", "tree") else (SIMPLE,))
        }  # fmt: skip
        self.latency = {key: self._latency(*each) for key, each in every.items()}
        self.bandwidth = {
            key: self._allowed(*each) * self._bandwidth(*each) for key, each in every.items()
        }
        self.threads, self.channels = self._threads(), self.running()

    def running(self) -> int:
        """Channels of rings and trees when they run: the connector doubles the graph's channels."""
        ring, most = self.graphs["ring"], self.tables.most_channels
        count = min(2 * ring.count, most)
        fast = self.facts.capability >= 90 and self.nodes > 1 and ring.speed_intra > 45.0
        count = bounded(min(2 * count, most) if fast and count < 16 else count, self.settings)
        since, several = self.tables.since, self.nodes > 1
        if "nvls" in self.graphs and not since(28) and (since(25) or not several):
            count = max(count, self.running_nvls())
        return count

    def running_nvls(self) -> int:
        """Channels of NVLS when they run, whatever the limits of rings are."""
        newer, since = 24 if self.nodes == 1 and self.tables.since(27) else 32, self.tables.since
        # NVLSTree of Blackwell from 2.30 on, by its source; asked of 400 Gbit/s and eight GPUs.
        nic = min((nic.rate for box in self.facts.kinds for nic in box.nics), default=0.0)
        if self.nodes > 2 and since(30) and nic >= 48.0 and (nic < 96.0 or self.local <= 8):
            newer = 24
        usual = self.settings.nvls_channels or (newer if self.row == BLACKWELL else 16)
        return _within(usual, self.settings.min_ctas, self.settings.max_ctas)

    def _has(self, algorithm: str) -> bool:
        since, several = self.tables.since, self.nodes > 1
        fit = {
            "nvls": not several,
            "nvlstree": several and since(18),
            COLLNET: since(14),
            "pat": several and self.n == self.nodes and since(23),
        }.get(algorithm, True)
        return fit and algorithm in self.graphs

    def _steps(self, collective: str) -> int:
        once = self.n - 1
        hops = {"all_reduce": 2 * once, "all_gather": once, "reduce_scatter": once}
        return hops.get(collective, self.n)

    def _allowed(self, collective: str, algorithm: str, place: int) -> bool:
        settings, protocol = self.settings, PROTOCOLS[place]
        if algorithm == "nvls" and collective != "all_reduce" and not self.tables.since(19):
            return False
        # Before 2.24 rings of other collectives stayed, so that NCCL_ALGO=Tree ran whole programs.
        spared = not self.tables.since(24) and algorithm == "ring" and collective != "all_reduce"
        if not (spared or allows(settings.algorithms, collective, algorithm)):
            return False
        if settings.protocols:
            # A user who names LL128 has it wherever the paths lead.
            return allows(settings.protocols, collective, protocol)
        if place != SIMPLE and self.facts.network in SIMPLE_ONLY:
            return False
        return place != LL128 or self._trusts_ll128(algorithm)

    def _trusts_ll128(self, algorithm: str) -> bool:
        """Whether the paths keep the order of the 128 bytes."""
        graph, cc, version = self.graphs[algorithm], self.facts.capability, self.settings.release
        asked = (70, 80, 90, 100) if version >= (2, 25) else (70, 80, 90)
        older = version < (2, 27) and (cc not in asked or graph.type_inter == P2C)
        if older or cc < 70 or (cc != self.facts.newest and cc < 90):
            return False
        inside, outside = NVB if version >= (2, 18) else NVL, PXN if cc >= 90 else PXB
        return graph.type_intra <= inside and graph.type_inter <= outside

    def _bandwidth(self, collective: str, algorithm: str, place: int) -> float:
        """GB/s of the collective's bytes."""
        graph, t = self.graphs[algorithm], self.tables
        speed = graph.speed_intra if self.nodes <= 2 else graph.speed_inter
        gathers = collective in ("all_gather", "reduce_scatter")
        if algorithm in ("nvls", "nvlstree"):
            speed = self._nvls_speed(algorithm, gathers=gathers)
        if algorithm == "nvls" and not t.since(18):
            return min(self.graphs["ring"].count * self.graphs["ring"].speed_intra, 370.0) * 0.75
        bus = min(graph.count * speed, t.bus_caps[self.row])
        if algorithm == "ring":
            bus = self._ring(bus, collective, place)
        elif algorithm == "tree":
            bus = self._tree(bus, collective, place)
        elif algorithm == "pat":
            bus *= t.pat_efficiency * (min(1.0, graph.speed_inter / speed) if t.since(31) else 1.0)
        elif algorithm == COLLNET:
            direct = self.facts.boxes[0].switched
            bus *= _COLLNET_HOPPER if direct and self.facts.capability >= 90 else 1.0
        if gathers and algorithm != "ring" and t.since(23):
            return bus
        if algorithm == "nvlstree" and not t.since(19):
            return bus * 0.70 * self.nodes / (2 * (self.nodes - 1))
        if algorithm in ("nvls", "nvlstree") and not t.since(28):
            return bus * 5 / 6
        return bus * (0.5 if algorithm in ("tree", COLLNET) else self.n / self._steps(collective))

    def _nvls_speed(self, algorithm: str, *, gathers: bool) -> float:
        graph, tree = self.graphs[algorithm], algorithm == "nvlstree"
        if not self.tables.since(28):
            speed = min(graph.speed_intra, graph.speed_inter / (1 + (tree and self.nodes > 2)))
            part = (self.local - 1) / self.local if self.tables.since(27) else 1.0
            return speed * (part if gathers else 1.0)
        inside = (
            graph.speed_intra * self.tables.nvls_efficiency[self.row]
            * (1 - 1 / graph.count) * (1 - 1 / self.local if gathers else 2)
        )  # fmt: skip
        cap = self.tables.nvls_tree_cap[self.row][self.scale] if tree else math.inf
        return min(inside, graph.speed_inter * (2 if tree and self.nodes <= 2 else 1), cap)

    def _ring(self, bus: float, collective: str, place: int) -> float:
        t, count = self.tables, self.graphs["ring"].count
        if place == LL:
            sums = self.nodes > 1 or collective in ("all_reduce", "reduce")
            factor = 1 / 2 if t.since(21) else 1 / 4 if sums else 1 / 3
            return min(t.ll_cap[self.ll_row][self.scale], bus * factor)
        if place == LL128:
            part = 0.7 if self.local < 2 and not t.since(23) else 0.92
            return min(bus * part, self._ll128_cap(collective, t.ring_ll128, count))
        return bus

    def _ll128_cap(self, collective: str, caps: tuple[tuple[float, ...], ...], count: int) -> float:
        t = self.tables
        if t.ll128_by_collective:
            cap = t.ll128_by_collective[COLLECTIVES.index(collective)]
            return cap * count if t.since(8) else cap
        return count * caps[self.row][self.scale]

    def _tree(self, bus: float, collective: str, place: int) -> float:
        t, graph = self.tables, self.graphs["tree"]
        bus = min(bus * 0.92, t.tree_cap[self.row][self.scale] * (graph.count if t.since(8) else 1))
        if place == LL:
            bus = min(bus / 3.8, t.ll_cap[self.ll_row][self.scale])
        elif place == LL128:
            part = 7 / 9 if self.nodes == 1 else 15 / 16 if t.since(10) else 0.915
            bus = min(bus * part, self._ll128_cap(collective, t.tree_ll128, graph.count))
        # Trees of NCCL_TOPO_PATTERN_TREE reach 0.85 by every protocol, after the cap of LL128;
        # balanced and split trees lose nothing here (NVIDIA/nccl src/graph/tuning.cc).
        return bus * 0.85 if graph.pattern == PLAIN and t.since(18) else bus

    def _latency(self, collective: str, algorithm: str, place: int) -> float:
        if algorithm == COLLNET:
            return self._collnet_latency()
        t, inside = self.tables, hardware(self.graphs[algorithm].type_intra)
        base, step = t.base[algorithm][place], t.steps[inside, algorithm][place]
        outer = t.steps[NET, "tree" if self.local == 1 and t.since(23) else algorithm][place]
        if t.since(18):
            # By Simple the NIC's last write is waited for as well.
            outer += EFA_LATENCY.get(self.facts.network, 0.0) * (2 if place == SIMPLE else 1)
        if self.nodes > 1 and place == LL and not t.since(18):
            step *= 1.8
        levels = math.floor(math.log2(self.nodes))
        if algorithm == "ring":
            return base + self._ring_steps(collective, place, step, outer)
        if algorithm == "tree":
            return base + 2 * ((self.n // self.nodes - 1) * step + levels * outer)
        if algorithm == "nvlstree":
            return base + step + 2 * levels * outer
        if algorithm == "pat":
            return base + levels * outer / 3.5 + self.n * 2.8
        return base + step if not t.since(18) else step

    def _collnet_latency(self) -> float:
        """In a node there and back, and once through the network."""
        direct, others = self.facts.boxes[0].switched, self.n // self.nodes - 1
        hops = min(1, others) if direct else others
        arity = others * _COLLNET_ARITY if direct else 0.0
        return 2 * (hops * _COLLNET_INSIDE[direct] + arity) + _COLLNET_NET[direct]

    def _ring_steps(self, collective: str, place: int, step: float, outer: float) -> float:
        t, graph = self.tables, self.graphs["ring"]
        if collective in ("broadcast", "reduce"):
            kind = NET if self.nodes > 1 else hardware(graph.type_intra)
            slow = "tree" if place == SIMPLE and not graph.same_channels else "ring"
            return t.steps[kind, slow][place] * (
                1 if graph.same_channels else self._steps(collective)
            )
        steps, crossings = self._steps(collective), self.nodes - 1
        if collective == "all_reduce" and self.nodes > 1:
            # From 2.12 to 2.22 one crossing too many was counted each way.
            crossings = 2 * (crossings + (t.since(12) and not t.since(23)))
        if self.nodes > 1 and t.since(18):
            post = _POST.get(self.facts.vendor, 1.0) * (3 if place == SIMPLE else 1)
            step = max(step, post)
        return (steps - crossings) * step + crossings * outer

    def _threads(self) -> dict[tuple[str, str], int]:
        ring = self.graphs["ring"]
        simple = 512 if ring.speed_intra * ring.count > 12.0 or self.tables.since(31) else 256
        stated = self.settings.threads
        most = stated or 512
        return {
            ("ring", "ll"): most, ("ring", "ll128"): 640, ("ring", "simple"): stated or simple,
            ("tree", "ll"): most, ("tree", "ll128"): 640, ("tree", "simple"): most,
            ("nvls", "simple"): 640, ("nvlstree", "simple"): 640, ("pat", "simple"): 640,
            (COLLNET, "simple"): 640,
        }  # fmt: skip

    def launched(self, algorithm: str, protocol: str, threads: int) -> int:
        """The threads of a block that has so many to move bytes; others wait for its peers."""
        later = self.tables.since(22)
        if algorithm == "tree" and later:
            return _MOST_THREADS
        more = {("ring", "simple"): 1, ("tree", "simple"): 4}.get((algorithm, protocol), 0)
        return max(threads + more * _WARP, (4 if later else 3) * _WARP)

    def microseconds(self, entry: Entry, nbytes: int) -> float:
        """The planner's estimate; infinite for what is not allowed."""
        rate, latency = self.bandwidth.get(entry, 0.0), self.latency.get(entry, 0.0)
        if rate <= 0:
            return math.inf
        rate *= self._part(entry, nbytes)
        return latency * self._plateau(entry, nbytes) + nbytes / (1000 * rate)

    def protocol(self, entry: Entry, nbytes: int) -> str:  # noqa: ARG002
        """The protocol of what was chosen, which a library may change by bytes alone."""
        return entry[2]

    def peer_channels(self, rate: float) -> int:
        """Channels of a send over a path of NVLinks of this rate: two for each link's worth."""
        return 2 * max(1, int(rate / self.tables.nvlink_rate(self.facts.capability) + 1e-6))

    @property
    def ring_limit(self) -> RingLimit | None:
        """The limit of rings on the node, where there is one that other numbers of GPUs lack."""
        return None

    def net_chunk(self) -> int:
        """Bytes of a chunk of sends over a network."""
        return self.settings.p2p_net_chunk

    def listed(
        self, collective: str, nbytes: int, *, asked: bool = False,  # noqa: ARG002
    ) -> tuple[str, str, int] | None:  # fmt: skip
        """The algorithm, protocol and channels of a call that no estimate decides; of any size, if
        it is `asked` for.
        """
        return None

    @property
    def lists_first(self) -> bool:
        """Whether there are kernels that a library looks for before all settings."""
        return self.listed("all_reduce", 0, asked=True) is not None

    def _part(self, entry: Entry, nbytes: int) -> float:
        """The part of its rate that a choice reaches with so few bytes."""
        collective, algorithm, protocol = entry
        power = (nbytes >> 6).bit_length() - 1
        blackwell = self.tables.since(29) and self.row == BLACKWELL
        x86 = blackwell and self.facts.arch == "x86_64"
        powers = {"tree": 23, "nvlstree": 24 if x86 else 0}.get(algorithm, 0)
        if collective == "all_reduce" and 0 <= power < powers:
            return self.tables.correction[PROTOCOLS.index(protocol)][power]
        return 1.0

    def _plateau(self, entry: Entry, nbytes: int) -> float:
        """How much longer the latency of a ring is once chunks are full: of all-reduces on several
        nodes, and between Blackwell GPUs on NVLink, by 2.31 of gathers and scatters, later of all
        three, less of few steps, and of more than 256 KiB of each rank and channel.
        """
        collective, *by = entry
        alone, t = self.nodes == 1, self.tables
        inside = self.row == BLACKWELL and self.graphs["ring"].type_intra == NVL
        full = 64 * self.channels * self.n if t.since(10) else self.n / 16 * 65536
        rises = (inside or not alone) and t.since(_RISING.get((collective, alone), 99))
        if not rises or by != ["ring", "simple"] or nbytes < full:
            return 1.0
        if alone and t.since(32):
            over = min(max(nbytes / (self.channels * self.n << 18) - 1, 0.0), 1.0)
            return 1.0 + (1 - 0.25 ** (self._steps(collective) - 1)) * (0.4 - 0.1 * over)
        return 1.4 if self.facts.capability >= 80 and t.since(12) else 1.9
