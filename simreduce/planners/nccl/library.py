"""A communication library as a value: how it searches a node, models time, and counts channels.

NCCL and RCCL are the libraries there are. RCCL is a fork of NCCL for AMD's GPUs, with its variables
and calls, and the name `nccl` in frameworks. What they share stands in this package; each
difference is a field here.

RCCL: rings of known nodes, AMD's tables of its model of time, and its numbers of channels.

Figures were read from ROCm/rocm-systems projects/rccl (src/graph/tuning.cc, rome_models.cc,
search.cc, connect.cc, topo.h, src/rccl_wrap.cc; 2026). Times are in microseconds and rates in GB/s.

On a mesh of two to four GPUs NCCL's search finds rings that use every link. For eight there are
models of known nodes. In between RCCL allows its rings two channels, which a few blocks serve, so
that five to seven GPUs have less bandwidth than three.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from simreduce.errors import StrategyError
from simreduce.planners.layouts.rings import MESH_8, RCCL
from simreduce.planners.nccl.channel_search import Channel, ChannelSearch, Graph
from simreduce.planners.nccl.communicator import NVL, PXB, Box, Facts
from simreduce.planners.nccl.constants import (
    ALL_PAIRS,
    CURRENT,
    CURRENT_RCCL,
    KERNELS,
    PROTOCOLS,
    Row,
    SymmetricKernel,
    Version,
    version_text,
)
from simreduce.planners.nccl.environment import DEFAULTS, Settings
from simreduce.planners.nccl.orders import RING, TREE, Demand
from simreduce.planners.nccl.time_model import (
    LL,
    LL128,
    SIMPLE,
    Entry,
    RingLimit,
    TimeModel,
    bounded,
)

SPEEDS = (
    48.0,
    24.0,
    20.0,
    18.0,
    15.0,
    12.0,
    10.0,
    9.0,
    7.0,
    6.0,
    5.0,
    4.0,
    3.0,
    2.4,
    1.2,
    0.24,
    0.12,
)
MOST_ALONE, MOST = {94: 56, 95: 56}, 64
"""Channels on one node, and on several. Of the 112 of CDNA 4 two share a block."""

_ADVISED = 32
"""What AMD advises for NCCL_MIN_NCHANNELS on fewer than eight GPUs (ROCm/rccl pull 1270)."""

_BASE = (12.0, 12.0, 17.0)
_PCI_STEP = (2.2, 2.2, 5.7)


def _row(text: str) -> tuple[float, ...]:
    """27 parts of the rate, from 64 bytes by powers of two; `.1x6` stands for six times .1."""
    pairs = (word.partition("x") for word in text.split())
    return tuple(float(part) for part, _, times in pairs for _ in range(int(times or 1)))


@dataclass(frozen=True)
class Tuning:
    """A table of the model. Rows by protocol are LL, LL128, Simple.

    `steps` has the latency of a step, by whether it crosses a network, and algorithm. `share` is
    the part of the rate of all channels, by whether there are more than two nodes, and algorithm,
    and `part` the part of that by powers of two from 64 bytes; of rings on several nodes only.
    `ranges` has for several nodes the bytes up to which LL is taken, and up to which LL128 is where
    the node has it.
    """

    steps: Mapping[tuple[bool, str], Row]
    share: Mapping[tuple[bool, str], Row]
    part: Mapping[str, tuple[tuple[float, ...], ...]]
    ranges: Mapping[str, tuple[int, int]]


_NONE = _row(".1x27")
_TREE_LL, _RING_LL = _row(".1x6 1x5 .6 1 .9 1x2 .1x11"), _row(".1x11 1 .2 1 .4x2 .1 .2x2 .1x8")
_CDNA3 = Tuning(
    steps={
        (False, "tree"): (0.9, 0.9, 2.3), (False, "ring"): (0.8, 0.8, 2.1),
        (True, "tree"): (10.5, 10.5, 25.0), (True, "ring"): (9.5, 9.5, 320.0),
    },
    share={
        (False, "tree"): (0.06, 0.06, 0.11), (False, "ring"): (0.08, 0.08, 1.0),
        (True, "tree"): (0.06, 0.06, 0.59), (True, "ring"): (0.08, 0.08, 1.0),
    },
    part={
        "tree": (_TREE_LL, _TREE_LL, _row(".1x15 .7 1x5 .7x2 .5 .6x3")),
        "ring": (_RING_LL, _RING_LL, _row(".1x22 .7 .2 1x3")),
    },
    ranges={
        "reduce_scatter": (655_360, 3_211_264), "all_gather": (98_304, 5_046_272),
        "all_reduce": (524_288, 4_415_057), "reduce": (4096, 16 << 20),
        "broadcast": (8192, 32 << 20),
    },
)  # fmt: skip
_CDNA4 = replace(
    _CDNA3,
    part={
        "tree": (_TREE_LL, _row(".1x6 1x5 .6 1 .9 1x4 2x2 1 .1 .9x2 .1x3"),
                 _row(".1x15 .7 1 .1x5 .7 .15 .6 .7 .6")),
        "ring": (_RING_LL, _row(".1x11 1 .2 1 .4x2 .1 .2 .1x4 5.5 .1x2 1x2"),
                 _row(".1x20 .9 .1 1 .1 .6 1x2")),
    },
    ranges={
        "reduce_scatter": (65_536, 8 << 20), "all_gather": (65_536, 8 << 20),
        "all_reduce": (262_144, 70_640_910), "reduce": (16_383, 16 << 20),
        "broadcast": (2048, 16 << 20),
    },
)  # fmt: skip
_CDNA2 = Tuning(
    steps={
        (False, "tree"): (0.8, 1.4, 2.5), (False, "ring"): (0.8, 2.2, 3.6),
        (True, "tree"): (11.8, 18.2, 20.8), (True, "ring"): (9.5, 19.8, 15.1),
    },
    share={
        (False, "tree"): (0.04, 0.22, 0.91), (False, "ring"): (0.04, 0.34, 1.0),
        (True, "tree"): (0.04, 0.22, 0.95), (True, "ring"): (0.04, 0.34, 1.0),
    },
    part={
        "tree": (_row(".1 .2 .1x2 .9 .3 .4 .1 .2 .4 .2 .1 .3x2 .2x3 .1x10"),
                 _NONE, _row(".2 1 .1x2 .7 .2 .4 .1x2 .3 .4 .3 .6 .8 1x4 .9 .8x5 .9x3")),
        "ring": (_row(".1x5 .2 .4 .2 .3 .5 .3 .1 .5x2 .3 .2x2 .1x10"),
                 _NONE, _row("1 .8 .2 1x2 .3 1 .1x2 .2x2 .1 .5 1 .8x2 1 .9 1x9")),
    },
    ranges={},
)  # fmt: skip
"""Tables 5, 6 and 0; no model of MI250X has LL128."""
_TUNINGS = {90: _CDNA2, 94: _CDNA3, 95: _CDNA4}


_MSCCL_BEFORE: Version = (2, 28)
"""MSCCL was removed from 2.28.3 for ROCm 7.13; of that version's builds before, none had it
(ROCm/rocm-systems pull 4340 and projects/rccl/CHANGELOG.md; ROCm/TheRock issue 56, read 2026-11).
"""
_MSCCL = ((65_536, "ll", 4), ((1 << 20) - 1, "ll", 8), (20_971_520, "simple", 8))
"""Bytes up to which an algorithm of MSCCL is taken, its protocol, and blocks of a pair."""
_MSCCL_LEAST = 1024
"""Bytes that its smallest algorithm divides evenly: 256 elements of 4 bytes."""


SYMMETRIC_OF_RCCL = tuple(kernel for kernel in KERNELS if kernel.name == "rsxld_agxst")
"""AMD has no switches that sum, and RCCL's kernels with flags in the data do not validate yet
(ROCm/rocm-systems pull 3741, 2026-03, for 2.28.3).
"""


def lanes_of(box: Box) -> list[list[int]]:
    """Whether a link joins two GPUs of a node, from each to each."""
    n = range(len(box.gpus))
    paths = [[None if box.switched else box.between(u, v) for v in n] for u in n]
    return [[int(bool(p and p.kind == NVL and p.hops == 1)) for p in row] for row in paths]


class RcclSearch(ChannelSearch):
    """NCCL's search with AMD's speeds, after the models of known nodes."""

    def __init__(self, facts: Facts, box: Box, settings: Settings) -> None:
        super().__init__(facts, box, settings)
        self.speeds = SPEEDS
        self.most = min(self.most, RCCL.limit(len(box.gpus), several=self.several))

    def ring(self) -> Graph:
        """The rings of a model that fits, else those that are found."""
        box = self.box
        model = RCCL.listed(lanes_of(box), several=self.several, repeated=True)
        if not model:
            return super().ring()
        channels = tuple(
            Channel(way, *((self._near(way[0]), self._near(way[-1])) if self.several else ()))
            for way in model
        )
        speed, inter = max(box.nvlink) / len(channels), self.outside[0]
        return Graph(RING, channels, speed, speed, NVL, inter, self.several, same_channels=False)

    def _near(self, gpu: int) -> str | None:
        """The nearest NIC of a GPU."""
        ways = zip(self.box.nics, self.box.to_nic[gpu], strict=True)
        kinds = {nic.name: path.kind for nic, path in ways if path}
        return min(kinds, key=kinds.__getitem__, default=None)

    def _is_doubled(self, best: Demand) -> bool:
        """Whether channels are fast, and there may be more."""
        return best.speed_intra >= 25e3 and 2 * best.count <= self.most

    def tree(self, ring: Graph) -> Graph:
        """Trees are rings without their last hop."""
        return replace(ring, pattern=TREE)

    def nvls(self) -> None:
        """AMD has no switches that sum."""


class RcclTimeModel(TimeModel):
    """RCCL's model of time."""

    def running(self) -> int:
        """Channels that run: each of the search counts several times, by generation and GPUs."""
        cc, alone = self.facts.capability, self.nodes == 1
        most = MOST_ALONE.get(cc, 32) if alone else MOST
        times = 4 if cc >= 95 else 2
        if cc < 94:
            times = 4 if alone else 2
        elif alone and self.n in (2, 4):
            times = 16 if self.n == 2 else 2 * times
        return bounded(min(self.graphs["ring"].count * times, most), self.settings)

    @functools.cached_property
    def tuning(self) -> Tuning:
        """The table of the GPUs' generation."""
        known = [each for each in _TUNINGS if each <= self.facts.capability]
        return _TUNINGS[max(known, default=90)]

    @functools.cached_property
    def on_mesh(self) -> bool:
        """Whether a node is the mesh of eight GPUs that RCCL knows."""
        return MESH_8.fits(lanes_of(self.facts.boxes[0]), several=self.nodes > 1)

    @property
    def ring_limit(self) -> RingLimit | None:
        """Two rings on five to seven GPUs of a node."""
        box, several = self.facts.boxes[0], self.nodes > 1
        rings = RCCL.limit(len(box.gpus), several=several)
        if rings == RCCL.limit(2, several=False) or RCCL.listed(lanes_of(box), several=several):
            return None
        return RingLimit(rings, bounded(_ADVISED, self.settings))

    def _has(self, algorithm: str) -> bool:
        return algorithm in ("ring", "tree")

    def _allowed(self, collective: str, algorithm: str, place: int) -> bool:
        newer = self.nodes == 1 and self.facts.capability >= 94
        left_out = newer and algorithm == "tree" and place == SIMPLE
        return not left_out and super()._allowed(collective, algorithm, place)

    def _trusts_ll128(self, algorithm: str) -> bool:
        return self.on_mesh and self.nodes > 1 and self.graphs[algorithm].type_inter <= PXB

    def _threads(self) -> dict[tuple[str, str], int]:
        return {(a, p): 256 for a in ("ring", "tree") for p in PROTOCOLS}

    def launched(self, algorithm: str, protocol: str, threads: int) -> int:  # noqa: ARG002
        """As many, and a few at least."""
        return max(threads, 96)

    def _bandwidth(self, collective: str, algorithm: str, place: int) -> float:
        graph = self.graphs[algorithm]
        speed = graph.speed_intra if self.nodes <= 2 else graph.speed_inter
        bus = graph.count * speed * self.tuning.share[self.nodes > 2, algorithm][place]
        if collective in ("broadcast", "reduce") and place == LL and self.nodes == 1:
            bus *= 1.65
        return bus * (self.n / self._steps(collective) if algorithm == "ring" else 0.5)

    def _latency(self, collective: str, algorithm: str, place: int) -> float:
        linked = self.graphs[algorithm].type_intra <= NVL
        inside = (self.tuning.steps[False, algorithm] if linked else _PCI_STEP)[place]
        outer = self.tuning.steps[True, "tree" if self.local == 1 else algorithm][place]
        if algorithm == "tree":
            levels = math.floor(math.log2(self.nodes))
            return _BASE[place] + 2 * ((self.n // self.nodes - 1) * inside + levels * outer)
        steps, crossings = self._steps(collective), self.nodes - 1
        if collective in ("broadcast", "reduce"):
            step = self.tuning.steps[self.nodes > 1, "tree" if place == SIMPLE else "ring"][place]
            return _BASE[place] + steps * step
        crossings *= 2 if collective == "all_reduce" else 1
        if self.nodes > 1:
            inside = max(inside, 2.0 * (3 if place == SIMPLE else 1))
        return _BASE[place] + (steps - crossings) * inside + crossings * outer

    def _plateau(self, entry: Entry, nbytes: int) -> float:  # noqa: ARG002
        return 1.0

    def _part(self, entry: Entry, nbytes: int) -> float:
        _, algorithm, protocol = entry
        if algorithm != "tree" and self.nodes == 1:
            return 1.0
        power = min(max((nbytes >> 6).bit_length() - 1, 0), 26)
        return self.tuning.part[algorithm][PROTOCOLS.index(protocol)][power]

    def peer_channels(self, rate: float) -> int:  # noqa: ARG002
        """An equal share of the channels of a node, which is what an all-to-all of eight MI355X
        needs for the 361 GB/s that Oracle has published (BM.GPU.MI355X.8).
        """
        return max(MOST // max(self.n // self.nodes, 1), 2)

    def net_chunk(self) -> int:
        """The chunk of sends over a network, which larger jobs raise unless it is set."""
        own, cdna4 = super().net_chunk(), self.facts.capability >= 95
        if own != DEFAULTS.p2p_net_chunk or self.facts.capability < 94:
            return own
        if self.n >= (32 if cdna4 else 64):
            return 512 << 10
        return 256 << 10 if cdna4 and self.n >= 16 else own

    def listed(
        self, collective: str, nbytes: int, *, asked: bool = False
    ) -> tuple[str, str, int] | None:
        """MSCCL's all-pairs algorithm for eight GPUs on one node, which is looked for before
        NCCL_ALGO, NCCL_PROTO and a tuner's file are (ROCm/rccl src/misc/msccl/msccl_lifecycle.cc).
        """
        has = self.settings.msccl and (self.settings.version or CURRENT_RCCL) < _MSCCL_BEFORE
        if collective != "all_reduce" or not has or self.nodes > 1 or not self.on_mesh:
            return None
        if asked:
            nbytes = min(max(nbytes, _MSCCL_LEAST), _MSCCL[-1][0])
        found = [row for row in _MSCCL if _MSCCL_LEAST <= nbytes <= row[0]]
        return (ALL_PAIRS, found[0][1], found[0][2] * (self.n - 1)) if found else None

    def protocol(self, entry: Entry, nbytes: int) -> str:
        """The protocol after RCCL's ranges of bytes have had their say."""
        collective, algorithm, protocol = entry
        each = nbytes if collective == "all_reduce" else nbytes // self.n  # of each rank
        if self.nodes == 1 or collective not in self.tuning.ranges:
            return protocol
        ll, ll128 = self.tuning.ranges[collective]
        if collective == "all_reduce" and self.nodes > 2:
            ll128 = int(3.8 * ll128)
        if self._trusts_ll128(algorithm) and ll < each <= ll128:
            return PROTOCOLS[LL128]
        return PROTOCOLS[LL if each <= ll else SIMPLE]


@dataclass(frozen=True)
class Library:
    """What a library does in its own way: `search` finds the graphs of a node, and `model` has
    its times and counts channels. It has the `symmetric` kernels from a version on, copy
    engines move its collectives from another, and from a third its blocks write to buffers of
    peers within a machine that applications register. None: it never does. Unless settings say its
    version, it is the `current` one, and none after the `newest` is known: `why` says what that one
    has. Which rings it takes and how its kernels cut is in `planners.layouts.rings`.
    """

    name: str
    search: type[ChannelSearch]
    model: type[TimeModel]
    symmetric: tuple[SymmetricKernel, ...]
    symmetric_since: Version
    engines_since: Version | None = None
    registered_since: Version | None = None
    current: Version = CURRENT
    newest: Version = CURRENT
    why: str = ""

    def version(self, settings: Settings) -> Version:
        """The library's version; StrategyError for one that is newer than what is known."""
        found = settings.version or self.current
        if found > self.newest:
            known = f"{self.name} is known up to {version_text(self.newest)}"
            raise StrategyError(f"version {version_text(found)}: {known}{self.why}")
        return found

    def kernels_of(self, collective: str) -> list[SymmetricKernel]:
        """Its symmetric kernels for a collective."""
        return [kernel for kernel in self.symmetric if kernel.collective == collective]

    def version_text(self, settings: Settings) -> str:
        """The version as users write it: 2.27."""
        return version_text(self.version(settings))

    def title(self, settings: Settings) -> str:
        """The library's name and version."""
        return f"{self.name} {self.version_text(settings)}"


_REGISTERED = (2, 23)
"""Over NVLink and PCIe (NVIDIA, "New Scaling Algorithm and Initialization with NVIDIA Collective
Communications Library 2.23", 2025).
"""

LIBRARIES = {
    "nccl": Library("NCCL", ChannelSearch, TimeModel, KERNELS, (2, 27), (2, 28), _REGISTERED),
    "rccl": Library(
        "RCCL", RcclSearch, RcclTimeModel, SYMMETRIC_OF_RCCL, (2, 28),
        current=CURRENT_RCCL, newest=(2, 28),
        why=", as later ones have direct kernels of their own (RCCL_DDA_ENABLE)",
    ),
}  # fmt: skip
"""RCCL's direct kernels came with 2.30.4 for ROCm 7.14 (ROCm/rocm-systems pull 4958 and
projects/rccl/CHANGELOG.md, read 2026-11); there is no RCCL 2.29.
"""


def library_of(facts: Facts) -> Library:
    """The library that a communicator's GPUs run."""
    return LIBRARIES[facts.library]
