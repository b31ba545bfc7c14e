"""One node as NCCL plans it: capacities, and a path of one class between every two devices."""

from __future__ import annotations

from dataclasses import dataclass

from simreduce.planners.nccl.tables import NVLINK, PCI

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
    way. `capacity` is in GB/s, by arc. GPUs that all hang on NVSwitches have `ports`, others have
    `paths` from each to each.
    """

    gpus: tuple[str, ...]
    nics: tuple[Nic, ...]
    capacity: tuple[float, ...]
    to_nic: tuple[tuple[BoxPath | None, ...], ...]
    from_nic: tuple[tuple[BoxPath | None, ...], ...]
    nvlink: tuple[float, ...]
    """Sum of the NVLinks of each GPU."""
    pcie: tuple[float, ...]
    paths: tuple[tuple[BoxPath | None, ...], ...] = ()
    ports: tuple[tuple[int, int, float], ...] = ()
    """Arcs out of each GPU and into it, and their rate."""

    @property
    def switched(self) -> bool:
        """Whether every two GPUs are joined by the port of each."""
        return bool(self.ports)

    @property
    def total(self) -> float:
        """The rate at which the best-linked GPU can send, in GB/s."""
        return max(max(pair) for pair in zip(self.nvlink, self.pcie, strict=True))

    def between(self, u: int, v: int) -> BoxPath | None:
        """The path from GPU u to GPU v."""
        if not self.ports:
            return self.paths[u][v]
        if u == v:
            return BoxPath(LOC, (), LOCAL, 0)
        out, into = self.ports[u], self.ports[v]
        return BoxPath(NVL, (out[0], into[1]), min(out[2], into[2]), 2)


def crossbar(gpus: tuple[str, ...], port: float) -> Box:
    """GPUs on one switch."""
    n = len(gpus)
    ports = tuple((u, n + u, port) for u in range(n))
    return Box(gpus, (), (port,) * (2 * n), ((),) * n, (), (port,) * n, (0.0,) * n, ports=ports)


def hardware(kind: int) -> str:
    """The row of the latency tables for a class of paths within a node; single GPUs count as PCI,
    as in NCCL.
    """
    return NVLINK if kind == NVL else PCI
