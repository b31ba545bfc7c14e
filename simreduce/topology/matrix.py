"""How near two devices are, in the words and the table of `nvidia-smi topo -m`.

Descriptions of a machine besides its links: tolls, reach and equal paths.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from simreduce import units
from simreduce.topology.elements import DEFAULT_NIC_REACH, DEFAULT_REACH, OFF, natural
from simreduce.topology.graph import route
from simreduce.topology.routing.rules import EqualMachines
from simreduce.topology.routing.staging import XGMI, is_nvlink, path_kind

if TYPE_CHECKING:
    from simreduce.topology.graph import Topology

NO_PATH = "-"
MOST_ROWS = 256
"""Upper limit of rows shown. Nobody reads a larger matrix, and it takes long."""
_FEW = 16

_LEGEND = {
    "X": "Self",
    "NET": "Connection that leaves the machine, or crosses a network link",
    "SYS": "Connection traversing PCIe as well as the interconnect between sockets "
    "(e.g. QPI or UPI)",
    "PHB": "Connection traversing PCIe as well as a PCIe host bridge (typically the CPU)",
    "PXB": "Connection traversing several PCIe switches without a PCIe host bridge",
    "PIX": "Connection traversing at most a single PCIe switch",
    "NV#": "Connection traversing a bonded set of # NVLinks",
    "XGMI#": "Connection traversing a bonded set of # xGMI links",
    NO_PATH: "No connection: GPUs do not forward traffic for others",
}


def path_class(topology: Topology, a: str, b: str) -> str:
    """How traffic from `a` to `b` goes: X, NV#, XGMI#, PIX, PXB, PHB, SYS, NET, or "-" when it
    cannot.

    Raises `TopologyError` for a name that the topology does not have.
    """
    for name in (a, b):
        if name not in topology.nodes:
            route(topology, name, name)
    if a == b:
        return "X"
    path = topology.router.find_path(a, b)
    if not path:
        return NO_PATH
    used = [topology.router.link(*hop) for hop in itertools.pairwise(path)]
    kind = path_kind([topology.nodes[name] for name in path], used)
    if kind != "NV":
        return kind
    word = "XGMI" if used[0].link_class.startswith(XGMI) else "NV"
    return f"{word}{_nvlink_lanes(topology, a, b, direct=len(path) == 2)}"


def _nvlink_lanes(topology: Topology, a: str, b: str, *, direct: bool) -> int:
    """Lanes of the `direct` NVLinks between two devices, or the fewer of theirs to NVSwitches."""
    lanes = {a: 0, b: 0}
    for end in (a, b):
        for _, target, key in topology.graph.out_edges(end, keys=True):
            wanted = target in (a, b) if direct else topology.nodes[target].kind == "nvswitch"
            if wanted and is_nvlink(topology.links[key]):
                lanes[end] += topology.links[key].lanes
    return min(lanes.values())


def matrix_text(topology: Topology) -> str:
    """The table of `nvidia-smi topo -m` over GPUs and NICs, tab-separated, with the legend of what
    occurs.

    Above `MOST_ROWS` it has the rows of the first of equal machines, or else the first few rows,
    under a line that says so.
    """
    nics = [node.name for node in topology.nodes.values() if node.kind == "nic"]
    nics.sort(key=lambda name: (natural(topology.nodes[name].machine), natural(name)))
    names = [*topology.devices, *nics]
    if len(names) <= MOST_ROWS:
        return _table(topology, names)
    few, what = _excerpt(topology, names)
    note = f"{what}; the whole matrix has {len(names)} rows, and at most {MOST_ROWS} are shown."
    return f"{note}\n\n{_table(topology, few)}"


def _excerpt(topology: Topology, names: list[str]) -> tuple[list[str], str]:
    """Some of the names, and the words for which."""
    rule = topology.router.rule
    if isinstance(rule, EqualMachines):
        own = [
            name
            for name in names
            if topology.nodes[name].machine == topology.nodes[names[0]].machine
        ]
        if len(own) <= MOST_ROWS:
            return own, f"The first of {rule.count} equal machines"
    return names[:_FEW], f"The first {_FEW} rows and columns"


def _table(topology: Topology, names: list[str]) -> str:
    heads = [name.upper() if name in topology.devices else name for name in names]
    rows = [[path_class(topology, a, b) for b in names] for a in names]
    seen = {re.sub(r"(?<=NV|MI)[0-9]+$", "#", cell) for row in rows for cell in row}
    lines = ["\t".join(["", *heads])]
    lines += ["\t".join([head, *row]) for head, row in zip(heads, rows, strict=True)]
    width = max(4, *map(len, seen))
    legend = [f"  {word:<{width}} = {text}" for word, text in _LEGEND.items() if word in seen]
    return "\n".join([*lines, "", "Legend:", "", *legend]) + "\n"


_MOST_SEARCHED = 64
"""Most GPUs whose NICs are searched."""


def nic_classes(machine: Topology) -> dict[str, int]:
    """How many NICs a machine has for each class of network, "" where none is stated."""
    return dict(Counter(n.network for n in machine.nodes.values() if n.kind == "nic"))


def parts_line(machine: Topology) -> str:
    """`8 GPUs, 4 ib_edr`: how many GPUs, and how many NICs of which class of network."""
    nics = [f"{count} {name or 'NIC'}" for name, count in nic_classes(machine).items()]
    return ", ".join([units.plural(len(machine.devices), "GPU"), *(nics or ["no NIC"])])


def figure_lines(machine: Topology) -> list[str]:
    """The tolls of staged copies, a line for each kind of node, and of single pairs."""
    return list(dict.fromkeys(_figures(machine)))


def rule_lines(machine: Topology) -> list[str]:
    """How far GPUs reach without a host, and which of equal paths are taken: what is not the
    default.
    """
    return list(dict.fromkeys(_rules(machine)))


def _rules(machine: Topology) -> Iterator[str]:
    gpus = [machine.nodes[name] for name in machine.devices]
    for gpu in gpus:
        if gpu.peer != DEFAULT_REACH:
            yield f"peer access: {_up_to(gpu.peer)}, else by way of the host"
    for reach in dict.fromkeys(gpu.gpudirect for gpu in gpus):
        mine = [
            gpu.name for gpu in gpus if gpu.gpudirect == reach and gpu.machine == gpus[0].machine
        ]
        far = [name for name in mine[:_MOST_SEARCHED] if machine.router.nics_beyond(name)]
        if far or reach != DEFAULT_NIC_REACH:
            which = (
                ", ".join(far) if len(far) < 3 or len(far) < len(mine) else f"{far[0]} to {far[-1]}"
            )
            detour = f"; {which}: no NIC so near, so to a network by way of the host" if far else ""
            yield f"GPUDirect RDMA: {_up_to(reach)}{detour or ', else by way of the host'}"
    if machine.router.choice:
        yield f"equal paths: {machine.router.choice}"


def _up_to(reach: str) -> str:
    words = {OFF: "none", DEFAULT_NIC_REACH: "up to PXB or over C2C, as in NCCL"}
    return words.get(reach, f"up to {reach}")


def _figures(machine: Topology) -> Iterator[str]:
    for link in machine.links[::2]:
        if not link.is_toll:
            continue
        rate, delay = units.format_bandwidth(link.bandwidth), units.format_duration(link.latency)
        if link.source == link.target:
            where = machine.nodes[link.source].kind.replace("_", " ")
            yield f"copies through the host, at a {where}: {link.link_class}, {rate}, {delay}"
        else:
            yield f"copies between {link.source} and {link.target}: {rate}, {delay}"
