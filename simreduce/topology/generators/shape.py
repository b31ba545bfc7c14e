"""Nodes and cables that a generator returns, and helpers that several generators share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from simreduce.topology.elements import Cable, Node
from simreduce.topology.generators.inline import DEVICES_LIMIT, InlineSettings
from simreduce.topology.routing.rules import RoutingRule
from simreduce.units import plural

CABLES_LIMIT = 1 << 20
"""Upper limit of the cables of a network, because all of them are held in memory."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Nodes and cables in the order of their ids, a line that describes them, and how traffic goes
    if not by search.
    """

    title: str
    nodes: list[Node]
    cables: list[Cable]
    rule: RoutingRule | None = None


Join = Callable[[Node, Node], Cable]
"""The cable from a host, or a switch, to a switch."""


class NetworkParts(NamedTuple):
    """The switches of a network, its cables, and the rule for its routes."""

    switches: list[Node]
    cables: list[Cable]
    rule: RoutingRule


class Blueprint(Protocol):
    """A network of hosts that are still to be placed: GPUs or NICs."""

    @property
    def title(self) -> str:
        """Its description, after `on`."""

    @property
    def cables(self) -> int:
        """The number of cables, including the cables of hosts."""

    def wire(
        self, nodes: Sequence[Node], hosts: Sequence[int], first: int, join: Join
    ) -> NetworkParts:
        """Lay the network over the `hosts`, places in `nodes` in the order of their ports.

        A host beyond its size has a port too. Switches come after all `nodes`, the cables after
        `first` others.
        """


Read = Callable[[InlineSettings, int, int], Blueprint]
"""Makes a network of the settings, for so many machines with so many hosts each.

Hosts are NICs, or GPUs of a textbook.
"""


def textbook(settings: InlineSettings, read: Read, limit: int = DEVICES_LIMIT) -> Shape:
    """GPUs as the hosts, and the host `cpu0` with one more port; half of the latency is on each
    cable.
    """
    bandwidth, latency = settings.bandwidth(), settings.latency()
    count = settings.size(limit)
    network, places = read(settings, count, 1), seat_devices(settings, count)
    check_cables(settings, network)
    settings.check()
    nodes = ends(count)
    wired = network.wire(
        nodes, [*places, count], 0, lambda a, b: cable(a, b, bandwidth, latency / 2)
    )
    title = f"{plural(count, 'device')} on {network.title}"
    return Shape(title, [*nodes, *wired.switches], wired.cables, wired.rule)


def check_cables(settings: InlineSettings, network: Blueprint) -> None:
    """Note a fault for a network with too many cables to hold."""
    if network.cables > CABLES_LIMIT:
        settings.faults.add(
            "",
            (
                f"{network.cables} cables in the network are more than the {CABLES_LIMIT} that "
                "can be held"
            ),
        )


def ends(count: int) -> list[Node]:
    """GPUs gpu0, gpu1, ... and the host cpu0, which forwards nothing."""
    return [
        *(Node(f"gpu{i}", "gpu", transit=False) for i in range(count)),
        Node("cpu0", "cpu", transit=False),
    ]


def switches(name: str, count: int, *, reduces: bool = False) -> list[Node]:
    """Switches outside of all machines, numbered from 0."""
    return [Node(f"{name}{i}", "switch", machine="", reduces=reduces) for i in range(count)]


def cable(a: Node, b: Node, bandwidth: float, latency: float) -> Cable:
    """A cable of a textbook network: a sender is free once its message is on the wire."""
    return Cable(a.name, b.name, "cable", 1, bandwidth, bandwidth, latency, holds_lane=False)


def seat_devices(settings: InlineSettings, count: int) -> list[int]:
    """`shuffle=SEED`: the GPU that sits at each of `count` places, the GPU of that number unless
    stated.
    """
    seed = settings.whole("shuffle", 0, 0, 2**63 - 1)
    if "shuffle" not in settings.values:
        return list(range(count))
    return [int(gpu) for gpu in np.random.default_rng(seed).permutation(count)]
