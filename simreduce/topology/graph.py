"""What a machine is: devices, switches, and the links between them, as immutable values."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import networkx as nx

from simreduce.topology.equal_cost import EqualCost
from simreduce.topology.naming import natural
from simreduce.topology.peer import DEFAULT_NIC_REACH, DEFAULT_REACH, OFF, ROUTE
from simreduce.topology.routing import Router

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from simreduce.topology.ways import Copies, Ways

Kind = Literal["gpu", "cpu", "pcie_switch", "nvswitch", "nic", "switch"]
KINDS: tuple[Kind, ...] = ("gpu", "cpu", "pcie_switch", "nvswitch", "nic", "switch")


@dataclass(frozen=True, slots=True)
class Node:
    """A device or a switch.

    `memory_bandwidth` is in bytes/s, infinite when unstated. `machine` is the box the node stands
    in, "" for a switch of the fabric. `transit` says whether traffic of others may pass through; a
    GPU never lets it. `reduces` says whether a switch can sum what passes through. `peer` is the
    farthest way on which a GPU copies to others of its machine directly, one of `peer.REACHES`;
    `gpudirect` the farthest to a NIC that reads its memory, of `peer.NIC_REACHES`. `network` is the
    class of link that a NIC has a port for, "" when unstated: it matters only where the machine is
    put on a network, and the digest leaves it out.
    """

    name: str
    kind: Kind
    model: str = ""
    memory_bandwidth: float = math.inf
    machine: str = "0"
    transit: bool = True
    reduces: bool = False
    peer: str = DEFAULT_REACH
    gpudirect: str = DEFAULT_NIC_REACH
    network: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a link; the other direction is a link of its own.

    Rates are in bytes/s over all lanes: `nominal` is that of the wire, `bandwidth` what a large
    copy reaches. `latency` is in seconds. `holds_lane` says whether a transfer keeps its sender's
    queue busy for the latency. `parallel` counts the links of other classes between the same two
    nodes that come before this one. A link of a node to itself, and one of class `route`, is no
    wire but a figure that copies take (`topology.peer`).
    """

    id: int
    source: str
    target: str
    link_class: str
    lanes: int
    nominal: float
    bandwidth: float
    latency: float
    holds_lane: bool
    parallel: int = 0

    @property
    def name(self) -> str:
        """`gpu0>gpu1`, with `#1` at the end for a second link between the two, and so on.

        Of the two links of a node to itself, `gpu0>gpu0` is out of it and `gpu0<gpu0` into it.
        """
        arrow = "<" if self.source == self.target and self.id % 2 else ">"
        return f"{self.source}{arrow}{self.target}" + (f"#{self.parallel}" if self.parallel else "")

    @property
    def is_toll(self) -> bool:
        """Whether this is no wire: it limits the copies that take it, but nothing is routed over it
        by itself.
        """
        return self.source == self.target or self.link_class == ROUTE


DIRECTIONS = ("d2h", "h2d")
"""Of links between GPUs and their host: from device to host and back, as CUDA names them."""

_HEIGHT = {"gpu": 0, "pcie_switch": 1, "cpu": 2}
"""From a GPU to its host, by kind of node."""


def direction(source: Node, target: Node) -> str:
    """Of a link, which of `DIRECTIONS`: `d2h` where it leads from GPUs to their host, `h2d` where
    it leads back, "" elsewhere.
    """
    a, b = (_HEIGHT.get(node.kind, -1) for node in (source, target))
    if a == b or min(a, b) < 0:
        return ""
    return DIRECTIONS[a > b]


@dataclass(frozen=True, slots=True)
class Cable:
    """Both directions of a link, before it has a place in a topology. Rates are those of `Link`."""

    a: str
    b: str
    link_class: str
    lanes: int
    nominal: float
    bandwidth: float
    latency: float
    holds_lane: bool


@dataclass(frozen=True)
class Topology:
    """A machine or a fabric; two are equal when name, source and content are.

    Which of equal paths transfers take is `router.equal_cost`.

    `links[i].id == i`. `devices` are the GPUs, machine by machine and gpu2 before gpu10; `hosts`
    are the CPUs in the same order. `digest` names the content (nodes, links and the rule for equal
    paths), whatever the machine is called.
    """

    name: str
    title: str
    source: str
    digest: str
    nodes: Mapping[str, Node] = field(compare=False, repr=False)
    links: tuple[Link, ...] = field(compare=False, repr=False)
    devices: tuple[str, ...] = field(compare=False, repr=False)
    hosts: tuple[str, ...] = field(compare=False, repr=False)
    router: Router = field(compare=False, repr=False)

    @functools.cached_property
    def graph(self) -> nx.MultiDiGraph:
        """Nodes and links as a graph that cannot be changed; made when it is first asked for."""
        graph = nx.MultiDiGraph(name=self.name)
        graph.add_nodes_from((node.name, {"node": node}) for node in self.nodes.values())
        graph.add_edges_from(
            (link.source, link.target, link.id, {"link": link}) for link in self.links
        )
        return nx.freeze(graph)

    def scaled(self, bandwidth: float = 1.0, latency: float = 1.0) -> Topology:
        """The same machine with every bandwidth, of links and memories, and every latency times a
        factor.
        """
        if not (
            bandwidth > 0 and math.isfinite(bandwidth) and latency >= 0 and math.isfinite(latency)
        ):
            raise ValueError(f"cannot scale bandwidth by {bandwidth} and latency by {latency}")
        nodes = [
            replace(n, memory_bandwidth=n.memory_bandwidth * bandwidth) for n in self.nodes.values()
        ]
        links = [
            replace(
                link,
                nominal=link.nominal * bandwidth,
                bandwidth=link.bandwidth * bandwidth,
                latency=link.latency * latency,
            )
            for link in self.links
        ]
        source = f"{self.source}, bandwidth x {bandwidth:g}, latency x {latency:g}"
        return assemble(
            self.name, self.title, source, nodes, links, self.router.ways, self.router.equal_cost
        )

    def without_peers(self) -> Topology:
        """The same machine with peer access switched off: its GPUs copy to each other through the
        host.
        """
        nodes = [replace(n, peer=OFF) if n.kind == "gpu" else n for n in self.nodes.values()]
        source, router = f"{self.source}, no peer access", self.router
        return assemble(
            self.name, self.title, source, nodes, self.links, router.ways, router.equal_cost
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only mapping cannot be pickled, and the graph says nothing that nodes and links do
        # not.
        nodes, router = tuple(self.nodes.values()), self.router
        return assemble, (
            self.name, self.title, self.source, nodes, self.links, router.ways, router.equal_cost,
        )  # fmt: skip


def build(
    name: str, title: str, source: str, nodes: Iterable[Node], cables: Iterable[Cable],
    ways: Ways | Copies | None = None, equal_cost: EqualCost = EqualCost(),  # noqa: B008 - it cannot be changed
) -> Topology:  # fmt: skip
    """A topology of nodes with distinct names and of cables between them, in the order given.

    `ways` are the routes of a network that has a rule for them; without one they are searched for.
    `equal_cost` says which of equal ones a transfer takes.
    """
    links: list[Link] = []
    seen: dict[frozenset[str], int] = {}
    for cable in cables:
        pair = frozenset((cable.a, cable.b))
        parallel = seen.get(pair, 0)
        seen[pair] = parallel + 1
        for source_node, target_node in ((cable.a, cable.b), (cable.b, cable.a)):
            links.append(
                Link(
                    id=len(links),
                    source=source_node,
                    target=target_node,
                    link_class=cable.link_class,
                    lanes=cable.lanes,
                    nominal=cable.nominal,
                    bandwidth=cable.bandwidth,
                    latency=cable.latency,
                    holds_lane=cable.holds_lane,
                    parallel=parallel,
                )
            )
    return assemble(name, title, source, nodes, links, ways, equal_cost)


def assemble(
    name: str,
    title: str,
    source: str,
    nodes: Iterable[Node],
    links: Iterable[Link],
    ways: Ways | Copies | None = None,
    equal_cost: EqualCost = EqualCost(),  # noqa: B008 - a value that cannot be changed
) -> Topology:
    """A topology of nodes with distinct names and of directed links, numbered from 0."""
    table = {node.name: node for node in nodes}
    links = tuple(links)
    return Topology(
        name=name,
        title=title,
        source=source,
        digest=_digest(table, links, equal_cost),
        nodes=MappingProxyType(table),
        links=links,
        devices=_in_order(table, "gpu"),
        hosts=_in_order(table, "cpu"),
        router=Router(table, links, ways, equal_cost),
    )


def _in_order(nodes: Mapping[str, Node], kind: Kind) -> tuple[str, ...]:
    chosen = [node for node in nodes.values() if node.kind == kind]
    return tuple(
        n.name for n in sorted(chosen, key=lambda n: (natural(n.machine), natural(n.name)))
    )


def _digest(nodes: Mapping[str, Node], links: Iterable[Link], equal_cost: EqualCost) -> str:
    content: list[object] = [
        [
            # Stated only where they are not the default, so that older digests stand.
            [
                n.name,
                n.kind,
                n.model,
                n.memory_bandwidth,
                n.machine,
                n.transit,
                *([True] if n.reduces else []),
                *([n.peer] if n.peer != DEFAULT_REACH else []),
                *([f"gpudirect {n.gpudirect}"] if n.gpudirect != DEFAULT_NIC_REACH else []),
            ]
            for n in nodes.values()
        ],
        [
            [
                k.source,
                k.target,
                k.link_class,
                k.lanes,
                k.nominal,
                k.bandwidth,
                k.latency,
                k.holds_lane,
            ]
            for k in links
        ],
        *([[equal_cost.choice, equal_cost.seed]] if equal_cost != EqualCost() else []),
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]
