"""Descriptions of a machine besides its links: tolls, reach and equal paths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from simreduce import units
from simreduce.topology.elements import DEFAULT_NIC_REACH, DEFAULT_REACH, OFF

if TYPE_CHECKING:
    from simreduce.topology.graph import Topology

_FEW = 64
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
        far = [name for name in mine[:_FEW] if machine.router.nics_beyond(name)]
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
