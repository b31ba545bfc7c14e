"""One node as NCCL plans it: capacities, and a path of one class between every two devices."""

from __future__ import annotations

from dataclasses import dataclass

from simreduce.errors import TopologyError
from simreduce.nccl.tables import NVLINK, PCI

CLASSES = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")
"""Classes of paths, nearest first."""
LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB, SYS, _, DIS = range(len(CLASSES))
LOCAL = 5000.0
"""GB/s of a path from a device to itself."""
_MOST = 1 << 12
"""GPUs of the largest node on one switch."""


@dataclass(frozen=True, slots=True)
class Path:
    """A way between two devices of a box: its class, the capacities it loads, the narrowest of them
    in GB/s, and how many links it has.
    """

    kind: int
    arcs: tuple[int, ...]
    rate: float
    hops: int


@dataclass(frozen=True, slots=True)
class Nic:
    """A NIC, its rate in GB/s, and its latency in microseconds as the planner adds it."""

    name: str
    rate: float
    latency: float = 0.0


@dataclass(frozen=True, eq=False)
class Box:
    """One node. `between[u][v]` leads from GPU u to GPU v, `to_nic[u][k]` to a NIC and
    `from_nic[k][u]` back; None without a way. `capacity` is in GB/s, by arc.
    """

    gpus: tuple[str, ...]
    nics: tuple[Nic, ...]
    capacity: tuple[float, ...]
    between: tuple[tuple[Path | None, ...], ...]
    to_nic: tuple[tuple[Path | None, ...], ...]
    from_nic: tuple[tuple[Path | None, ...], ...]
    nvlink: tuple[float, ...]
    """Sum of the NVLinks of each GPU."""
    pcie: tuple[float, ...]
    switched: bool
    """Whether all GPUs hang on NVSwitches, each with one port."""

    @property
    def total(self) -> float:
        """What the best-linked GPU can send, in GB/s."""
        return max(max(pair) for pair in zip(self.nvlink, self.pcie, strict=True))


def crossbar(gpus: tuple[str, ...], port: float) -> Box:
    """GPUs on one switch, too many to be listed pair by pair in a topology."""
    n = len(gpus)
    own = [Path(LOC, (), LOCAL, 0)]
    if n > _MOST:
        raise TopologyError(f"{n} GPUs in one node: NCCL is planned for at most {_MOST}")
    between = tuple(
        tuple(own[0] if u == v else Path(NVL, (u, n + v), port, 2) for v in range(n))
        for u in range(n)
    )
    none: tuple[Path | None, ...] = ()
    return Box(gpus, (), (port,) * (2 * n), between, (none,) * n, (), (port,) * n, (0.0,) * n, True)


def hardware(kind: int) -> str:
    """The row of the latency tables for a class of paths within a node."""
    return NVLINK if kind <= NVL else PCI
