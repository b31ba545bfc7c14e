"""What planners know of a library: the rings of a node that it takes, and how its kernels cut.

RCCL lists the rings of some nodes. On others it searches as NCCL does, but on
one of more than four GPUs it takes only two rings: for any such node that has xGMI links, its
parser of Rome boards sets a flag, whether or not a board fits, by which the search allows two
channels (ROCm/rocm-systems projects/rccl/src/graph/rome_models.cc and search.cc, 2026).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

Way = tuple[int, ...]


@dataclass(frozen=True)
class NodeRings:
    """A node that a library knows: how many directed pairs of its GPUs are linked, and its rings.

    `alone` are the rings, by the places of the GPUs, where no other node takes part, and `through`
    the ways through one of several nodes. Each is listed so many `times`.
    """

    pairs: int
    alone: tuple[Way, ...]
    through: tuple[Way, ...]
    times: tuple[int, int]

    def fits(self, lanes: Sequence[Sequence[int]], *, several: bool) -> bool:
        """Whether GPUs with these lanes from each to each are the node."""
        ways = self.through if several else self.alone
        linked = {(u, v) for u, row in enumerate(lanes) for v in range(len(row)) if row[v]}
        steps = {step for way in ways for step in pairwise(way if several else (*way, way[0]))}
        same = len(linked) == self.pairs and len(lanes) == len(ways[0])
        return same and steps <= linked


class Flagged(NamedTuple):
    """A protocol with flags in its lines: bytes of data in a `step` of its buffer, and that the
    threads of a block `hold` at once, and the part of a line that is `data`.
    """

    step: int
    hold: int
    data: float


_LL = Flagged(8 * 512 * 8, 512 * 8, 1 / 2)
_LL128 = Flagged(120 * 640 * 8 * 15 // 16, 640 * 8 * 8 * 15 // 16, 15 / 16)
"""Of each thread of a block: 8 lines of LL, 8 bytes of which it holds at once, and 120 words of
LL128, 8 of which it holds; NVIDIA/nccl src/include/device.h, src/device/prims_ll.h, prims_ll128.h.
"""


@dataclass(frozen=True)
class LibraryRules:
    """The rules of a library: the `nodes` it knows, and elsewhere up to `most` rings on one node of
    more than `few` GPUs. A chunk of Simple has so many `slices`, on one node `slices_alone`.
    """

    library: str = "nccl"
    nodes: tuple[NodeRings, ...] = ()
    few: int = 0
    most: int = 32
    ll: Flagged = _LL
    ll128: Flagged = _LL128
    slices: int = 2
    slices_alone: int = 2

    def flagged(self, name: str) -> Flagged | None:
        """A protocol with flags by its name; None for Simple."""
        return {"ll": self.ll, "ll128": self.ll128}.get(name)

    def listed(
        self, lanes: Sequence[Sequence[int]], *, several: bool, repeated: bool = False
    ) -> tuple[Way, ...]:
        """The listed rings of GPUs with these lanes from each to each, each as often as listed if
        `repeated`; () if no node fits.
        """
        for node in self.nodes:
            if node.fits(lanes, several=several):
                found = node.through if several else node.alone
                return found * (node.times[several] if repeated else 1)
        return ()

    def limit(self, n: int, *, several: bool) -> int:
        """The most rings that are taken on a node of `n` GPUs where no listed ones fit."""
        return LibraryRules.most if several or n <= self.few else self.most


def _ways(text: str) -> tuple[Way, ...]:
    return tuple(tuple(map(int, word)) for word in text.split())


NCCL = LibraryRules()
MESH_8 = NodeRings(
    56,
    _ways(
        "01234567 01234576 02413657 02461735 03152746 03516274 04173625"
        " 76543210 67543210 75631420 53716420 64725130 47261530 52637140"
    ),
    _ways("01234567 10243576 25036174 37042165 46273051 54713260 63140752 72064153"),
    (2, 8),
)
"""Eight GPUs on a full mesh, models 79 and 81: its rings use every link twice, and its ways every
link once; each begins at the NIC of its first GPU and ends at that of its last.
"""
FRONTIER = NodeRings(
    24,
    _ways("01324576 67542310 01546732 23764510"),
    _ways("01546732 23764510 76013245 54231067"),
    (1, 2),
)
"""Four modules of two dies of MI250X, models 73 and 74."""
RCCL = LibraryRules(
    "rccl",
    (MESH_8, FRONTIER),
    few=4,
    most=2,
    ll=Flagged(8 * 256 * 8, 256 * 8, 1 / 2),
    ll128=Flagged(28 * 256 * 8 * 7 // 8, 256 * 8 * 8 * 7 // 8, 7 / 8),
    slices_alone=1,
)
CDNA2 = replace(RCCL, slices_alone=RCCL.slices)
"""Blocks of 256 threads, where NCCL's have 512 by LL and 640 by LL128, whose lines are of 64 bytes,
not of 128 (ROCm/rocm-systems projects/rccl/src/include/device.h, rccl_common.h). On one node a
chunk of CDNA 3 and 4 is one slice (rcclUseOneSlice in src/init.cc).
"""


def rules_of(model: str) -> LibraryRules:
    """The rules of the library that a model of GPUs runs: RCCL for AMD Instinct, else NCCL."""
    name = model.upper().replace("INSTINCT", "").strip()
    return CDNA2 if name.startswith("MI2") else RCCL if name.startswith("MI") else NCCL
