"""Routes between equal machines: searched for the first two, and shifted to the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from simreduce.computing.arrays import AnyInts, Ints, ranges, row_starts
from simreduce.errors import TopologyError
from simreduce.topology.elements import Link, Node
from simreduce.topology.routing.rule import RoutingRule

Nodes = TypeVar("Nodes", int, Ints)
"""One index of a node, or many."""


@dataclass(frozen=True, slots=True)
class EqualMachines:
    """`count` equal machines on a network.

    The `nodes` of each come machine by machine, then the nodes of the network. The `cables` in each
    come machine by machine, then the cables of the network, whose ports are numbered machine by
    machine too.

    A route between machines is the network's route between two of their ports; before and after it
    come the links of the same transfer in the first machine and the second. `parts` gives the part
    of the network that each port of a machine is on: routes join ports of one part only.
    """

    count: int
    nodes: int
    cables: int
    network: RoutingRule
    parts: tuple[int, ...]

    def of_first(self, source: Nodes, target: Nodes) -> tuple[Nodes, Nodes, Nodes, Nodes]:
        """The machines of transfers, and the same transfers within the first machine or from it to
        the second.
        """
        here, there = source // self.nodes, target // self.nodes
        return here, there, source % self.nodes, target % self.nodes + self.nodes * (here != there)

    def rows(
        self, found: Sequence[Sequence[int]], which: Ints, here: Ints, there: Ints
    ) -> tuple[Ints, AnyInts]:
        """The links of routes from machines `here` to machines `there`.

        Route i is like `found[which[i]]`, a route within the first machine or from it to the
        second, where the cables of two ports represent the network.
        """
        each, first = len(self.parts), 2 * self.network.first
        enter = np.array(
            [next((i for i, link in enumerate(row) if link >= first), -1) for row in found]
        )
        count = np.array([len(row) for row in found], dtype=np.int64)
        at = row_starts(count)
        table = np.array([link for row in found for link in row], dtype=np.int32)
        crosses = enter[which] >= 0
        begin = (at[:-1] + enter)[which[crosses]]
        out, into = ((table[begin + i] - first) // 2 for i in (0, 1))
        machine = np.stack([here[crosses], there[crosses]])
        # The found way names ports of machines 0 and 1 by its first two cables of the network.
        ends = [
            np.where(port < each, machine[0], machine[1]) * each + port % each
            for port in (out, into)
        ]
        net = self.network.between(*(end.astype(np.int64) for end in ends))
        across = np.zeros(len(which), dtype=np.int64)
        across[crosses] = np.diff(net[0])
        head = np.where(crosses, enter[which], count[which])
        tail = np.where(crosses, count[which] - head - 2, 0)
        start = row_starts(head + across + tail)
        links = np.empty(start[-1], dtype=np.int32)
        for side, place, size in ((0, at[:-1][which], head), (1, at[1:][which] - tail, tail)):
            to = start[:-1] if side == 0 else start[1:] - tail
            links[ranges(to, size)] = self._shift(
                table[ranges(place, size)], np.repeat(here, size), np.repeat(there, size)
            )
        links[ranges((start[:-1] + head)[crosses], across[crosses])] = net[1]
        return start, links

    def row(self, found: Sequence[int], here: int, there: int) -> list[int]:
        """`rows` of a single transfer; by lists, as arrays of one take three times as long."""
        mine, first, each = 2 * self.cables, 2 * self.network.first, len(self.parts)

        def shift(links: Sequence[int]) -> list[int]:
            return [link % mine + mine * (here if link < mine else there) for link in links]

        enter = next((i for i, link in enumerate(found) if link >= first), len(found))
        ports = [(link - first) // 2 for link in found[enter : enter + 2]]
        ends = [np.array([(here if port < each else there) * each + port % each]) for port in ports]
        across = self.network.between(*ends)[1].tolist() if ends else []
        return [*shift(found[:enter]), *across, *shift(found[enter + 2 :])]

    def _shift(self, links: AnyInts, here: Ints, there: Ints) -> AnyInts:
        """Links of the first machine and the second, as those in the same place of machines `here`
        and `there`.
        """
        machine = links // (2 * max(self.cables, 1))
        found: AnyInts = (
            links + 2 * self.cables * (np.where(machine == 0, here, there) - machine)
        ).astype(np.int32)
        return found

    def first_two(
        self, nodes: Mapping[str, Node], links: Sequence[Link]
    ) -> tuple[dict[str, Node], list[Link]]:
        """The first two machines, with the links' own numbers, and a switch for each part of the
        network.
        """
        names = tuple(nodes)
        near = {name: nodes[name] for name in names[: min(self.count, 2) * self.nodes]}
        kept = [link for link in links[: 2 * self.count * self.cables] if link.source in near]
        for port, place in enumerate(self.network.hosts[: 2 * len(self.parts)]):
            nic, part = names[place], f"part {self.parts[port % len(self.parts)]}"
            near[part] = replace(nodes[nic], name=part, kind="switch", machine="")
            cable = 2 * (self.network.first + port)
            kept += [replace(links[cable], target=part), replace(links[cable + 1], source=part)]
        return near, kept


@dataclass(frozen=True, slots=True)
class MachineRoutes:
    """Links of transfers between `machines`. `find` returns those between two nodes, given by name,
    of the first two.
    """

    machines: EqualMachines
    names: Sequence[str]
    find: Callable[[str, str], Sequence[int]]

    def rows(self, source: Ints, target: Ints) -> tuple[Ints, AnyInts]:
        """The links of many transfers, in rows."""
        here, there, near, far = self.machines.of_first(source, target)
        pair = near * (2 * self.machines.nodes) + far
        _, example, which = np.unique(pair, return_index=True, return_inverse=True)
        found = [self._as_first(int(source[one]), int(target[one])) for one in example]
        return self.machines.rows(found, which, here, there)

    def row(self, source: int, target: int) -> list[int]:
        """The links of one transfer."""
        found = self._as_first(source, target)
        return self.machines.row(
            found, source // self.machines.nodes, target // self.machines.nodes
        )

    def _as_first(self, source: int, target: int) -> Sequence[int]:
        """The links of the same transfer within the first machine, or from it to the second."""
        _, _, near, far = self.machines.of_first(source, target)
        a, b = self.names[near], self.names[far]
        try:
            return self.find(a, b)
        except TopologyError as error:
            found = f"from {a!r} to {b!r}"
            meant = f"from {self.names[source]!r} to {self.names[target]!r}"
            raise TopologyError(str(error).replace(found, meant)) from None
