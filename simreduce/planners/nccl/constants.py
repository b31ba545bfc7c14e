"""The constants of NCCL's planner by version: microseconds, GB/s, and the ladders of speeds.

They were read from the public history of NVIDIA/nccl. From 2.18 on the library itself says the
same, of the last wheel of each version. Exact before: 2.8 and 2.17; between these, a constant
changes with the version that the release history names. Not known exactly: 2.5 to 2.7 (their caps
of trees and of LL come from 2.6). Before 2.5 there was no model (`choice`).

The CSV of NCCL's example tuner plugin: rules that choose instead of the model.

    collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks[,numPipeOps[,regBuff]]

Lines that begin with # do not count. -1 matches everything. The first rule wins that matches and
has an algorithm and a protocol which NCCL has for the call. Sizes are as they stand: rules that end
at 4294967295, the largest of the plugin's README, are for no call of 4 GiB. 0 channels leave their
number to NCCL; -1 are one, whatever the README says, and so many has a call without a rule, by
NCCL's own algorithm. So says the plugin of NVIDIA/nccl, plugins/tuner/example (2026-06), asked by
the libraries 2.28.9 and 2.30.7 (tests/planners/nccl/answers/tuner).

NCCL's symmetric kernels (2.27 and later), and how NCCL chooses among them.

They run on GPUs that links or switches of links join, where an application has registered the
buffers of all ranks as symmetric windows. NCCL has a model of time of its own for them: bytes that
a port carries over the rate of some blocks, after a constant. It takes the kernel of the least
time, with 2.5 % added for each block (`ncclSymkPickKernel` and `queryModel_lsa` of NVIDIA/nccl
src/sym_kernels.cc, 01050a1, read 2026-11; the constants are its own).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import exp, log1p
from pathlib import Path
from typing import Any, NamedTuple

from simreduce.errors import InputError, near_or_all, quote
from simreduce.files import read_text
from simreduce.files.formats.syntax import Faults

Version = tuple[int, int]
CURRENT: Version = (2, 32)
CURRENT_RCCL: Version = (2, 27)
"""Of ROCm 7.1 and 7.2; the published times were taken with it and with older ones."""
OLDEST: Version = (2, 4)


def version_text(version: Version) -> str:
    """A version as users write it: 2.27."""
    return ".".join(map(str, version))


ALGORITHMS = ("tree", "ring", "nvls", "nvlstree", "pat")
COLLNET = "collnet"
"""The algorithm that the network's switches take part in, in each of NCCL's two forms."""
ALL_PAIRS = "allpairs"
"""The algorithm of MSCCL that RCCL has."""
PROTOCOLS = ("ll", "ll128", "simple")
COLLECTIVES = ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce")

NVLINK, PCI, NET = "nvlink", "pci", "net"
XGMI = {90: 36.0, 94: 48.0, 95: 48.0}
"""GB/s of one xGMI link as RCCL plans it, by compute capability: ROCm/rocm-systems
projects/rccl/src/graph/topo.h.
"""

Row = tuple[float, float, float]
"""By protocol, or by nodes: one, two, more."""
VOLTA, AMPERE, HOPPER, BLACKWELL = range(4)
_NONE: Row = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Tables:
    """Constants of one version. Rows by protocol are LL, LL128, Simple; rows by generation are
    Volta, Ampere, Hopper, Blackwell, and in each one node, two nodes, more.
    """

    version: Version
    base: Mapping[str, Row]
    steps: Mapping[tuple[str, str], Row]
    """Latency of a step, by kind of link and algorithm."""
    ll_cap: tuple[Row, ...]
    ring_ll128: tuple[Row, ...]
    tree_ll128: tuple[Row, ...]
    tree_cap: tuple[Row, ...]
    nvls_tree_cap: tuple[Row, ...]
    nvls_efficiency: tuple[float, ...]
    correction: tuple[tuple[float, ...], ...]
    """The part of their rate that trees reach, by protocol and power of two from 64 bytes."""
    nvlink: Mapping[int, float]
    """GB/s of one NVLink, by compute capability."""
    amd_sockets: float = 16.0
    socket_cap: float = float("inf")
    """GB/s that sockets of other makers are planned with at most: of Xeons, versions know
    generations up to Skylake at first (asked of 2.23 to 2.27).
    """
    most_channels: int = 64
    bus_caps: tuple[float, ...] = (float("inf"),) * 4
    ll128_by_collective: Row | tuple[float, ...] = ()
    """Cap of LL128 by collective: of a channel in 2.8 and 2.9, of all channels before."""
    pat_efficiency: float = 0.75
    c2c_as_nvlink: float = 0.0
    """GB/s that C2C adds to the NVLinks of its GPU (2.19 to 2.25)."""

    def since(self, minor: int) -> bool:
        """Whether this is version 2.`minor` or later."""
        return self.version >= (2, minor)

    def nvlink_rate(self, capability: int) -> float:
        """GB/s of one NVLink of a GPU."""
        known = [cc for cc in self.nvlink if cc <= capability] or [min(self.nvlink)]
        return self.nvlink[max(known)]


_TREE = tuple(
    tuple(map(float, row.split()))
    for row in (
        "1 1 1 1 .9 .8 .7 .7 .7 .7 .6 .5 .4 .4 .5 .6 .7 .8 .9 1 1 1 1 1",
        "1 1 1 1 1 .9 .8 .8 .8 .7 .6 .6 .6 .6 .6 .6 .8 .9 .9 .9 .9 1 1 1",
        ".9 .9 .9 .9 .9 .9 .9 .8 .7 .6 .6 .5 .5 .5 .5 .6 .7 .8 .7 .7 .8 .9 .9 .9",
    )
)
_LL128_2_8 = "1 1 1 1 1 .9 .8 .8 .8 .7 .6 .6 .6 .5 .6 .6 .7 .7 .8 .9 .9 .92 .92"
_TREE_2_8 = (_TREE[0], tuple(map(float, _LL128_2_8.split())), _TREE[2])

_NEWEST = Tables(
    version=CURRENT,
    base={
        "tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4), "nvls": _NONE, "nvlstree": _NONE,
        "pat": (8.0, 8.0, 8.0),
    },
    steps={
        (NVLINK, "tree"): (0.6, 1.25, 4.0), (NVLINK, "ring"): (0.6, 1.9, 3.4),
        (NVLINK, "nvls"): (0, 0, 25.0), (NVLINK, "nvlstree"): (0, 0, 25.0),
        (NVLINK, "pat"): (0, 0, 4.0),
        (PCI, "tree"): (1.0, 1.9, 4.0), (PCI, "ring"): (1.0, 2.5, 5.7),
        (PCI, "nvls"): _NONE, (PCI, "nvlstree"): _NONE, (PCI, "pat"): (0, 0, 4.0),
        (NET, "tree"): (5.0, 8.5, 14.0), (NET, "ring"): (2.7, 4.0, 14.0),
        (NET, "nvls"): (0, 0, 18.0), (NET, "nvlstree"): (0, 0, 20.9), (NET, "pat"): (0, 0, 14.0),
    },
    ll_cap=((39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0), (282.4, 90.0, 70.0)),
    ring_ll128=((20.0,) * 3, (20.0,) * 3, (36.7,) * 3, (40.0,) * 3),
    tree_ll128=((20.0,) * 3, (20.0,) * 3, (36.7, 36.7, 29.0), (55.6, 36.7, 20.0)),
    tree_cap=((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (70.0, 42.8, 24.0)),
    nvls_tree_cap=(_NONE, _NONE, (0.0, 57.7, 45.5), (0.0, 96.0, 80.0)),
    nvls_efficiency=(0.0, 0.0, 0.85, 0.74),
    correction=_TREE,
    nvlink={60: 18.0, 70: 20.0, 80: 20.0, 86: 12.0, 90: 20.6, 100: 40.1},
)  # fmt: skip


def _late_trees(at: Tables, **late: float) -> dict[tuple[str, str], Row]:
    """Steps of trees, with so many microseconds by Simple over each of some links."""
    return {(link, "tree"): (*at.steps[link, "tree"][:2], us) for link, us in late.items()}


_OLDER: tuple[tuple[Version, Callable[[Tables], dict[str, Any]]], ...] = (
    ((2, 32), lambda at: {
        "ll_cap": (*at.ll_cap[:3], (282.0, 90.0, 70.0)),
        "tree_ll128": (*at.tree_ll128[:3], (55.6, 31.67, 20.0)),
    }),
    ((2, 29), lambda at: {
        "ring_ll128": (*at.ring_ll128[:3], (73.4,) * 3),
        "nvls_tree_cap": (*at.nvls_tree_cap[:3], (0.0, 96.0, 43.8)),
    }),
    ((2, 28), lambda at: {
        "steps": {**at.steps, (NET, "nvlstree"): (0, 0, 14.0)},
        "tree_ll128": (*at.tree_ll128[:3], (73.4, 73.4, 58.0)),
        "tree_cap": (*at.tree_cap[:3], (77.4, 82.8, 72.0)),
    }),
    ((2, 27), lambda at: {"nvlink": {**at.nvlink, 100: 40.0}}),
    ((2, 26), lambda _: {"c2c_as_nvlink": 450.0, "socket_cap": 10.0}),
    ((2, 25), lambda at: {"nvlink": {**at.nvlink, 100: at.nvlink[90]}}),
    ((2, 24), lambda _: {"pat_efficiency": 0.85}),
    ((2, 23), lambda at: {
        "base": {**at.base, "tree": (6.8, 14.0, 0.0)},
        "steps": {**at.steps, **_late_trees(at, nvlink=28.0, pci=28.0, net=28.0)},
        "most_channels": 32,
    }),
    ((2, 21), lambda at: {
        "steps": {**at.steps, **{(NVLINK, name): (0, 0, 23.0) for name in ("nvls", "nvlstree")}},
        "ll_cap": (*at.ll_cap[:2], *(at.ll_cap[1],) * 2),
    }),
    ((2, 20), lambda at: {"nvlink": {**at.nvlink, 90: 20.0, 100: 20.0}}),
    ((2, 19), lambda at: {
        "amd_sockets": 5000.0,
        "c2c_as_nvlink": 0.0,
        "steps": {**at.steps, **_late_trees(at, nvlink=4.0, pci=6.0, net=14.0),
                  (NET, "nvlstree"): (0, 0, 19.0)},
    }),
    ((2, 18), lambda at: {
        "base": {**at.base, "tree": (4.4, 4.4, 0.0), "ring": (3.6, 10.0, 8.4),
                 "nvls": (0, 0, 40.0)},
        "steps": {
            **at.steps, **_late_trees(at, pci=28.0, net=28.0),
            (NVLINK, "tree"): (0.52, 1.25, 28.0), (NVLINK, "ring"): (0.47, 1.9, 3.4),
            (NVLINK, "nvls"): _NONE,
            (NET, "ring"): (2.7, 4.0, 28.0 if (2, 12) <= at.version < (2, 14) else 9.6),
        },
        "tree_ll128": at.ring_ll128,
        "tree_cap": (*at.tree_cap[:2], *((38.7, 41.4, 33.0),) * 2),
        "nvlink": {**at.nvlink, 70: 22.0, 80: 22.0},
        "bus_caps": (float("inf"), 235.0, 370.0, 370.0),
    }),
    ((2, 10), lambda at: {
        "tree_cap": ((26.5, 18.5, 10.0), *((24.0, 22.5, 16.0),) * 3),
        "ll128_by_collective": (18.8, 12.0, 18.3, 15.2, 16.9),
        "correction": _TREE_2_8,
        "nvlink": {**at.nvlink, 70: 21.0, 80: 21.0},
    }),
    ((2, 8), lambda _: {
        "ll_cap": ((float("inf"),) * 3,) * 4,
        "tree_cap": ((110.0, 80.0, 80.0),) * 4,
        "ll128_by_collective": (113.0, 72.0, 110.0, 91.0, 100.0),
    }),
    ((2, 6), lambda at: {
        "base": {**at.base, "ring": (3.6, 3.6, 8.4)},
        "steps": {
            **at.steps,
            (NVLINK, "tree"): (0.5, 1.9, 28.0), (NVLINK, "ring"): (0.4, 2.5, 5.7),
            (NET, "tree"): (5.0, 7.5, 50.0), (NET, "ring"): (0.9, 2.5, 6.6),
        },
    }),
)  # fmt: skip
"""What the version before each had instead, the newest first."""


@functools.cache
def tables(version: Version = CURRENT) -> Tables:
    """The constants of a version, from the newest back, change by change."""
    at = replace(_NEWEST, version=version)
    for since, changes in _OLDER:
        if version < since:
            at = replace(at, **changes(at))
    return at


_INTRA = {
    70: "40 30 20 18 15 12 10 9 7 6 5 4 3",
    90: "60 50 40 30 24 20 15 12 11 6 3",
    100: "90 80 70 60 50 45 40 30 24 20 19 18",
}
_INTER = {
    70: "48 30 28 24 20 18 15 12 10 9 7 6 5 4 3 2.4 1.2 .24 .12",
    90: "48 45 42 40 30 24 22 20 17.5 15 12 6 3 2.4 1.2 .24 .12",
    100: "96 86 80 48 45.1 42 40 30 24 22 20 17.5 15 12 6 3 2.4 1.2 .24 .12",
}
_BEFORE_2_10 = "42 30 24 21 18 15 12 10 9 7 6 5 4 3 2.4 1.2 .24 .12"


def ladder(capability: int, nodes: int, version: Version) -> tuple[float, ...]:
    """The speeds of a channel in GB/s that the search tries, the highest first."""
    since = (2, 25) if nodes == 1 else (2, 27)
    row = 100 if capability >= 100 and version >= since else 90 if capability >= 90 else 70
    rows = {row: _BEFORE_2_10} if version < (2, 10) else _INTRA if nodes == 1 else _INTER
    speeds = tuple(map(float, rows[row].split()))
    if version < (2, 18) and row == 70:
        # The planning rate of an NVLink was 22 then, and the ladder was made for it.
        speeds = tuple({40.0: 44.0, 20.0: 22.0}.get(speed, speed) for speed in speeds)
    later = (86.0, 80.0) if nodes > 1 else (45.0,)
    return tuple(speed for speed in speeds if version >= (2, 29) or speed not in later)


NAMED = {name.replace("_", ""): name for name in COLLECTIVES}
"""Collectives by the names that NCCL has for them."""
TUNER_ALGORITHMS = {
    "tree": "tree", "ring": "ring", "nvls": "nvls", "nvls_tree": "nvlstree", "pat": "pat",
    "collnet_direct": "collnetdirect", "collnet_chain": "collnetchain",
}  # fmt: skip
ANY_SIZE = (1 << 64) - 1
"""The largest size that a rule can end at."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A line: for which collective, sizes and communicators it is, and what it chooses: "" and 0
    are NCCL's own algorithm and channels. With -1, `registered` is for all buffers.
    """

    collective: str
    least: int
    most: int | None
    algorithm: str
    protocol: str
    channels: int
    nodes: int
    ranks: int
    registered: int = -1

    def matches(
        self, collective: str, nbytes: int, nodes: int, ranks: int, *, registered: bool = False
    ) -> bool:
        """Whether the rule is for this call."""
        return (
            self.collective == collective
            and self.least <= nbytes
            and (self.most is None or nbytes <= self.most)
            and self.nodes in (-1, nodes)
            and self.ranks in (-1, ranks)
            and self.registered in (-1, registered)
        )


def load_tuner(path: str) -> tuple[Rule, ...]:
    """The rules of a file; raises `InputError` with every fault."""
    return read_tuner(read_text(Path(path), InputError), path)


def read_tuner(content: str, source: str) -> tuple[Rule, ...]:
    """The rules of a text, and last those of calls without one; raises `InputError` with every
    fault.
    """
    faults = Faults(source)
    rules = []
    for number, line in enumerate(content.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            cells = [cell.strip() for cell in line.split(",")]
            if cells[0] != "collective_type":
                rules.append(_rule(cells, faults, f"line {number}"))
    faults.raise_any()
    rest = [Rule(name, 0, None, "", "", 1, -1, -1) for name in NAMED.values()]
    return (*(rule for rule in rules if rule is not None), *rest)


def _rule(cells: list[str], faults: Faults, place: str) -> Rule | None:
    if not 8 <= len(cells) <= 10:
        faults.add(place, f"must have 8, 9 or 10 fields, got {len(cells)}")
        return None
    columns = zip(_COLUMNS, cells, strict=False)
    found: list[Any] = [faults.attempt(place, read, cell) for read, cell in columns]
    if None in found:
        return None
    collective, least, most, algorithm, protocol, *numbers = (*found, -1, -1)[:10]
    channels, nodes, ranks, joined, registered = numbers
    if joined not in (-1, 1):
        return None  # no call is predicted as joined with others
    words = collective, least, most, algorithm, protocol
    return Rule(*words, abs(channels), nodes, ranks, registered)


def unknown(what: str, word: str, known: Iterable[str]) -> ValueError:
    """The fault of a word that is not among those that are known."""
    return ValueError(f"unknown {what} {quote(word)}{near_or_all(word, known, '; known: ')}")


def _word(what: str, known: Mapping[str, str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known:  # another case is a word that the plugin does not know, either
            raise unknown(what, text, known)
        return known[text]

    return read


def _number(name: str, least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if re.fullmatch(r"-?[0-9]{1,20}", text) and int(text) >= least:
            return int(text)
        raise ValueError(f"{name}: must be a whole number of at least {least}, got {quote(text)}")

    return read


_COLUMNS = (
    _word("collective", NAMED), _number("min", 0), _number("max", 0),
    _word("algorithm", TUNER_ALGORITHMS), _word("protocol", {name: name for name in PROTOCOLS}),
    *(_number(name, -1) for name in ("channels", "nNodes", "nRanks", "numPipeOps", "regBuff")),
)  # fmt: skip
"""How the fields of a line are read."""


BY_ENGINES = ("all_gather", "all_to_all")
"""What copy engines move, with NCCL_CTA_POLICY zero, from a version on."""

_GIB = (1 << 30) / 1e6  # bytes/us
_BLOCKS, _MULTICAST_BLOCKS, _NEWER_BLOCKS = 64, 16, 32
_FLAGGED = 9.0
"""Bytes that a kernel with flags in the data counts for one: twice, and work on them."""
_TOLERANCE, _PENALTY = 1.025, 0.025
_MOST_FLAGGED = 2 << 30
_BLACKWELL = 100
_LEAST_MULTICAST = 3
"""GPUs below which NCCL multicasts nothing."""


class SymmetricKernel(NamedTuple):
    """A kernel: its name, its collective, whether flags come with the data, whether switches
    multicast or sum.
    """

    name: str
    collective: str
    flagged: bool
    switched: bool


_AR, _AG, _RS = "all_reduce", "all_gather", "reduce_scatter"
KERNELS = (
    SymmetricKernel("agxll_r", _AR, flagged=True, switched=False),
    SymmetricKernel("agxllmc_r", _AR, flagged=True, switched=True),
    SymmetricKernel("rsxld_agxst", _AR, flagged=False, switched=False),
    SymmetricKernel("rsxldmc_agxstmc", _AR, flagged=False, switched=True),
    SymmetricKernel("ll", _AG, flagged=True, switched=False),
    SymmetricKernel("llmc", _AG, flagged=True, switched=True),
    SymmetricKernel("st", _AG, flagged=False, switched=False),
    SymmetricKernel("stmc", _AG, flagged=False, switched=True),
    SymmetricKernel("ll", _RS, flagged=True, switched=False),
    SymmetricKernel("ld", _RS, flagged=False, switched=False),
    SymmetricKernel("ldmc", _RS, flagged=False, switched=True),
)
"""NCCL's in its own order, by the names that strategies have. Those that move tiles (TMA) are
switched off unless a user asks for them (NCCL_SYM_TMA_ENABLE).
"""


def choose_symmetric(
    gpus: int, nbytes: int, capability: int, among: Iterable[SymmetricKernel], *, multicast: bool
) -> str:
    """The name of the kernel that a library takes `among` its own for a collective of a tensor of
    `nbytes`; `multicast` says whether switches sum and multicast.
    """
    costs: dict[str, float] = {}
    for kernel in among:
        switches = multicast and gpus >= _LEAST_MULTICAST
        if (switches or not kernel.switched) and not (kernel.flagged and nbytes >= _MOST_FLAGGED):
            us, blocks = _estimate(kernel, gpus, nbytes, capability)
            costs[kernel.name] = us * (1.0 + _PENALTY * blocks)
    return min(costs, key=costs.__getitem__, default="")


def symmetric_blocks(
    collective: str, gpus: int, nbytes: int, capability: int, *, flagged: bool, switched: bool
) -> int:
    """The blocks that NCCL takes for its kernel of that kind."""
    kernel = SymmetricKernel("", collective, flagged, switched)
    return _estimate(kernel, gpus, nbytes, capability)[1]


def _estimate(
    kernel: SymmetricKernel, gpus: int, nbytes: int, capability: int
) -> tuple[float, int]:
    """NCCL's estimate in microseconds, and the blocks that it takes."""
    newer, reduces = capability >= _BLACKWELL, kernel.collective == _AR
    given = nbytes if reduces else nbytes / gpus  # of a rank
    most, multiplier = _BLOCKS, 1.0
    if kernel.flagged:
        carried = gpus * given * _FLAGGED
        multiplier = 1.1 if kernel.switched else 1.0
    elif kernel.switched:
        carried = given / gpus + given if reduces else (gpus - 1) * given
        multiplier = gpus if reduces else 0.55 * gpus
        most = -(-(_NEWER_BLOCKS if newer else _MULTICAST_BLOCKS) // gpus)
    else:
        carried = 2.0 * given * (gpus - 1) / gpus if reduces else (gpus - 1) * given
    base = (8.5 if kernel.collective == _AG else 11.0) if newer else 4.5
    if not kernel.flagged:
        base = (19.5 if reduces else 13.0) if newer else 7.8
    each = (55.0 if newer else 65.0 if reduces else 44.0) * _GIB
    sums = reduces and kernel.switched and not kernel.flagged
    peak = ((1000.0 if sums else 600.0) if newer else 480.0 if sums else 320.0) * _GIB

    def us(blocks: int) -> float:
        # The peak is a smooth ceiling of the rate, and 0 a smooth floor of what bytes take.
        rate = peak - each * log1p(
            (exp(peak / each) - 1.0) * exp(-blocks * each * multiplier / each)
        )
        left = carried / rate - 1.0
        return base + (left if left >= 100.0 else log1p(exp(left)))

    best = us(most)
    fewest = next((n for n in range(1, most) if us(n) <= _TOLERANCE * best), most)
    return us(fewest), fewest


def choose_engine(gpus: int, part: int, capability: int, *, multicast: bool) -> str:
    """`engine` or, where a switch multicasts, `engine_mc`: what NCCL takes for an all-gather of
    `part` bytes of each GPU, by the floor and the rate of its model without CUDA graphs
    (NVIDIA/nccl src/tuning/ce_model.cc, 8898068, read 2026-11).
    """
    if not multicast:
        return "engine"
    newer = capability >= _BLACKWELL
    rate = (779.0 if newer else 392.0) * 1e3  # bytes/us
    one = (32.04 if newer else 17.5) + (0.13 if newer else 1.957) * gpus + part * (gpus - 1) / rate
    many = (29.14 if newer else 14.9) + (0.137 if newer else 0.726) * gpus + part * gpus / rate
    return "engine_mc" if many < one else "engine"
