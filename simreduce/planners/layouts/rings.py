"""Which rings of a node a library takes: listed ones of nodes it knows, or those on the links.

RCCL lists the rings of some nodes. On others it searches as NCCL does, but on
one of more than four GPUs it takes only two rings: for any such node that has xGMI links, its
parser of Rome boards sets a flag, whether or not a board fits, by which the search allows two
channels (ROCm/rocm-systems projects/rccl/src/graph/rome_models.cc and search.cc, 2026).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

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


@dataclass(frozen=True)
class RingRules:
    """The rules of a library: the `nodes` it knows, and elsewhere up to `most` rings on one node of
    more than `few` GPUs.
    """

    library: str = "nccl"
    nodes: tuple[NodeRings, ...] = ()
    few: int = 0
    most: int = 32

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
        return RingRules.most if several or n <= self.few else self.most


def _ways(text: str) -> tuple[Way, ...]:
    return tuple(tuple(map(int, word)) for word in text.split())


NCCL = RingRules()
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
RCCL = RingRules("rccl", (MESH_8, FRONTIER), few=4, most=2)


def rules_of(model: str) -> RingRules:
    """The rules of the library that a model of GPUs runs: RCCL for AMD Instinct, else NCCL."""
    return RCCL if model.upper().replace("INSTINCT", "").strip().startswith("MI") else NCCL
