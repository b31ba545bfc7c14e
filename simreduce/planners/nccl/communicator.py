"""The facts of a communicator in NCCL's terms: its nodes, and what its model of time knows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from simreduce.computing.lists import grouped
from simreduce.errors import StrategyError
from simreduce.planners.layouts import aggregations, layout
from simreduce.planners.layouts.rings import rules_of
from simreduce.planners.nccl.environment import Settings
from simreduce.planners.nccl.node import Box, NodeReading, capability
from simreduce.topology import Folded, Link, Node, Topology


@dataclass(frozen=True, eq=False)
class Facts:
    """A communicator: its nodes, the slowest and the newest compute capability, and the CPUs.

    `ranks` are the GPUs by rank, node by node; in a folded machine they repeat. Equal nodes share
    a box, which has the names of the first.
    """

    name: str
    ranks: tuple[str, ...]
    boxes: tuple[Box, ...]
    capability: int
    newest: int
    arch: str
    vendor: str
    multicast: bool
    network: str = ""
    """The class of the first NIC's link to others; "" on one node, or if no NIC has one."""
    library: str = "nccl"
    """The library that the GPUs run: nccl or rccl."""
    aggregates: Callable[[], bool] = field(default=lambda: False, repr=False)
    """Whether switches of the network sum what all nodes send."""
    cache: dict[object, Any] = field(default_factory=dict, repr=False)

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.boxes)

    @property
    def n(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    @property
    def kinds(self) -> tuple[Box, ...]:
        """The nodes that differ."""
        return tuple(dict.fromkeys(self.boxes))


_SWITCHES = ("nvswitch", "switch")

_FOUND: dict[object, Facts] = {}
_MOST_FOUND = 1024
"""Upper limit of communicators kept: more than a machine has nodes, as each may be one."""


def facts(
    machine: Topology | Folded | Facts,
    gpus: Sequence[str] = (),
    settings: Settings | None = None,
) -> Facts:
    """The facts of a machine, or of some of its GPUs; made once for each machine.

    Raises `TopologyError` for a machine with no way between two of the GPUs.
    """
    if isinstance(machine, Facts):
        return machine
    settings = settings or Settings()
    gpus = () if tuple(gpus) == machine.devices else gpus
    paths = settings.release, settings.p2p_disable, settings.p2p_level, settings.gdr_level
    key = (machine.digest, machine.name, tuple(gpus), paths)
    if key not in _FOUND:
        if len(_FOUND) >= _MOST_FOUND:
            _FOUND.pop(next(iter(_FOUND)))
        _FOUND[key] = _facts(machine, gpus, settings)
    return _FOUND[key]


def _facts(machine: Topology | Folded, gpus: Sequence[str], settings: Settings) -> Facts:
    topology = machine.pair if isinstance(machine, Folded) else machine
    copies, one_task = 1, False
    if isinstance(machine, Folded):
        copies, one_task = machine.machines, machine.one_task
    chosen = tuple(gpus) or machine.devices
    by_machine = grouped((topology.nodes[gpu].machine, gpu) for gpu in chosen)
    content = _content(topology)
    around, links = {name: content.nodes.get(name, []) for name in by_machine}, content.links
    made: dict[object, Box] = {}
    several = len(by_machine) > 1 or (copies > 1 and not one_task)
    boxes = []
    for name, members in by_machine.items():
        seen = NodeReading(
            topology, links, around[name], members, settings, copies if one_task else 1, several
        )
        signature = seen.signature()
        if signature not in made:
            made[signature] = seen.box()
        boxes.append(made[signature])
    if not one_task:
        boxes *= copies
    ranks = tuple(gpu for members in by_machine.values() for gpu in members) * copies
    capabilities = [capability(topology, gpu) for gpu in chosen]
    arch, vendor = _cpu(content, around)
    inside = {node.name: node for node in next(iter(around.values()))}
    networks = [
        link.link_class
        for name, node in inside.items()
        if node.kind == "nic"
        for link in links.get(name, ())
        if link.target not in inside
    ]
    return Facts(
        machine.name, ranks, tuple(boxes), min(capabilities), max(capabilities), arch, vendor,
        any(node.reduces for nodes in around.values() for node in nodes if node.kind in _SWITCHES),
        networks[0] if networks and len(boxes) > 1 else "",
        rules_of(topology.nodes[chosen[0]].model).library,
        partial(_aggregates, topology, tuple(chosen)),
    )  # fmt: skip


@lru_cache(maxsize=64)
def _aggregates(topology: Topology, gpus: tuple[str, ...]) -> bool:
    shape = layout(topology)
    try:
        aggregations(shape, [shape.ranks.index(gpu) for gpu in gpus])
    except StrategyError:
        return False
    return True


@dataclass(frozen=True)
class _Content:
    """Nodes by machine, links but no tolls by source, and the classes of a node's links."""

    nodes: Mapping[str, list[Node]]
    links: Mapping[str, list[Link]]
    classes: Mapping[str, set[str]]


@lru_cache(maxsize=4)
def _content(topology: Topology) -> _Content:
    nodes = grouped((node.machine, node) for node in topology.nodes.values())
    links = grouped((link.source, link) for link in topology.links if not link.is_toll)
    classes: defaultdict[str, set[str]] = defaultdict(set)
    for link in topology.links:
        classes[link.source].add(link.link_class)
        classes[link.target].add(link.link_class)
    return _Content(nodes, links, dict(classes))


def _cpu(content: _Content, around: Mapping[str, list[Node]]) -> tuple[str, str]:
    """Architecture and vendor of the first host."""
    hosts = [node for nodes in around.values() for node in nodes if node.kind == "cpu"]
    model = hosts[0].model.lower() if hosts else ""
    classes = content.classes.get(hosts[0].name if hosts else "", set())
    if "grace" in model or "grace_link" in classes or "c2c" in classes:
        return "arm64", "ARM"
    if "power" in model:
        return "ppc64", "IBM"
    return "x86_64", "AMD" if "epyc" in model or classes & {"xgmi", "xgmi3"} else "Intel"
