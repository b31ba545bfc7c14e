"""The NICs of a machine that NCCL's settings leave to it."""

from __future__ import annotations

from typing import TypeVar

from simreduce.errors import InputError
from simreduce.planners.nccl.environment import Settings
from simreduce.topology import Folded, Topology
from simreduce.topology.elements import TCP
from simreduce.units import first_few

M = TypeVar("M", bound="Topology | Folded")


def port_of(topology: Topology, name: str) -> tuple[str, str]:
    """The name of a NIC in its machine, and the class of its network."""
    joined = (link.link_class for link in topology.wires_from[name] if not link.holds_lane)
    return name.rpartition(".")[2], next(joined, topology.nodes[name].network)


def with_nics(machine: M, settings: Settings) -> M:
    """Several machines without the links of the NICs that NCCL_IB_HCA and NCCL_SOCKET_IFNAME leave
    out, for all that runs there. A machine alone keeps its own.

    Raises `InputError` if NCCL_IB_HCA leaves none, or for folded machines. If NCCL_SOCKET_IFNAME
    leaves none, all stay: machine files seldom have the names of interfaces.
    """
    graph = machine.pair if isinstance(machine, Folded) else machine
    ports = {
        name: port_of(graph, name) for name, node in graph.nodes.items()
        if node.kind == "nic" and graph.wires_from[name]
    }  # fmt: skip
    gone = [name for name, port in ports.items() if not settings.takes_nic(*port)]
    alone = len(graph.nodes_of.keys() - {""}) == 1
    if not gone or alone:
        return machine
    if len(gone) == len(ports) and ports[gone[0]][1].startswith(TCP):
        return machine
    own = [*dict.fromkeys(name for name, _ in ports.values())]
    if len(gone) == len(ports):
        raise InputError(
            f"NCCL_IB_HCA={settings.ib_hca}: leaves no NIC; {machine.name} has {first_few(own)}"
        )
    if isinstance(machine, Folded):
        raise InputError("NCCL_IB_HCA: folded machines keep all NICs; say nics=N, or ask for fewer")
    return machine.scale_links(dict.fromkeys(gone, 0.0), "NCCL_IB_HCA")
