"""Builds an imported machine from its nodes and cables.

Adds NVLinks to machines whose file shows none, such as the topology files of clouds.

Reads figures of link classes, which imported files leave out, from `[links.NAME]` tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from simreduce.errors import TopologyError
from simreduce.files.formats import Faults
from simreduce.topology.classes import LinkClass, link_classes
from simreduce.topology.elements import OFF, Cable, Node, NodeKind
from simreduce.topology.file_formats import LINK_FIGURES
from simreduce.topology.files import read_document
from simreduce.topology.graph import Topology, build
from simreduce.topology.importers.models import MODELS, UNKNOWN, GpuModel
from simreduce.topology.machine import read_link_class
from simreduce.topology.routing.staging import GPU_LINKS, is_nvlink

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


FORMS = (
    "switch, mesh, or the name of a machine whose NVLinks it has, with an order if it has "
    "one: dgx1v:0,3,1,2,4,7,5,6"
)


def with_nvlinks(
    topology: Topology,
    text: str,
    load: Callable[[str], Topology],
    classes: Mapping[str, LinkClass] | None = None,
) -> Topology:
    """The machine with NVLinks as `text` says; raises `TopologyError` when it has some, or when the
    two do not fit.

    `switch`: all links of each GPU to NVSwitches. `mesh`: all links of each GPU, shared out evenly
    to the others. `MACHINE[:ORDER]`: GPU i of the file has the links of GPU ORDER[i] of the
    machine. `classes` are the classes of links, the shipped ones unless given.
    """
    if any(is_nvlink(link) for link in topology.links):
        raise TopologyError(f"--nvlink {text}: {topology.name} shows NVLinks of its own")
    gpus = topology.devices
    model = MODELS.get(topology.nodes[gpus[0]].model, UNKNOWN)
    parts = MachineBuilder(classes or link_classes(), dict(topology.nodes))
    if text in ("switch", "mesh"):
        if not model.nvlink or not model.nvlinks:
            raise TopologyError(f"--nvlink {text}: name a model of GPU that has NVLinks with --gpu")
        if model.bridged and (text == "switch" or len(gpus) > 2):
            raise TopologyError(
                f"--nvlink {text}: a bridge of {model.name} joins two GPUs; write the pairs as "
                "[links] of the machine file"
            )
        if text == "switch":
            switch = parts.add("nvswitch0", "nvswitch")
            for gpu in gpus:
                parts.link(gpu, switch, model.nvlink, model.nvlinks)
        else:
            share = model.nvlinks // max(len(gpus) - 1, 1)
            if not share:
                raise TopologyError(
                    f"--nvlink mesh: {model.nvlinks} links do not reach {len(gpus) - 1} other GPUs"
                )
            for i, a in enumerate(gpus):
                for b in gpus[i + 1 :]:
                    parts.link(a, b, model.nvlink, share)
    else:
        _copy_nvlinks(parts, gpus, text, load)
    return build(
        topology.name,
        topology.title,
        topology.source,
        parts.nodes.values(),
        [*topology.links[::2], *parts.cables],
    )


def _copy_nvlinks(
    parts: MachineBuilder, gpus: tuple[str, ...], text: str, load: Callable[[str], Topology]
) -> None:
    """The NVLinks, and NVSwitches, of a machine."""
    name, _, order = text.partition(":")
    model = load(name)
    seats = order.split(",") if order else [str(i) for i in range(len(gpus))]
    if not all(re.fullmatch(r"[0-9]{1,4}", seat) for seat in seats) or sorted(
        map(int, seats)
    ) != list(range(len(model.devices))):
        raise TopologyError(
            f"--nvlink {text}: the order must hold each of 0 to {len(model.devices) - 1} once"
        )
    if len(model.devices) != len(gpus):
        raise TopologyError(
            f"--nvlink {text}: {name} has {len(model.devices)} GPUs, the file {len(gpus)}"
        )
    named = {model.devices[int(seat)]: gpu for seat, gpu in zip(seats, gpus, strict=True)}
    for node in model.nodes.values():
        if node.kind == "nvswitch":
            parts.nodes[node.name] = node
            named[node.name] = node.name
    for link in model.links[::2]:
        if is_nvlink(link):
            a, b = named[link.source], named[link.target]
            parts.cables.append(replace(link, source=a, target=b))


def read_link_table(path: str) -> Mapping[str, LinkClass]:
    """Return the shipped classes, replaced and extended by the classes of the file.

    A table of a shipped class replaces only the keys that it gives. Any other class needs a
    bandwidth and a latency. Raises `TopologyError` with every fault.
    """
    document = read_document(Path(path), path)
    faults = Faults(path, document.origin)
    found = dict(link_classes())
    values = LINK_FIGURES.read(document.tables, faults)
    for name, figures in (values["links"] or {}).items():
        found[name] = read_link_class(faults, f"links.{name}", name, figures, path)
    faults.raise_any(TopologyError)
    return found
