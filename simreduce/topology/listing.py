"""What a machine's figures besides its links are, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from simreduce import units

if TYPE_CHECKING:
    from simreduce.topology.graph import Topology


def figure_lines(machine: Topology) -> list[str]:
    """What copies through the host take, a line for every kind of node, and what is known of pairs."""
    return list(dict.fromkeys(_lines(machine)))


def _lines(machine: Topology) -> Iterator[str]:
    for link in machine.links[::2]:
        if not link.is_figure:
            continue
        rate, delay = units.format_bandwidth(link.bandwidth), units.format_duration(link.latency)
        if link.source == link.target:
            where = machine.nodes[link.source].kind.replace("_", " ")
            yield f"copies through the host, at a {where}: {link.link_class}, {rate}, {delay}"
        else:
            yield f"copies between {link.source} and {link.target}: {rate}, {delay}"
