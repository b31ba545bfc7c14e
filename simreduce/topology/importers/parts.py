"""Parts of imported machines: nodes and cables, figures of GPUs by model and of link classes.

NVLinks are added to machines whose file shows none, such as the topology files of clouds.
"""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from simreduce import units
from simreduce.errors import TopologyError, did_you_mean, quote
from simreduce.files.formats.syntax import Faults
from simreduce.topology.elements import (
    DEFAULT_NIC_REACH,
    OFF,
    Cable,
    LinkClass,
    Node,
    NodeKind,
    link_classes,
)
from simreduce.topology.formats import LINK_FIGURES
from simreduce.topology.graph import Topology, build
from simreduce.topology.machine import read_link_class
from simreduce.topology.machine_files import read_document
from simreduce.topology.routing import GPU_LINKS, is_nvlink


@dataclass(frozen=True, slots=True)
class GpuModel:
    """`nvlink` is the class of its NVLinks, "" if it has none, and `nvlinks` how many it has;
    `bridged` says that all of them lead to one other GPU. `memory` is in bytes/s and its `size` in
    bytes, 0 where there are several.

    `sm` is NCCL's name of its compute capability, in RCCL the major and minor number of `arch`, the
    target of AMD's compilers ("" of NVIDIA's GPUs). `peer` and `gpudirect` are the farthest ways of
    peer copies and of GPUDirect RDMA (`topology.routing.staging`). `devices` are PCI device ids
    that no other model has.
    """

    name: str
    sm: int
    nvlink: str
    nvlinks: int
    pcie: str
    memory: float
    size: int = 0
    peer: str = "PHB"
    gpudirect: str = DEFAULT_NIC_REACH
    bridged: bool = False
    arch: str = ""
    devices: tuple[int, ...] = ()

    @property
    def on_grace(self) -> bool:
        """Whether C2C joins it to a Grace CPU."""
        return self.name.startswith("G") and self.sm >= 90


GB = 10**9
NVIDIA = "0x10de"
AMD_VENDOR = "0x1002"
"""PCI vendor ids, as NCCL and RCCL write them."""
SUMMED_BY_SWITCHES = 90
"""The compute capability from which on NVSwitches multicast and sum what GPUs send, times 10."""


def _models() -> Iterator[GpuModel]:
    """Rows of `gpus.csv`; empty cells are the defaults, and `size_gb` 0 where there are several."""
    for row in csv.DictReader((Path(__file__).parent / "gpus.csv").read_text("utf-8").splitlines()):
        yield GpuModel(
            row["name"], int(row["sm"]), row["nvlink"], int(row["nvlinks"]), row["pcie"],
            float(row["memory_gb_per_s"]) * 1e9, int(row["size_gb"] or 0) * GB,
            row["peer"] or "PHB", row["gpudirect"] or DEFAULT_NIC_REACH,
            bridged=bool(row["bridged"]), arch=row["arch"],
            devices=tuple(int(device, 16) for device in row["devices"].split()),
        )  # fmt: skip


MODELS: Mapping[str, GpuModel] = {model.name: model for model in _models()}
"""Data sheets of NVIDIA; models without a suffix are those with NVLink sockets (SXM). Bridges: four
links in the white paper "NVIDIA Ampere GA102 GPU Architecture" (RTX 3090, RTX A6000, A40); in
"NVIDIA Turing GPU Architecture" two of NVLink 2 (RTX 2080 Ti), and one (RTX 2080); of data sheets
A30 4, H100 PCIe and NVL 12, A800 and H800 PCIe 8. The drivers of GeForce from RTX 20 on and of
TITAN RTX refuse peer access over PCIe, not over a bridge.

Data sheets of AMD; an MI250X is one of its two dies, and its links are all that a die has. Targets
of compilers: AMD GPU specifications, rocm.docs.amd.com/en/latest/reference/gpu-arch-specs.html.
"""

_OLD_ARCH = {"910": "90a"}
"""RCCL's numbers of targets before it wrote their names, of the models above."""

UNKNOWN = GpuModel("", 0, "nvlink2", 0, "pcie3_x16", math.inf)
"""Stands in where no model is named: any number of slow NVLinks, and unlimited
memory.
"""


_MAKER = re.compile(r"\b(nvidia|geforce|tesla|quadro|amd|instinct)\b")
_FILLER = re.compile(
    r"sxm\d?|hbm\d\w?|oam|dgxs|ac|d|h|generation|edition|workstation|max|q|blackwell"
)
"""Words of programs' names that tell no two models of `MODELS` apart."""


def model_named(name: str) -> GpuModel:
    """The model of `--gpu`, with or without spaces and the maker's words, or as nvidia-smi and
    rocm-smi print it: `NVIDIA A100-SXM4-80GB`. Raises `TopologyError` that names the nearest of the
    same product.
    """
    if found := _known(name):
        return found
    # Another letter or number before that is another product.
    plain = _plain(_MAKER.sub("", name.lower()))
    head = re.match(r"[a-z]*[0-9]*", plain)
    alike = [known for known in MODELS if head and head[0] and head[0] in _plain(known)]
    near = did_you_mean(plain, alike) or f"; known are {', '.join(MODELS)}"
    raise TopologyError(f"unknown model {name!r}{near}")


def _known(name: str) -> GpuModel | None:
    """The model that a program calls so; None for one that is not in the table.

    A size of memory that a model does not have makes it another one.
    """
    words = re.findall(r"[a-z0-9]+", _MAKER.sub(" ", name.lower()))
    if (whole := "".join(words)) in _PLAIN:
        return _PLAIN[whole]
    kept = [word for word in words if not _FILLER.fullmatch(word)]
    sizes = [word for word in kept if re.fullmatch(r"\d+gb?", word)]
    kept = ["pcie" if word in ("fhhl", "active") else word for word in kept]
    card = [word for word in kept if word in ("pcie", "server")]
    base = "".join(word for word in kept if word not in (*sizes, *card))
    size = "".join(f"{each.rstrip('gb')}gb" for each in sizes)
    plain = base + "".join(card)
    for text in (plain + size, plain, base + size, base):
        found = _PLAIN.get(text)
        if found and (not sizes or found.size in (0, int(sizes[0].rstrip("gb")) * GB)):
            return found
    return None


def model_of_device(vendor: str, device: str) -> GpuModel | None:
    """The model with a PCI device id as NCCL writes both, `0x10de` and `0x2330`; None if unknown.

    Ids are those of the PCI ID Project (pci-ids.ucw.cz, 2026).
    """
    if not re.fullmatch(r"0x[0-9a-fA-F]{1,4}", device):
        return None
    number, amd = int(device, 16), vendor.lower() == AMD_VENDOR
    alike = (model for model in MODELS.values() if bool(model.arch) == amd)
    known = vendor.lower() in (NVIDIA, AMD_VENDOR)
    return next((model for model in alike if known and number in model.devices), None)


def without_nvlinks(model: GpuModel, links: int, peers: int = 1) -> str:
    """The fault of a model that has no NVLinks where a file shows `links` at a GPU, to so many
    others.
    """
    able = [m for m in MODELS.values() if m.nvlinks >= links and bool(m.arch) == bool(model.arch)]
    able = [m for m in able if not (m.bridged and peers > 1)]
    able = [m for m in able if m.nvlinks == links] or able
    names = ", ".join(m.name for m in sorted(able, key=lambda m: abs(m.sm - model.sm))[:4])
    return (
        f"{model.name} has no NVLinks, but the file shows {links} at a GPU; "
        f"{f'GPUs with so many: {names}' if names else 'no GPU has so many'}"
    )


@lru_cache(maxsize=256)
def model_in(text: str) -> GpuModel | None:
    """The model in a name such as "Tesla V100-SXM2-16GB", None if unknown: of whole words. Of
    `sm89` the compute capability is known alone. A laptop's has another chip than its number says.
    """
    if match := re.fullmatch(r"sm([0-9]{2,3})", text):
        return replace(UNKNOWN, name=text, sm=int(match[1]))
    words = re.findall(r"[a-z0-9]+", text.lower())
    if {"laptop", "mobile"}.intersection(words):
        return None
    some = {"".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)}
    return _known(text) or max(
        (model for plain, model in _PLAIN.items() if plain in some),
        key=lambda model: len(model.name),
        default=None,
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


_PLAIN = {_plain(name): model for name, model in MODELS.items()}


def model_of_arch(gcn: str) -> GpuModel:
    """The first model of an AMD target as RCCL writes it: gfx942, or 910 for gfx90a in old files.

    Raises `TopologyError` that names the nearest.
    """
    known = {model.arch: model for model in reversed([*MODELS.values()]) if model.arch}
    plain = gcn if gcn.startswith("gfx") else f"gfx{_OLD_ARCH.get(gcn, gcn)}"
    if plain.partition(":")[0] not in known:
        near = did_you_mean(plain, known) or f"; known are {', '.join(sorted(known))}"
        raise TopologyError(f"gcn {quote(gcn)} is no known target{near}; --gpu names a model")
    return known[plain.partition(":")[0]]


def model_of_sm(sm: str, *, linked: bool = False, on_c2c: bool = False) -> GpuModel:
    """The first model of a compute capability as NCCL writes it, if `linked` one with NVLinks, and
    if `on_c2c` one beside Grace, if there is one; `UNKNOWN` if there is none.
    """
    alike = [model for model in MODELS.values() if str(model.sm) == sm and not model.arch]
    alike.sort(key=lambda model: model.on_grace != on_c2c)
    return next((model for model in alike if model.nvlink or not linked), (*alike, UNKNOWN)[0])


EFA_LATENCY = {"efa_100": 75.0, "efa_100x4": 75.0, "efa_200x2": 35.0, "efa_400": 35.0}
"""Microseconds that the plugin for EFA states for its network, by class: "NET/OFI Internode latency
set at 75.0 us" in logs of p4d; aws/aws-ofi-nccl src/platform-aws.cpp.
"""

SIMPLE_ONLY = ("efa_100",)
"""Networks whose plugin sets NCCL_PROTO=simple unless the user sets it: EFA that sends and receives
(p3dn, p4d) may deliver bytes out of order, which LL and LL128 do not stand (aws/aws-ofi-nccl issues
76 and 280).
"""


def leaves_simple(machine: Topology) -> bool:
    """Whether the plugin of a machine's network leaves NCCL the protocol Simple alone."""
    return any(node.network in SIMPLE_ONLY for node in machine.nodes.values())


_PORTS = {
    "nvlink2": (20.8e9, 1.0), "nvlink3": (0.0, 1.4), "nvlink4": (0.0, 0.94), "nvlink5": (0.0, 1.0),
    "H200": (22e9, 0.94),
}  # fmt: skip
"""Bytes/s that a link to an NVSwitch reaches, 0 for those of its class, and us of a half hop, by
class or model: those of dgx2, dgx-a100, dgx-h100, hgx-b200 and hgx-h200, with their sources.
"""
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
        self.nodes[name] = (
            Node(name, kind, network=network)
            if model is None
            else Node(
                name, kind, model.name, model.memory, transit=False, peer=model.peer,
                gpudirect=model.gpudirect, memory=model.size,
            )
        )  # fmt: skip
        return name

    def add_nvswitch(self, gpu: str, note: str) -> str:
        """The switch of a GPU and those like it, which sums from H100 on (NVLink SHARP), as the
        `note` then says.
        """
        model, name = model_in(self.nodes[gpu].model), "nvswitch0"
        sums = model is not None and model.sm >= SUMMED_BY_SWITCHES and not model.arch
        self.nodes[name] = Node(name, "nvswitch", reduces=sums)
        self.notes.append(f"{note}{', which sums (NVLink SHARP)' * sums}")
        return name

    def free(self, stem: str) -> str:
        """The first of stem0, stem1, ... that no node has."""
        number = sum(name.startswith(stem) for name in self.nodes)
        while f"{stem}{number}" in self.nodes:
            number += 1
        return f"{stem}{number}"

    def link(self, a: str, b: str, link_class: str, lanes: int = 1) -> None:
        """A link of a known class, to an NVSwitch with the figures of such ports unless the class
        is the caller's own. GPUs without peer access have it over their NVLinks.
        """
        for name in (a, b) if link_class.startswith(GPU_LINKS) else ():
            if self.nodes[name].peer == OFF:
                self.nodes[name] = replace(self.nodes[name], peer="NV")
        known = self.classes[link_class]
        if self.nodes[b].kind == "nvswitch" and known == link_classes().get(link_class):
            model = self.nodes[a].model
            rate, us = _PORTS.get(model) or _PORTS.get(link_class) or (0.0, known.latency * 1e6)
            known = replace(known, achievable=rate or known.achievable, latency=us * 1e-6)
        self.cables.append(known.cable(self.nodes[a], self.nodes[b], lanes))

    def pcie(self, a: str, b: str, gt_per_s: float, width: int) -> None:
        """A PCIe link of any speed; the figures of those without a class are on the wire's scale of
        Gen3 x16.
        """
        name = f"pcie{GENERATIONS[gt_per_s]}_x{width}"
        base = self.classes["pcie3_x16"]
        scale = gt_per_s * width * (0.8 if gt_per_s < 8 else 128 / 130) / (8 * 16 * 128 / 130)
        nominal, achievable = base.bandwidth * scale, base.achievable * scale
        scaled = replace(base, name=name, bandwidth=nominal, achievable=achievable)
        self.cables.append(self.classes.get(name, scaled).cable(self.nodes[a], self.nodes[b]))

    def add_switch(self, above: str, pcie: str) -> str:
        """A PCIe switch that hangs on a node by a link of the class `pcie`; its name."""
        name = self.add(self.free("plx"), "pcie_switch")
        self.link(name, above, pcie)
        return name

    def link_cpus(self, link_class: str, lanes: int, rate: float = 0.0) -> None:
        """Links between every two CPUs; `rate` is in bytes/s of a lane, that of the class if 0."""
        known = self.classes[link_class]
        if rate:
            known = replace(known, bandwidth=rate, achievable=rate)
        cpus = [node for node in self.nodes.values() if node.kind == "cpu"]
        self.cables += [known.cable(*pair, lanes) for pair in itertools.combinations(cpus, 2)]

    def take_cpus_for(self, host: Host) -> None:
        """Give every CPU the maker and the memory of a host, and say so."""
        maker, cpus = MAKERS.get(host.vendor, ""), self.nodes.values()
        self.nodes |= {
            node.name: replace(node, model=maker, memory_bandwidth=host.memory)
            for node in cpus
            if node.kind == "cpu"
        }
        rate = units.format_bandwidth(host.memory)
        self.notes.append(f"the memory of a CPU is taken for {rate}, as of {host.name}")

    def note(self, text: str) -> None:
        """A note, unless it is there already."""
        if text not in self.notes:
            self.notes.append(text)

    def staging(self, name: str, pcie: str) -> None:
        """Add what staged copies take at a GPU or a PCIe switch with links of the class `pcie`."""
        known = self.classes.get(f"staged_{pcie.partition('_')[0]}")
        if known:
            self.cables += known.tolls(self.nodes[name])


@dataclass(frozen=True, slots=True)
class Host:
    """A CPU as NCCL's XML names it, and the links between two such sockets; `memory` is in bytes/s
    of a socket, `rate` of a lane, 0 for that of the class.
    """

    name: str
    arch: str
    vendor: str
    models: tuple[str, ...]
    link_class: str
    lanes: int
    memory: float
    rate: float = 0.0


INTEL, AMD = "GenuineIntel", "AuthenticAMD"
MAKERS = {AMD: "EPYC", "ARM": "Grace"}
"""Models of CPUs of a vendor, where it has one for all."""
HOSTS = (
    Host("Skylake", "x86_64", INTEL, ("85",), "upi", 2, 128e9),
    Host("Broadwell", "x86_64", INTEL, ("79",), "qpi", 2, 76.8e9),
    Host("Ice Lake", "x86_64", INTEL, ("106",), "upi", 3, 204.8e9),
    Host("Sapphire Rapids", "x86_64", INTEL, ("143",), "upi2", 3, 307.2e9),
    Host("Emerald Rapids", "x86_64", INTEL, ("207",), "upi2", 3, 358.4e9, 40e9),
    Host("Rome", "x86_64", AMD, ("49",), "xgmi", 3, 204.8e9),
    Host("Genoa", "x86_64", AMD, ("17", "144", "2"), "xgmi3", 3, 460.8e9),
    Host("Grace", "arm64", "ARM", ("0",), "grace_link", 1, 512e9),
)
"""Hosts by vendor and model ids; writers use the first model id of each.

The first host of each vendor also serves for its models that are not here. Intel's serve from their
model id up to the next one's, as in NCCL. Memory is that of all channels by its maker's product
page: 6 of DDR4-2666, 4 of DDR4-2400, 8 of DDR4-3200, 8 of DDR5-4800, 8 of DDR5-5600, of AMD 8 of
DDR4-3200 and 12 of DDR5-4800, and LPDDR5X of Grace.
"""
ON_GRACE = ("grace_link", 1)
USUAL_SOCKETS = {"pcie3": ("upi", 2), "pcie4": ("xgmi", 3), "pcie5": ("upi2", 3)}
"""Links between sockets by the PCIe generation of their GPUs, where a file does not state them:
those of Skylake, of EPYC as in a DGX A100, and of Sapphire Rapids as in a DGX H100.
"""


def host_joined_by(link_class: str, lanes: int) -> Host | None:
    """The host with such links to others, the first of their class if none has so many; None if no
    host has such links.
    """
    alike = [host for host in HOSTS if host.link_class == link_class]
    exact = [host for host in alike if host.lanes == lanes]
    return next((host for host in (*exact, *alike)), None)


def host_like(arch: str, vendor: str, model: str) -> Host:
    """The host that models a CPU; Intel's if its vendor is unknown, as in NCCL."""
    alike = [host for host in HOSTS if host.arch == arch] or [
        host for host in HOSTS if host.arch == "x86_64"
    ]
    alike = [host for host in alike if host.vendor == vendor] or alike
    if vendor == INTEL and model.isdecimal():
        until = [host for host in alike if int(host.models[0]) <= int(model)]
        return max(until or [HOSTS[1]], key=lambda host: int(host.models[0]))
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
            switch = parts.add_nvswitch(gpus[0], "NVSwitches are one node")
            for gpu in gpus:
                parts.link(gpu, switch, model.nvlink, model.nvlinks)
        else:
            share = model.nvlinks // max(len(gpus) - 1, 1)
            if not share:
                raise TopologyError(
                    f"--nvlink mesh: {model.nvlinks} links do not reach {len(gpus) - 1} other GPUs"
                )
            for pair in itertools.combinations(gpus, 2):
                parts.link(*pair, model.nvlink, share)
    else:
        _copy_nvlinks(parts, gpus, text, load)
    cables = [*topology.links[::2], *parts.cables]
    return build(topology.name, topology.title, topology.source, parts.nodes.values(), cables)


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
    for name, figures in (LINK_FIGURES.read(document.tables, faults)["links"] or {}).items():
        found[name] = read_link_class(faults, f"links.{name}", name, figures, path)
    faults.raise_any(TopologyError)
    return found
