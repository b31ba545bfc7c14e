"""Machines by the switches they share, from the machines below one leaf up to the whole network.

Machines are *alike* when equal NICs join them to the same switches at the same rates: to swap two
of them changes no time. A group takes in the switches that only its machines are linked to; groups
whose switches are linked in the same way to the same other switches are alike in turn, and form the
next group. Where transfers do not go evenly over equal paths, a path depends on the names of its
ends, and no two machines are alike.

Real hosts on a machine of ours: each takes the place of a machine, so that hosts which share
switches do so there too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import inf

from simreduce.computing import group_by
from simreduce.errors import TopologyError, did_you_mean, quote
from simreduce.files.formats import Name
from simreduce.files.formats.syntax import Faults
from simreduce.topology.elements import Link, Node, expand_hosts, natural
from simreduce.topology.graph import Topology
from simreduce.topology.routing.switching import SPLIT
from simreduce.units import first_few, plural


@dataclass(frozen=True)
class SwitchGroup:
    """Machines, by name, that share `switches`. The lowest groups have no `parts`: their machines
    are alike. The `rate` at which bytes leave the group, or enter it, is in bytes/s.

    `wiring` says how its machines or parts are linked to its switches, without names. `alike`:
    parts with equal `shape` may change places.
    """

    machines: tuple[str, ...]
    switches: tuple[str, ...] = ()
    parts: tuple[SwitchGroup, ...] = ()
    rate: float = inf
    wiring: object = ()
    alike: bool = True

    @cached_property
    def leaves(self) -> tuple[SwitchGroup, ...]:
        """The lowest groups in it, in order."""
        return tuple(leaf for part in self.parts for leaf in part.leaves) or (self,)

    def among(self, names: Iterable[str]) -> list[list[str]]:
        """Those of the machines that share switches, by the lowest groups, in order."""
        some = {*names}
        found = ([each for each in leaf.machines if each in some] for leaf in self.leaves)
        return [each for each in found if each]

    def shape(self, free: Mapping[str, int]) -> object:
        """What tells the group apart from another below the same switches, where only the machines
        in `free` count.
        """
        if not self.parts:
            return self.wiring, sum(name in free for name in self.machines)
        shapes = [part.shape(free) for part in self.parts]
        return self.wiring, tuple(sorted(shapes, key=repr) if self.alike else shapes)


@dataclass(frozen=True)
class _Block:
    """A group, and the nodes of it that have links to others, in order. Machines have a `kind`."""

    group: SwitchGroup
    border: tuple[str, ...]
    nodes: frozenset[str]
    kind: object = ()


@lru_cache(maxsize=16)
def switch_groups(topology: Topology) -> SwitchGroup:
    """The group of all machines of a topology."""
    links = topology.wires_from
    blocks = [_machine(name, nodes, links) for name, nodes in _machines(topology).items()]
    found = _joined(blocks, links)
    router = topology.router
    even = not router.several or router.switching.choice == SPLIT
    return found if even else _all_different(found)


@lru_cache(maxsize=16)
def machine_kinds(topology: Topology) -> Mapping[str, int]:
    """A number for each machine, equal for machines with equal parts and links."""
    links = topology.wires_from
    kinds: dict[object, int] = {}
    found = {}
    for name, nodes in _machines(topology).items():
        block = _machine(name, nodes, links)
        ports = tuple(sorted((place, _figures(link)) for place, link in _out(block, links)))
        found[name] = kinds.setdefault((block.kind, ports), len(kinds))
    return found


def label(machine: str) -> str:
    """The name of a machine for people: `n3` of the fourth of `MACHINExN`.

    Hosts have a `Name`, which stays as their file has it, a number too.
    """
    numbered = machine.isdecimal() and not isinstance(machine, Name)
    return f"n{machine}" if numbered else machine


def read_machines(faults: Faults, path: str, topology: Topology, text: str) -> tuple[str, ...]:
    """The machines in a host list such as `n[0-3,8]` or `0,1,2`, in its order.

    Where no machine is named by a number, numbers are places. Notes as `read_names` does.
    """
    machines = list(_machines(topology))
    known = {label(name): name for name in machines}
    if any(name.isdecimal() for name in machines):
        known |= {name: name for name in machines}
    else:
        known |= {str(place): name for place, name in enumerate(machines)}
    return read_names(faults, path, text, known, f"{topology.name} has no node")


def read_names(
    faults: Faults, path: str, text: str, known: Mapping[str, str], lacks: str
) -> tuple[str, ...]:
    """What the names of a host list are `known` as, in its order.

    Notes those that are not known, in words that begin with `lacks`, and those that are named
    twice, and leaves them out.
    """
    names = faults.attempt(path, expand_hosts, ",".join(_bare_ranges(text)))
    if names is None:
        return ()
    words = [name for name in known if not name.isdecimal()] or [*known]
    for name in dict.fromkeys(names):
        if name not in known:
            near = did_you_mean(name, words) or f"; it has {first_few(words)}"
            faults.add(path, f"{lacks} {quote(name)}{near}")
    found = [known[n] for n in names if n in known]
    for name in dict.fromkeys(n for n in found if found.count(n) > 1):
        faults.add(path, f"{label(name)} is named twice")
    faults.check(names, path, "names no node")
    return tuple(dict.fromkeys(found))


def _bare_ranges(text: str) -> list[str]:
    """The parts of a host list, of which `0-3` stands for numbers."""
    parts = re.findall(r"[^\[\],]+(?:\[[^\]]*\]?[^\[\],]*)?|\[[^\]]*\]?|,,", text.strip())
    return [f"[{p.strip()}]" if re.fullmatch(r"\s*[0-9]+-[0-9]+\s*", p) else p for p in parts]


def _joined(blocks: list[_Block], links: Mapping[str, list[Link]]) -> SwitchGroup:
    """The group of all blocks: those alike are joined, again and again."""
    while len(blocks) > 1:
        alike = group_by(blocks, lambda block: (block.kind, _wires(block, links)))
        joined = [_join(some, blocks, links) for some in alike.values()]
        if len(joined) == len(blocks) and not any(
            one.nodes > other.nodes for one, other in zip(joined, blocks, strict=True)
        ):
            groups = tuple(block.group for block in blocks)
            return SwitchGroup(_names(groups), (), groups, alike=False)
        blocks = joined
    return blocks[0].group


def _all_different(group: SwitchGroup) -> SwitchGroup:
    """The group with none of its machines and parts alike."""
    parts = [_all_different(part) for part in group.parts]
    parts = parts or [SwitchGroup((name,)) for name in group.machines]
    return replace(group, parts=tuple(parts), alike=False)


def _machines(topology: Topology) -> Mapping[str, list[Node]]:
    homes = dict.fromkeys(topology.nodes[name].machine for name in topology.devices)
    return {machine: topology.nodes_of[machine] for machine in homes}


def _machine(name: str, nodes: Sequence[Node], links: Mapping[str, list[Link]]) -> _Block:
    """A machine by itself. Its kind is all that is in it, by places instead of names."""
    place = {node.name: i for i, node in enumerate(nodes)}
    parts = tuple((n.kind, n.model, n.memory_bandwidth, n.transit, n.peer) for n in nodes)
    wires = tuple(
        (place[link.source], place[link.target], *_figures(link))
        for node in nodes
        for link in links[node.name]
        if link.target in place
    )
    border = tuple(n for n in place if any(link.target not in place for link in links[n]))
    # Numbers of places that are equal in machines of one kind.
    return _Block(SwitchGroup((name,)), border, frozenset(place), hash((parts, wires)))


def _figures(link: Link) -> tuple[object, ...]:
    return link.link_class, link.bandwidth, link.width, link.latency, link.lanes, link.holds_lane


def _out(block: _Block, links: Mapping[str, list[Link]]) -> Iterable[tuple[int, Link]]:
    for place, name in enumerate(block.border):
        for link in links[name]:
            if link.target not in block.nodes:
                yield place, link


def _wires(
    block: _Block, links: Mapping[str, list[Link]]
) -> tuple[tuple[int, str, tuple[object, ...]], ...]:
    """From places in a group to nodes outside of it, with the figures of the links."""
    wires = [(place, link.target, _figures(link)) for place, link in _out(block, links)]
    return tuple(sorted(wires, key=repr))


def _join(
    some: Sequence[_Block], blocks: Sequence[_Block], links: Mapping[str, list[Link]]
) -> _Block:
    """The block of alike blocks, with the switches that no other of `blocks` is linked to."""
    wires = _wires(some[0], links)
    others = {
        link.target for block in blocks if block not in some for _, link in _out(block, links)
    }
    near = sorted({target for _, target, _ in wires} - others, key=natural)
    nodes = frozenset(near).union(*(block.nodes for block in some))
    place = {name: i for i, name in enumerate(near)}
    wiring = tuple((at, place.get(target, -1), *figures) for at, target, figures in wires)
    border = tuple(near) + tuple(n for block in some for n in block.border if n not in place)
    border = tuple(n for n in border if any(link.target not in nodes for link in links[n]))
    groups = [block.group for block in some]
    lowest = not any(group.parts or group.switches for group in groups)
    new = _Block(SwitchGroup(()), border, nodes)
    rate = sum(link.bandwidth for _, link in _out(new, links)) or inf
    if len(groups) == 1 and not lowest:  # the same machines, with more switches
        one = groups[0]
        group = SwitchGroup(
            one.machines, (*one.switches, *near), one.parts, min(rate, one.rate),
            (one.wiring, wiring), one.alike,
        )  # fmt: skip
    else:
        parts = () if lowest else tuple(groups)
        kind = (some[0].kind, tuple(sorted(map(repr, wiring))))
        group = SwitchGroup(_names(groups), tuple(near), parts, rate, kind)
    return _Block(group, border, nodes)


def _names(groups: Sequence[SwitchGroup]) -> tuple[str, ...]:
    return tuple(name for group in groups for name in group.machines)


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
        raise TopologyError(
            f"{source} has {plural(len(hosts), 'host')}, and {topology.name} has"
            f" {plural(len(network.machines), 'node')}"
        )
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
    return topology.vary(source=f"{topology.source}, hosts of {source}", nodes=nodes)


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
