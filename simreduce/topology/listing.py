"""What there is to a machine besides its links, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from simreduce import units
from simreduce.topology.equal_cost import FIRST, HASHED
from simreduce.topology.peer import DEFAULT_REACH, OFF

if TYPE_CHECKING:
    from simreduce.topology.graph import Topology


def figure_lines(machine: Topology) -> list[str]:
    """What copies through the host take, a line for every kind of node, and what is known of pairs."""
    return list(dict.fromkeys(_figures(machine)))


def rule_lines(machine: Topology) -> list[str]:
    """How far GPUs reach without a host, and which of equal paths are taken: what is not the default."""
    return list(dict.fromkeys(_rules(machine)))


def _rules(machine: Topology) -> Iterator[str]:
    for gpu in (machine.nodes[name] for name in machine.devices):
        for what, reach in (("peer access", gpu.peer), ("GPUDirect RDMA", gpu.gpudirect)):
            if reach != DEFAULT_REACH:
                yield f"{what}: {'none' if reach == OFF else f'up to {reach}'}, else by way of the host"
    rule = machine.router.equal_cost
    if rule.choice != FIRST:
        yield f"equal paths: {rule.choice}{f', seed {rule.seed}' if rule.choice == HASHED else ''}"


def _figures(machine: Topology) -> Iterator[str]:
    for link in machine.links[::2]:
        if not link.is_figure:
            continue
        rate, delay = units.format_bandwidth(link.bandwidth), units.format_duration(link.latency)
        if link.source == link.target:
            where = machine.nodes[link.source].kind.replace("_", " ")
            yield f"copies through the host, at a {where}: {link.link_class}, {rate}, {delay}"
        else:
            yield f"copies between {link.source} and {link.target}: {rate}, {delay}"
