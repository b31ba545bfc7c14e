"""Where on a topology the devices of a plan are."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from simreduce.computing.arrays import Ints
from simreduce.errors import InputError, did_you_mean
from simreduce.plan import Plan
from simreduce.topology import Folded, Node, Topology


class Site(NamedTuple):
    """The devices of a plan on a topology; for a folded plan also another machine's devices.

    `place` is a device's place in the topology. `nodes` gives its lanes their names. `home` is the
    link that represents each link; None if every link represents itself.
    """

    topology: Topology
    place: Ints
    nodes: tuple[Node, ...]
    home: Ints | None


def find_site(plan: Plan, topology: Topology | Folded) -> Site:
    """Raises InputError if the topology lacks a device, or if only one of the two is folded."""
    folded = topology.machines if isinstance(topology, Folded) else 1
    if folded != plan.machines:
        raise InputError(
            f"{topology.name}: the plan is that of {_machines(plan.machines)}, and the "
            f"topology {_machines(folded)}"
        )
    graph = topology.pair if isinstance(topology, Folded) else topology
    missing = [d for d in plan.devices if d not in graph.nodes]
    if missing:
        raise InputError(
            [
                f"{topology.name}: the plan needs a device {d!r}{did_you_mean(d, graph.nodes)}"
                for d in missing
            ]
        )
    names, nodes, home = list(plan.devices), [graph.nodes[d] for d in plan.devices], None
    if isinstance(topology, Folded):
        twins = [topology.twin[name] for name in names]
        nodes += [replace(graph.nodes[t], name=name) for t, name in zip(twins, names, strict=True)]
        names += twins
        home = np.array(topology.home, dtype=np.int64)
    place = np.array([graph.router.index[name] for name in names], dtype=np.int64)
    return Site(graph, place, tuple(nodes), home)


def _machines(count: int) -> str:
    return (
        f"one of {count} equal machines (folded)"
        if count > 1
        else "all devices, none of them folded"
    )


@lru_cache(maxsize=16)
def find_hosts(topology: Topology) -> tuple[Ints, Ints]:
    """Return, for every node, the number of its machine and the place of its host.

    The host is the machine's first; -1 if it has none.
    """
    first = {
        topology.nodes[name].machine: topology.router.index[name]
        for name in reversed(topology.hosts)
    }
    number: dict[str, int] = {}
    machines = [number.setdefault(node.machine, len(number)) for node in topology.nodes.values()]
    hosts = [first.get(node.machine, -1) for node in topology.nodes.values()]
    return np.array(machines, dtype=np.int64), np.array(hosts, dtype=np.int64)
