"""NCCL's XML: its topology (`NCCL_TOPO_FILE`, `NCCL_TOPO_DUMP_FILE`) and its graphs.

    <system> <cpu numaid vendor modelid> <pci busid class link_speed link_width> ...
        <gpu> <nvlink target count/> </gpu> <nic> <net name speed/> </nic>

RCCL's files have <xgmi> in place of <nvlink>, and the target of AMD's compilers as `gcn` of a GPU.

GPUs are numbered by `dev` where all have one, else by bus id, as CUDA orders them. All NVSwitch
chips become one node, as in NCCL. Speeds come from the file, even where they are below the
wire's, as on virtual bridges. The `speed` of a NIC, in Mbit/s, gives the class of its network.

<graphs> <graph id pattern nchannels speedintra speedinter typeintra typeinter> <channel> <net dev/>
<gpu dev/> ...
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from simreduce import units
from simreduce.computing import group_by
from simreduce.errors import TopologyError, quote
from simreduce.files.formats import is_name
from simreduce.files.formats.syntax import Element, Faults, read_xml
from simreduce.topology.elements import (
    OFF,
    STAGED,
    LinkClass,
    link_classes,
    natural,
    networks,
)
from simreduce.topology.graph import Topology, build
from simreduce.topology.importers.parts import (
    EFA_LATENCY,
    GENERATIONS,
    MODELS,
    NVIDIA,
    UNKNOWN,
    GpuModel,
    MachineBuilder,
    host_like,
    model_of_arch,
    model_of_device,
    model_of_sm,
    without_nvlinks,
)
from simreduce.topology.routing import links_name

_SPEED = re.compile(r"\s*([0-9]{1,2}(\.[0-9])?)\s*GT/s.*")
_GPU_CLASSES = ("0x03", "0x12")
SWITCH_CLASS, CPU_CLASS = "0x068000", "0x068001"
_NAMES = ("numaid", "busid", "dev", "name", "target")
"""Attributes by which NCCL tells elements of a tag apart."""
_MOST_NVLINKS = 1024
MBIT_PER_S = 125_000
"""Bytes/s: the unit of the speed of a <net>."""
_AMAZON = "0x1d0f"
_EFA_100 = ((_AMAZON, "0xefa0"), (_AMAZON, "0xefa1"))
"""PCI ids of EFA of 100 Gbit/s, which the files of AWS have in place of a <net>: aws/aws-ofi-nccl
topology/, and drivers/infiniband/hw/efa/efa_main.c of Linux.
"""
_SAME_RATE = 0.15
"""A NIC whose speed is off by more than this part has no port for the class."""


@dataclass(slots=True)
class _Device:
    """A GPU or a NIC; `above` is the switch or CPU that it is linked to."""

    element: Element
    above: str
    name: str = ""


@dataclass(slots=True)
class _Reading:
    """The parts of a machine found so far."""

    faults: Faults
    parts: MachineBuilder
    nics: tuple[str, ...]
    gpus: list[_Device] = field(default_factory=list)
    ports: list[_Device] = field(default_factory=list)
    bus_ids: dict[str, int] = field(default_factory=dict)
    classless: int = 0


def read_nccl_topology(
    text: str,
    name: str,
    model: GpuModel | None = None,
    nics: Sequence[str] = (),
    classes: Mapping[str, LinkClass] | None = None,
) -> tuple[Topology, list[str]]:
    """Return the machine of a file, and notes on what was assumed.

    `model` is the model of the GPUs, the first of their compute capability unless given. `nics` are
    bus ids of devices that are NICs although the file does not say what they are; other devices
    without a class are taken to be GPUs. `classes` are the classes of links, the shipped ones
    unless given. Raises `TopologyError` with every fault.
    """
    root = read_xml(text, name, TopologyError)
    reading = _Reading(Faults(name), MachineBuilder(classes or link_classes()), tuple(nics))
    if root.tag != "system":
        raise TopologyError(
            f"{name}: {root.place}: a topology begins with <system>, not <{root.tag}>"
        )
    cpus = _first_host(root, reading.parts)
    reading.faults.check(cpus, root.place, "no <cpu>: there is nothing to hang devices on")
    for number, cpu in enumerate(cpus):
        numaid = cpu.get("numaid", str(number))
        node = f"cpu{numaid}"
        if not reading.faults.check(
            is_name(node), cpu.place, f"numaid {quote(numaid)} is not a number"
        ):
            continue
        if not reading.faults.check(
            node not in reading.parts.nodes, cpu.place, f"there are two CPUs with numaid {numaid}"
        ):
            continue
        reading.parts.add(node, "cpu")
        for child in cpu.all("pci"):
            _pci(reading, child, node)
        # How a NIC hangs there is not said: a PCIe port is assumed, as for every device of unknown
        # speed.
        reading.ports += [_Device(child, node) for child in cpu.all("nic")]
    for nic in sorted({*nics} - {*reading.bus_ids}):
        reading.faults.add(root.place, f"no device has the bus id {quote(nic)} of a NIC")
    reading.faults.check(
        reading.gpus or reading.faults.problems,
        root.place,
        "no GPU: no device of class 0x03, and none without a class",
    )
    reading.faults.raise_any(TopologyError)
    _sockets(reading.parts, cpus)
    _devices(reading, model)
    reading.faults.raise_any(TopologyError)
    parts = reading.parts
    if reading.classless:
        parts.notes.append(
            f"{reading.classless} devices have no class and are taken to be GPUs; name those "
            "that are NICs by bus id"
        )
    return build(
        name,
        f"{units.plural(len(reading.gpus), 'GPU')}, from an NCCL topology file",
        name,
        parts.nodes.values(),
        parts.cables,
    ), parts.notes


def _first_host(root: Element, parts: MachineBuilder) -> list[Element]:
    """The CPUs of a file, or of its first host.

    NCCL writes the hosts that NVLinks join (MNNVL) into one file, and a CPU again for each rank
    that says more of it than another.
    """
    cpus = root.all("cpu")
    hosts = dict.fromkeys(cpu.get("host_hash") for cpu in cpus)
    if len(hosts) > 1:
        parts.notes.append(
            f"the file has {len(hosts)} hosts, and this is the first of them, "
            f"host_hash {quote(next(iter(hosts)))}"
        )
    first = [cpu for cpu in cpus if cpu.get("host_hash") == next(iter(hosts))]
    return _joined(first) if first and first[0].get("host_hash") else first


def _joined(elements: Sequence[Element]) -> list[Element]:
    """Elements without repetition: what several say of one thing is one element."""
    alike = group_by(elements, lambda each: (each.tag, *map(each.get, _NAMES))).values()
    for first, *others in alike:
        for other in others:
            first.attributes.update(other.attributes)
            first.children.extend(other.children)
        if others:
            first.children[:] = _joined(first.children)
    return [first for first, *_ in alike]


def _pci(reading: _Reading, element: Element, above: str) -> None:
    """Read a bridge and everything below it, or a device."""
    bus = element.get("busid").lower()
    if not bus:
        reading.faults.add(element.place, "a <pci> without busid")
    elif bus in reading.bus_ids:
        reading.faults.add(
            element.place, f"bus id {quote(bus)} is that of line {reading.bus_ids[bus]} too"
        )
    reading.bus_ids.setdefault(bus, element.line)
    kind = element.get("class").lower()
    if element.all("pci") or kind.startswith("0x0604"):
        switch = reading.parts.add(reading.parts.free("plx"), "pcie_switch")
        _wire(reading, element, switch, above)
        for child in element.all("pci"):
            _pci(reading, child, switch)
    elif bus in reading.nics or kind.startswith("0x02") or element.all("nic"):
        reading.ports.append(_Device(element, above))
    elif kind.startswith("0x03") or element.all("gpu") or not kind:
        reading.classless += not (kind or element.all("gpu"))
        reading.gpus.append(_Device(element, above))
    elif not kind.startswith("0x"):
        reading.faults.add(
            element.place, f"class {quote(kind)} is not a PCI class such as 0x030200"
        )


def _wire(reading: _Reading, element: Element, node: str, above: str) -> None:
    """The link of a device to what it hangs on: Gen3 x16 where its speed is unknown, x16 where its
    width is, as in NCCL.
    """
    speed, width = _speed(element), element.get("link_width", "16") or "16"
    if speed is None:
        reading.faults.add(
            element.place,
            f"link_speed {quote(element.get('link_speed'))}: write for example '16 GT/s'",
        )
        return
    if not reading.faults.check(
        width in ("0", "1", "2", "4", "8", "16", "32"),
        element.place,
        f"link_width {quote(width)} is not 1, 2, 4, 8, 16 or 32",
    ):
        return
    reading.parts.pcie(node, above, speed, int(width) or 16)


def _speed(element: Element) -> float | None:
    text = element.get("link_speed")
    match = _SPEED.fullmatch(text)
    if match and float(match[1]) in GENERATIONS:
        return float(match[1])
    return 8.0 if not text or text.startswith("Unknown") else None


def _sockets(parts: MachineBuilder, cpus: Sequence[Element]) -> None:
    """Link every CPU to every other, as in NCCL."""
    host = host_like(cpus[0].get("arch"), cpus[0].get("vendor"), cpus[0].get("modelid"))
    parts.link_cpus(host.link_class, host.lanes, host.rate)
    parts.take_cpus_for(host)
    if len(cpus) > 1:
        parts.notes.append(
            f"the CPUs are taken to be joined by {host.lanes} {host.link_class} each"
        )


def _devices(reading: _Reading, model: GpuModel | None) -> None:
    """Add GPUs and NICs with their links, once all are known."""
    parts = reading.parts
    devs = [_dev(device.element) for device in reading.gpus]
    if not all(devs) or len(set(devs)) < len(devs):
        reading.gpus.sort(key=lambda device: device.element.get("busid").lower())
        devs = [str(number) for number in range(len(devs))]
    for device, dev in zip(reading.gpus, devs, strict=True):
        device.name = f"gpu{dev}"
    reading.gpus.sort(key=lambda device: natural(device.name))
    for device in reading.gpus:
        gpu = next(iter(device.element.all("gpu")), None)
        kind = model or _model(reading, device.element, gpu)
        if not model and (kind.bridged or kind.arch):
            parts.note(f"the GPUs are taken for {kind.name}; --gpu names other models")
        if gpu and gpu.get("gdr") == "0":
            kind = replace(kind, gpudirect=OFF)
        parts.add(device.name, "gpu", kind)
        # What goes over C2C does not go over the PCIe port beside it.
        if not (gpu and gpu.all("c2c")):
            _wire(reading, device.element, device.name, device.above)
    for device in reading.ports:
        cards = [device.element] if device.element.tag == "nic" else device.element.all("nic")
        nets = [net for nic in cards for net in nic.all("net")]
        names = (
            name for net in nets if is_name(name := net.get("name")) and name not in parts.nodes
        )
        stem = next(names, "") or parts.free("nic")
        if len(nets) > 1:
            parts.note("the ports of a NIC count as one, as NCCL joins them from 2.24 on")
        device.name = parts.add(stem, "nic", network=_network(reading, device.element, nets))
        _wire(reading, device.element, device.name, device.above)
    _nvlinks(reading)
    _stage(parts)


def _links(gpu: Element) -> list[Element]:
    return [*gpu.all("nvlink"), *gpu.all("xgmi")]


def _model(reading: _Reading, pci: Element, gpu: Element | None) -> GpuModel:
    """The model of the device, or the first of the target or compute capability that a file states.

    An unknown device has the links of the latter, without any its compute capability alone, and
    nothing is known of its memory.
    """
    vendor, device = pci.get("vendor"), pci.get("device")
    if found := model_of_device(vendor, device):
        return found
    if gpu and gpu.get("gcn"):
        try:
            return model_of_arch(gpu.get("gcn"))
        except TopologyError as error:
            reading.faults.add(gpu.place, str(error))
            return UNKNOWN
    if not gpu:
        return UNKNOWN
    linked = bool(_links(gpu))
    like = model_of_sm(gpu.get("sm"), linked=linked, on_c2c=bool(gpu.all("c2c")))
    if vendor.lower() != NVIDIA or not device:
        return like
    words = f"its NVLinks are taken for those of {like.name}; " if linked and like.name else ""
    reading.parts.note(f"GPU {device} is no model known: {words}--gpu names a model")
    own = like if linked else replace(UNKNOWN, name=f"sm{like.sm}" if like.sm else "")
    return replace(own, memory=math.inf, size=0)


def _network(reading: _Reading, nic: Element, nets: Sequence[Element]) -> str:
    """The class with the rate nearest to the rate of all ports of a NIC, of those whose plugin
    states this latency, or EFA's where it is such an adapter; "" if no rate is stated.

    Where several classes have that rate, it is InfiniBand.
    """
    mbit_per_s = 0
    adapter = nic.get("vendor").lower(), nic.get("device").lower()
    stated = {_number(net.get("latency")) or 0.0 for net in nets}
    alike = [name for name in networks() if {EFA_LATENCY.get(name, 0.0)} == stated] or networks()
    if adapter[0] == _AMAZON and adapter[1].startswith("0xefa"):
        alike = tuple(EFA_LATENCY)
    for net in nets:
        text = net.get("speed", "0")
        if not reading.faults.check(
            re.fullmatch(r"[0-9]{1,9}", text),
            net.place,
            f"speed {quote(text)} is not a number of Mbit/s, such as 400000",
        ):
            return ""
        mbit_per_s += int(text)
    if not mbit_per_s:
        return "efa_100" if adapter in _EFA_100 else ""
    rate = mbit_per_s * MBIT_PER_S
    nearest = min(alike, key=lambda name: abs(math.log(rate / link_classes()[name].bandwidth)))
    if abs(rate / link_classes()[nearest].bandwidth - 1) > _SAME_RATE:
        reading.parts.note(
            f"no class of network has the {mbit_per_s} Mbit/s of a NIC; {nearest} is the nearest"
        )
    return nearest


def _dev(element: Element) -> str:
    gpu = next(iter(element.all("gpu")), None)
    text = gpu.get("dev") if gpu else ""
    return str(int(text)) if re.fullmatch(r"[0-9]{1,4}", text) else ""


def _nvlinks(reading: _Reading) -> None:
    """Links from GPU to GPU, which both ends must state alike, and to NVSwitches and CPUs."""
    parts = reading.parts
    names = {device.element.get("busid").lower(): device.name for device in reading.gpus}
    direct: dict[tuple[str, str], tuple[int, Element]] = {}
    ports: dict[str, int] = {}
    chips: set[str] = set()
    for device in reading.gpus:
        model = MODELS.get(reading.parts.nodes[device.name].model, UNKNOWN)
        for gpu in device.element.all("gpu"):
            for link in _links(gpu):
                word = "xGMI links" if link.tag == "xgmi" else "NVLinks"
                count, target = link.get("count", "1"), link.get("target").lower()
                if not re.fullmatch(r"[0-9]{1,4}", count) or not 1 <= int(count) <= _MOST_NVLINKS:
                    reading.faults.add(
                        link.place, f"count {quote(count)} is not a number of {word}"
                    )
                elif model.nvlink and word != links_name(model.nvlink):
                    whose = f"a {model.name} has" if model.name else "no model is known that has"
                    own = links_name(model.nvlink) if model.name else "them"
                    reading.faults.add(link.place, f"{word}, but {whose} {own}")
                elif not model.nvlink:
                    reading.faults.add(link.place, without_nvlinks(model, int(count)))
                elif target in names and names[target] != device.name:
                    direct[device.name, names[target]] = int(count), link
                elif link.get("tclass").lower() == SWITCH_CLASS:
                    ports[device.name] = ports.get(device.name, 0) + int(count)
                    chips.add(target)
                elif link.get("tclass").lower() == CPU_CLASS:
                    host, link_class = _host(reading, device), _nvlink_class(parts, device.name)
                    parts.link(device.name, host, link_class, int(count))
                elif target in names or link.get("tclass").lower().startswith(_GPU_CLASSES):
                    what = (
                        "itself"
                        if target in names
                        else f"{quote(target)}, which is not in the file"
                    )
                    parts.notes.append(
                        f"{link.place}: {count} {word} of {device.name} are left out, to {what}"
                    )
                else:
                    reading.faults.add(
                        link.place,
                        f"target {quote(target)} is no other GPU and no NVSwitch of this file",
                    )
            for link in gpu.all("c2c"):
                if link.get("bw").isdecimal() and link.get("count", "1").isdecimal():
                    parts.link(device.name, _host(reading, device), "c2c")
                else:
                    reading.faults.add(link.place, "c2c must give bw and count as numbers")
    for (a, b), (lanes, link) in direct.items():
        back = direct.get((b, a), (0, link))[0]
        if back != lanes:
            word = links_name(_nvlink_class(parts, a))
            reading.faults.add(
                link.place, f"{a} states {lanes} {word} to {b}, and {b} states {back} to {a}"
            )
        elif natural(a) < natural(b):
            parts.link(a, b, _nvlink_class(parts, a), lanes)
    if ports:
        switch = parts.add_nvswitch(next(iter(ports)), f"{len(chips)} NVSwitch chips are one node")
        for name, lanes in ports.items():
            parts.link(name, switch, _nvlink_class(parts, name), lanes)


def _host(reading: _Reading, device: _Device) -> str:
    """The CPU above a device."""
    host = device.above
    while reading.parts.nodes[host].kind != "cpu":
        host = next(cable.target for cable in reading.parts.cables if cable.source == host)
    return host


def _nvlink_class(parts: MachineBuilder, gpu: str) -> str:
    return MODELS.get(parts.nodes[gpu].model, UNKNOWN).nvlink or "nvlink2"


def _stage(parts: MachineBuilder) -> None:
    """Staged copies take, at each GPU and switch, figures of the oldest PCIe generation on the way
    up to the host that has some.
    """
    up = {
        cable.source: cable
        for cable in reversed(parts.cables)
        if cable.link_class.startswith("pcie")
    }
    for name, node in list(parts.nodes.items()):
        if node.kind not in ("gpu", "pcie_switch") or name not in up:
            continue
        way, classes = name, []
        while way in up:
            generation = up[way].link_class.partition("_")[0]
            classes += [generation] if f"{STAGED}_{generation}" in parts.classes else []
            way = up[way].target
        if classes:
            parts.staging(name, min(classes))


PATTERNS: Mapping[str, str] = {
    "1": "balanced_tree",
    "2": "split_tree",
    "3": "tree",
    "4": "ring",
    "5": "nvls",
    "6": "collnet_direct",
}
"""Names of NCCL's patterns. A tree of one machine is a chain of its GPUs."""


@dataclass(frozen=True, slots=True)
class NcclChannel:
    """GPUs in order by their `dev`, and the NICs before and after them, None on one machine. A
    channel of NVLS has one GPU, its head.
    """

    gpus: tuple[int, ...]
    net_in: str | None
    net_out: str | None


@dataclass(frozen=True, slots=True)
class NcclGraph:
    """One search result; speeds per channel in bytes/s, inside the machine and to the network."""

    id: int
    pattern: str
    speed_intra: float
    speed_inter: float
    type_intra: str
    type_inter: str
    channels: tuple[NcclChannel, ...]


def read_nccl_graphs(text: str, name: str) -> tuple[NcclGraph, ...]:
    """The graphs of a file; raises `TopologyError` with every fault.

    GPUs of several hosts that NVLinks join (MNNVL) are numbered through all hosts.
    """
    root = read_xml(text, name, TopologyError)
    if root.tag != "graphs":
        raise TopologyError(f"{name}: {root.place}: graphs begin with <graphs>, not <{root.tag}>")
    faults = Faults(name)
    found = [_graph(element, faults) for element in root.all("graph")]
    faults.check(found, root.place, "no <graph>")
    faults.raise_any(TopologyError)
    channels = [channel for graph in found for channel in graph.channels]
    devs = sorted({gpu for channel in channels for gpu in channel.gpus})
    if not devs or devs[-1] < _ONE_HOST:
        return tuple(found)
    return tuple(
        replace(
            graph,
            channels=tuple(
                replace(channel, gpus=tuple(map(devs.index, channel.gpus)))
                for channel in graph.channels
            ),
        )
        for graph in found
    )


def _graph(element: Element, faults: Faults) -> NcclGraph:
    pattern = PATTERNS.get(element.get("pattern"), "")
    channels = tuple(_channel(child, pattern, faults) for child in element.all("channel"))
    faults.check(
        pattern,
        element.place,
        f"pattern {quote(element.get('pattern'))} is none of {', '.join(PATTERNS)}",
    )
    stated = element.get("nchannels")
    # The file lists a copied channel once and counts it twice.
    faults.check(
        not stated or _number(stated) in (len(channels), 2 * len(channels)),
        element.place,
        f"nchannels is {quote(stated)}, but there are {len(channels)}",
    )
    faults.check(
        pattern != "ring" or len({frozenset(channel.gpus) for channel in channels}) <= 1,
        element.place,
        "the rings are not of the same GPUs",
    )
    return NcclGraph(
        id=int(_number(element.get("id", "0")) or 0),
        pattern=pattern,
        speed_intra=_nccl_graph_speed(element, "speedintra", faults),
        speed_inter=_nccl_graph_speed(element, "speedinter", faults),
        type_intra=element.get("typeintra"),
        type_inter=element.get("typeinter"),
        channels=channels,
    )


_ONE_HOST = 1 << 56
"""A `dev` has the number of its host from this bit on."""


def _channel(element: Element, pattern: str, faults: Faults) -> NcclChannel:
    gpus: list[int] = []
    nets: dict[bool, str] = {}
    for child in element.children:
        text = child.get("dev")
        # Hexadecimal from 2.21 on.
        number = re.fullmatch(r"0x[0-9a-f]{1,16}|[0-9]{1,6}", text)
        dev = int(text, 16 if text.startswith("0x") else 10) if number else None
        if child.tag == "gpu" and dev is not None:
            gpus.append(dev)
        elif child.tag == "net" and text:
            nets[bool(gpus)] = text if dev is None else str(dev % _ONE_HOST)
        else:
            faults.add(
                child.place,
                f"<{child.tag}> with dev {quote(text)} is neither a GPU nor a net",
            )
    if pattern == "nvls":
        # 2.18 writes the first GPU in place of those that are not there.
        gpus = gpus[:1]
    faults.check(len(set(gpus)) == len(gpus), element.place, "a GPU stands twice in one channel")
    faults.check(gpus, element.place, "a channel without GPUs")
    return NcclChannel(tuple(gpus), nets.get(False), nets.get(True))


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) else None


def _nccl_graph_speed(element: Element, key: str, faults: Faults) -> float:
    value = _number(element.get(key, "0"))
    faults.check(
        value is not None,
        element.place,
        f"{key} {quote(element.get(key))} is not a number of GB/s",
    )
    return (value or 0.0) * 1e9
