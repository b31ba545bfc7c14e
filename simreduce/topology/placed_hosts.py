"""Real hosts on a machine of ours: each takes the place of a machine, so that hosts which share
switches do so there too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from simreduce.errors import TopologyError
from simreduce.files.names import Name
from simreduce.topology.graph import Topology, assemble
from simreduce.topology.switch_groups import SwitchGroup, switch_groups
from simreduce.units import plural


@dataclass
class _Hosts:
    """Hosts below a switch: those of its parts, or its own."""

    name: str
    hosts: list[Name] = field(default_factory=list)
    parts: dict[str, _Hosts] = field(default_factory=dict)


def with_hosts(topology: Topology, hosts: Mapping[Name, Sequence[str]], source: str) -> Topology:
    """The topology with the names of hosts in place of those of its machines.

    `hosts` have the switches above each, the topmost first. Hosts with the same last switch take
    machines of one lowest group; levels that the network does not have are left out. Other machines
    keep their names, with a ' where a host has it. TopologyError lists what does not fit, in words
    about the file `source`.
    """
    network = switch_groups(topology)
    depth, deepest = _depth(network), max(map(len, hosts.values()))
    names: dict[str, str] = {}
    problems: list[str] = []
    if len(hosts) > len(network.machines):
        words = f"{source} has {plural(len(hosts), 'host')}, and {topology.name} has"
        raise TopologyError(f"{words} {plural(len(network.machines), 'node')}")
    for least in range(max(deepest - depth, 0), deepest):
        names, problems = {}, []
        _fit(_tree({host: path[least:] for host, path in hosts.items()}), network, names, problems)
        if not problems:
            break
    if problems:
        raise TopologyError([f"{source}: {problem} of {topology.name}" for problem in problems])
    names |= {name: f"{name}'" for name in network.machines if name in hosts and name not in names}
    nodes = [
        replace(node, machine=names[node.machine]) if node.machine in names else node
        for node in topology.nodes.values()
    ]
    router = topology.router
    return assemble(
        topology.name, topology.title, f"{topology.source}, hosts of {source}", nodes,
        topology.links, router.rule, router.switching, router.cut,
    )  # fmt: skip


def _is_lowest(group: SwitchGroup) -> bool:
    """Whether nothing in a group shares switches that the others do not."""
    return not any(part.parts or part.switches for part in group.parts)


def _depth(group: SwitchGroup) -> int:
    return 1 if _is_lowest(group) else 1 + max(map(_depth, group.parts))


def _tree(hosts: Mapping[Name, Sequence[str]]) -> _Hosts:
    root = _Hosts("the top")
    for host, path in hosts.items():
        at = root
        for name in path:
            at = at.parts.setdefault(name, _Hosts(name))
        at.hosts.append(host)
    return root


def _all(hosts: _Hosts) -> list[Name]:
    return [*hosts.hosts, *(each for part in hosts.parts.values() for each in _all(part))]


def _fit(hosts: _Hosts, group: SwitchGroup, names: dict[str, str], problems: list[str]) -> None:
    """Give hosts the machines of a group; parts with the most hosts first, each to the smallest
    group that has room for it.
    """
    every = _all(hosts)
    if len(every) > len(group.machines):
        most = plural(len(group.machines), "node")
        problems.append(f"{plural(len(every), 'host')} below {hosts.name}, and {most} in a group")
        return
    if _is_lowest(group):
        names |= zip(group.machines, every, strict=False)
        return
    if len(hosts.parts) == 1 and not hosts.hosts:
        _fit(next(iter(hosts.parts.values())), group, names, problems)
        return
    parts = list(hosts.parts.values())
    if hosts.hosts:
        parts.append(_Hosts(hosts.name, hosts.hosts))
    left = list(group.parts)
    for part in sorted(parts, key=lambda each: -len(_all(each))):
        size = len(_all(part))
        room = [each for each in left if len(each.machines) >= size]
        if not room:
            problems.append(f"{plural(size, 'host')} below {part.name} fit no group that is left")
            continue
        chosen = min(room, key=lambda each: len(each.machines))
        left = [each for each in left if each is not chosen]
        _fit(part, chosen, names, problems)
