"""Reads machines from the files of other tools: `nvidia-smi topo -m`, `rocm-smi`,
`amd-smi`, NCCL's and RCCL's XML.

A machine as NCCL's topology XML, for `NCCL_TOPO_FILE`.

Devices, what hangs on what, the generation and width of PCIe, the number of NVLinks, and NICs with
their speed, and the latency that the plugin for EFA states, are read back as they were. Bus ids are
made up, from PCI domain 1 on, so that most machines have nothing of these in /sys. What the format
has no place for is lost, and comes back as the importer assumes it, unless a comment has the
machine file (`with_machine_file`):

- of GPUs the model (the first of its compute capability comes back), their memory, `peer`, and
  `gpudirect` but for "off";
- of CPUs the model, of which memory follows; of NICs the model; names of PCIe switches and CPUs;
- which sockets are joined, and by how many links of what rate: NCCL has a table by vendor and model
  of the CPU, and joins every two. Of Grace it knows the architecture;
- rates and latencies that differ from the class's (NVLinks to NVSwitches), `routes`, and the
  figures of staged copies, which follow from the PCIe class;
- whether a switch can sum.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable

from simreduce.errors import TopologyError
from simreduce.topology.elements import OFF, Node, link_classes, natural
from simreduce.topology.graph import Topology
from simreduce.topology.importers.nccl_xml import CPU_CLASS, MBIT_PER_S, SWITCH_CLASS
from simreduce.topology.importers.parts import (
    AMD,
    AMD_VENDOR,
    EFA_LATENCY,
    GENERATIONS,
    HOSTS,
    INTEL,
    MODELS,
    NVIDIA,
    UNKNOWN,
    GpuModel,
    Host,
    host_like,
    model_in,
)
from simreduce.topology.machine import build_machine
from simreduce.topology.machine_files import MergedFile, to_toml
from simreduce.topology.routing import is_nvlink

_GT_PER_S = {str(generation): f"{speed:g}" for speed, generation in GENERATIONS.items()}
_FAR_ENDS = {"nvswitch": ("ffff:00:00.0", SWITCH_CLASS), "cpu": ("ffff:ff:ff.0", CPU_CLASS)}
"""Bus ids and PCI classes of the nodes that NVLinks lead to besides GPUs."""


_ANY_CORE = f'affinity="{",".join(["ffffffff"] * 8)}"'
"""The cores of a CPU, which are not known. Without them NCCL asks the machine that it runs on, each
rank for its own CPU, and ranks that see others do not join what they see: half of the NICs of a
DGX H100 (2.30.7).
"""


def to_nccl_xml(topology: Topology) -> str:
    """The file of one machine; raises `TopologyError` for what NCCL's format cannot say (several
    machines, networks).
    """
    boxes = {node.machine for node in topology.nodes.values()}
    if len(boxes) > 1 or any(node.kind == "switch" for node in topology.nodes.values()):
        raise TopologyError(f"{topology.name}: an NCCL topology file is of one machine")
    if not topology.hosts:
        raise TopologyError(
            f"{topology.name}: an NCCL topology file needs a CPU, and there is none"
        )
    writer = _XmlWriter(topology)
    lines, host = ['<system version="1">'], _host_of(topology)
    # Also of Arm's CPUs, which need no more than `arch`: on x86, NCCL adds its own to the CPU of
    # each rank's GPU, and CPUs that differ are not joined (2.27, 2.30).
    maker = f'arch="{host.arch}" vendor="{host.vendor}" familyid="6" modelid="{host.models[0]}"'
    for number, cpu in enumerate(topology.hosts):
        head = f'  <cpu numaid="{number}" {_ANY_CORE} {maker}>'
        lines += [head, *writer.below(cpu, depth=2), "  </cpu>"]
    lost = [
        name
        for name, node in topology.nodes.items()
        if name not in writer.bus and node.kind not in ("cpu", "nvswitch")
    ]
    if lost:
        raise TopologyError(
            f"{topology.name}: {lost[0]!r} hangs on no CPU over PCIe, as NCCL wants it"
        )
    return "\n".join([*lines, "</system>"]) + "\n"


_FILE = re.compile(r"<!-- Machine file of simreduce.*?\n(.*?)-->\n", re.DOTALL)
_HEAD = (
    "<!-- Machine file of simreduce: NCCL overlooks it, and topo import reads it while the rest is "
    "as exported."
)


def with_machine_file(topology: Topology) -> str:
    """`to_nccl_xml` with the machine file in a comment, which has what NCCL has no place for.
    NCCL skips comments between elements (`xmlSkipComment` of NVIDIA/nccl src/graph/xml.cc): the
    library 2.27.7 answered the same with it and without.
    """
    first, rest = to_nccl_xml(topology).split("\n", 1)
    return f"{first}\n{_HEAD}\n{to_toml(topology).replace('--', _DASHES)}-->\n{rest}"


_DASHES = "-\\u002d"
"""Two dashes, which no comment may have in a row."""


def machine_file_in(text: str, name: str) -> Topology | None:
    """The machine of the comment that `with_machine_file` writes; None without one, or where the
    rest of the text is not what it stands for.
    """
    if not (found := _FILE.search(text)):
        return None
    try:
        document = MergedFile(name, tomllib.loads(found[1].replace(_DASHES, "--")), {})
        machine = build_machine(document, name, name)
        return machine if to_nccl_xml(machine).split() == _FILE.sub("", text).split() else None
    except (tomllib.TOMLDecodeError, TopologyError):
        return None


class _XmlWriter:
    """Gives every device a bus id, in the order of GPUs first, so that they are numbered as they
    are.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        kinds = ("gpu", "nic", "pcie_switch")
        order = sorted(
            (n for n in topology.nodes.values() if n.kind in kinds),
            key=lambda n: (kinds.index(n.kind), natural(n.name)),
        )
        self._ids = {
            node.name: f"{(number >> 8) + 1:04x}:{number & 255:02x}:00.0"
            for number, node in enumerate(order)
        }
        self._net = {name: i for i, name in enumerate(n.name for n in order if n.kind == "nic")}
        self.bus: set[str] = set()

    def below(self, name: str, depth: int) -> list[str]:
        """Returns the elements below a node, over PCIe or C2C, that are not written yet."""
        lines: list[str] = []
        for link in self._topology.wires_from[name]:
            node = self._topology.nodes[link.target]
            pcie = link.link_class.startswith(("pcie", "c2c"))
            if not pcie or node.name in self.bus or node.name not in self._ids:
                continue
            self.bus.add(node.name)
            code = {"gpu": "0x030200", "nic": "0x020700"}.get(node.kind, "0x060400")
            inner = list(self._inside(node.name, link.link_class))
            inner += (
                ["  " + line for line in self.below(node.name, depth=0)]
                if node.kind == "pcie_switch"
                else []
            )
            speed, width = _pcie(link.link_class)
            head = (
                f'<pci busid="{self._ids[node.name]}" class="{code}"{_device(node)} '
                f'link_speed="{speed} GT/s" link_width="{width}"'
            )
            lines += [f"{head}>", *inner, "</pci>"] if inner else [f"{head}/>"]
        return ["  " * depth + line for line in lines]

    def _inside(self, name: str, link_class: str) -> Iterable[str]:
        from xml.sax.saxutils import quoteattr  # noqa: PLC0415 - loads urllib and http

        node = self._topology.nodes[name]
        if node.kind == "nic":
            rate = link_classes()[node.network].bandwidth if node.network else 0
            speed = f' speed="{round(rate / MBIT_PER_S)}"' if rate else ""
            known = EFA_LATENCY.get(node.network)
            latency = f' latency="{known:g}"' if known else ""
            yield from (
                "  <nic>",
                f'    <net name={quoteattr(name)} dev="{self._net[name]}"{speed}{latency}/>',
                "  </nic>",
            )
        if node.kind != "gpu":
            return
        dev = self._topology.devices.index(name)
        model = model_in(node.model) or self._by_nvlinks(name)
        gdr = ' gdr="0"' if node.gpudirect == OFF else ""
        head = f'  <gpu dev="{dev}"' + (f' sm="{model.sm}"' if model.sm else "")
        yield head + (f' gcn="{model.arch}"' if model.arch else "") + gdr + ">"
        for link in self._topology.wires_from[name]:
            other = self._topology.nodes[link.target]
            if is_nvlink(link):
                gpu = self._ids.get(other.name, ""), "0x030200"
                target, code = _FAR_ENDS.get(other.kind, gpu)
                tag = "xgmi" if model.arch else "nvlink"
                yield f'    <{tag} target="{target}" count="{link.lanes}" tclass="{code}"/>'
        if link_class == "c2c":
            yield '    <c2c bw="450000" count="1"/>'
        yield "  </gpu>"

    def _by_nvlinks(self, name: str) -> GpuModel:
        """The first model with NVLinks of the class that a GPU has."""
        classes = {link.link_class for link in self._topology.wires_from[name]}
        return next((model for model in MODELS.values() if model.nvlink in classes), UNKNOWN)


def _device(node: Node) -> str:
    """What tells the model of a GPU, where a file has one."""
    model = model_in(node.model) if node.kind == "gpu" else None
    if model is None or not model.devices:
        return ""
    vendor = AMD_VENDOR if model.arch else NVIDIA
    return f' vendor="{vendor}" device="{model.devices[0]:#06x}"'


def _host_of(topology: Topology) -> Host:
    """The CPU that has such links between its sockets, Grace where GPUs hang on C2C; without any
    link, the first of its model's maker, Intel's if that is not stated.
    """
    lanes = {link.link_class: link.lanes for link in topology.links}
    rates = {link.link_class: link.nominal / link.lanes for link in topology.links}
    model = topology.nodes[topology.hosts[0]].model.lower()
    if "c2c" in rates or "grace" in model:
        return host_like("arm64", "", "")
    fit = [host for host in HOSTS if host.link_class in rates]
    usual = host_like("x86_64", AMD if "epyc" in model else INTEL, "")
    below = [host for host in fit if host.rate <= rates[host.link_class]]
    return max(
        below, key=lambda host: (host.rate, host.lanes == lanes[host.link_class]), default=usual
    )


def _pcie(link_class: str) -> tuple[str, str]:
    """The GT/s and lanes of a class such as pcie4_x16.

    For C2C, they are the figures of a PCIe port beside it, as NCCL shows it.
    """
    if not link_class.startswith("pcie"):
        return "32", "16"
    generation, _, width = link_class.removeprefix("pcie").partition("_x")
    return _GT_PER_S.get(generation, "8"), width or "16"
