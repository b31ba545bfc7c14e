"""Builds an imported machine from its nodes and cables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from simreduce.topology.classes import LinkClass, link_classes
from simreduce.topology.elements import OFF, Cable, Node, NodeKind
from simreduce.topology.importers.models import GpuModel
from simreduce.topology.routing.nvlink import GPU_LINKS

GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""PCIe generations by GT/s."""


@dataclass(slots=True)
class MachineBuilder:
    """Grows as a file is read, with links of these `classes`. `notes` list what was
    assumed because the file does not say it.
    """

    classes: Mapping[str, LinkClass] = field(default_factory=link_classes)
    nodes: dict[str, Node] = field(default_factory=dict)
    cables: list[Cable] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(
        self, name: str, kind: NodeKind, model: GpuModel | None = None, network: str = ""
    ) -> str:
        """A node of the machine; its name. `network` is the class of link that a NIC has a port
        for.
        """
        self.nodes[name] = Node(name, kind, network=network)
        if model is not None:
            self.nodes[name] = Node(
                name,
                kind,
                model.name,
                model.memory,
                transit=False,
                peer=model.peer,
                gpudirect=model.gpudirect,
                memory=model.size,
            )
        return name

    def free(self, stem: str) -> str:
        """The first of stem0, stem1, ... that no node has."""
        number = sum(name.startswith(stem) for name in self.nodes)
        while f"{stem}{number}" in self.nodes:
            number += 1
        return f"{stem}{number}"

    def link(self, a: str, b: str, link_class: str, lanes: int = 1) -> None:
        """A link of a known class. GPUs without peer access have it over their NVLinks."""
        for name in (a, b) if link_class.startswith(GPU_LINKS) else ():
            if self.nodes[name].peer == OFF:
                self.nodes[name] = replace(self.nodes[name], peer="NV")
        self.cables.append(self.classes[link_class].cable(self.nodes[a], self.nodes[b], lanes))

    def pcie(self, a: str, b: str, gt_per_s: float, width: int) -> None:
        """A PCIe link of any speed; the figures of those without a class are on the wire's scale of
        Gen3 x16.
        """
        name = f"pcie{GENERATIONS[gt_per_s]}_x{width}"
        if name in self.classes:
            self.link(a, b, name)
            return
        base = self.classes["pcie3_x16"]
        scale = gt_per_s * width * (0.8 if gt_per_s < 8 else 128 / 130) / (8 * 16 * 128 / 130)
        nominal, achievable = base.bandwidth * scale, base.achievable * scale
        link_class = replace(base, name=name, bandwidth=nominal, achievable=achievable)
        self.cables.append(link_class.cable(self.nodes[a], self.nodes[b]))

    def staging(self, name: str, pcie: str) -> None:
        """Add what staged copies take at a GPU or a PCIe switch with links of the class `pcie`."""
        known = self.classes.get(f"staged_{pcie.partition('_')[0]}")
        if known:
            self.cables += known.tolls(self.nodes[name])


@dataclass(frozen=True, slots=True)
class Host:
    """A CPU as NCCL's XML names it, and the links between two such sockets."""

    arch: str
    vendor: str
    models: tuple[str, ...]
    link_class: str
    lanes: int


HOSTS = (
    Host("x86_64", "GenuineIntel", ("85",), "upi", 2),
    Host("x86_64", "GenuineIntel", ("79", "63"), "qpi", 2),
    Host("x86_64", "GenuineIntel", ("143", "207"), "upi2", 3),
    Host("x86_64", "AuthenticAMD", ("49",), "xgmi", 3),
    Host("x86_64", "AuthenticAMD", ("17", "144", "2"), "xgmi3", 3),
    Host("arm64", "", ("",), "grace_link", 1),
)
"""Hosts by vendor and model ids; writers use the first model id of each.

The first host of each vendor also serves for its models that are not here.
"""


def host_like(arch: str, vendor: str, model: str) -> Host:
    """The host that models a CPU; Intel's if its vendor is unknown, as in NCCL."""
    alike = [host for host in HOSTS if host.arch == arch] or [
        host for host in HOSTS if host.arch == "x86_64"
    ]
    alike = [host for host in alike if host.vendor == vendor] or alike
    return next((host for host in alike if model in host.models), alike[0])
