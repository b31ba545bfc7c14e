"""Routes between equal machines: searched for the first two, and shifted to the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from simreduce.computing.arrays import AnyInts, Ints
from simreduce.errors import TopologyError
from simreduce.topology.elements import Link, Node
from simreduce.topology.joined import joined
from simreduce.topology.routing.route import RouteRows, join_rows, list_rows
from simreduce.topology.routing.rules import CutNetwork, RoutingRule

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
        self,
        found: RouteRows,
        which: Ints,
        here: Ints,
        there: Ints,
        across: Callable[..., RouteRows],
    ) -> RouteRows:
        """Routes from machines `here` to machines `there`.

        Route i is like row `which[i]` of those found, a route within the first machine or from it
        to the second, where the cables of two ports represent the network. `across` gives routes
        from port to port, for those of the routes that a mask has.
        """
        each, first = len(self.parts), 2 * self.network.first
        count = np.diff(found.start)
        ports = np.flatnonzero(found.links >= first)[::2]  # the first of the two in each row
        row = np.searchsorted(found.start, ports, side="right") - 1
        enter = count.copy()
        enter[row] = ports - found.start[row]
        crosses = (enter < count)[which]
        begin = (found.start[:-1] + enter)[which[crosses]]
        out, into = ((found.links[begin + i] - first) // 2 for i in (0, 1))
        machine = np.stack([here[crosses], there[crosses]])
        # The found way names ports of machines 0 and 1 by its first two cables of the network.
        ends = [
            np.where(port < each, machine[0], machine[1]) * each + port % each
            for port in (out, into)
        ]
        net = across(*(end.astype(np.int64) for end in ends), crosses)
        head = enter[which]
        tail = np.where(crosses, count[which] - head - 2, 0)
        all_ = np.ones(len(which), dtype=np.bool_)
        near, far = (
            rows._replace(
                links=self._shift(rows.links, np.repeat(here, size), np.repeat(there, size))
            )
            for rows, size in (
                (found.pick(found.start[which], head), head),
                (found.pick(found.start[which + 1] - tail, tail), tail),
            )
        )
        return join_rows(len(which), (all_, near), (crosses, net), (all_, far))

    def row(
        self, found: Sequence[int], here: int, there: int, across: Callable[[Ints, Ints], RouteRows]
    ) -> list[int]:
        """`rows` of a single transfer; by lists, as arrays of one take three times as long."""
        mine, first, each = 2 * self.cables, 2 * self.network.first, len(self.parts)

        def shift(links: Sequence[int]) -> list[int]:
            return [link % mine + mine * (here if link < mine else there) for link in links]

        enter = next((i for i, link in enumerate(found) if link >= first), len(found))
        ports = [(link - first) // 2 for link in found[enter : enter + 2]]
        ends = [np.array([(here if port < each else there) * each + port % each]) for port in ports]
        middle = across(*ends).links.tolist() if ends else []
        return [*shift(found[:enter]), *middle, *shift(found[enter + 2 :])]

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
    of the first two, with their shares.
    """

    machines: EqualMachines
    names: Sequence[str]
    find: Callable[[str, str], Sequence[tuple[int, float]]]

    def rows(self, source: Ints, target: Ints, across: Callable[..., RouteRows]) -> RouteRows:
        """The links of many transfers; see `EqualMachines.rows`."""
        here, there, near, far = self.machines.of_first(source, target)
        pair = near * (2 * self.machines.nodes) + far
        _, example, which = np.unique(pair, return_index=True, return_inverse=True)
        found = [self._as_first(int(source[one]), int(target[one])) for one in example]
        return self.machines.rows(list_rows(found), which, here, there, across)

    def row(self, source: int, target: int, across: Callable[[Ints, Ints], RouteRows]) -> list[int]:
        """The links of one transfer."""
        found = [link for link, _ in self._as_first(source, target)]
        here, there = source // self.machines.nodes, target // self.machines.nodes
        return self.machines.row(found, here, there, across)

    def _as_first(self, source: int, target: int) -> Sequence[tuple[int, float]]:
        """The links of the same transfer within the first machine, or from it to the second."""
        _, _, near, far = self.machines.of_first(source, target)
        a, b = self.names[near], self.names[far]
        try:
            return self.find(a, b)
        except TopologyError as error:
            found = f"from {a!r} to {b!r}"
            meant = f"from {self.names[source]!r} to {self.names[target]!r}"
            raise TopologyError(str(error).replace(found, meant)) from None


def after_cut(
    rule: RoutingRule | EqualMachines, whole: Sequence[Link], links: Sequence[Link]
) -> RoutingRule | EqualMachines | None:
    """The rule of a network, of equal machines or not, that has these links left of the `whole`.

    None if machines or their ports have lost some, or if ports that were joined are no longer.
    """
    network = rule.network if isinstance(rule, EqualMachines) else rule
    parts = rule.parts if isinstance(rule, EqualMachines) else (0,)
    trunk = 2 * (network.first + len(network.hosts))
    if [link.name for link in links[:trunk]] != [link.name for link in whole[:trunk]]:
        return None
    leaf = [link.target for link in links[2 * network.first : trunk : 2]]
    islands = joined(leaf, ((link.source, link.target) for link in links[trunk:]))
    island = {name: number for number, names in enumerate(islands) for name in names}
    seats = {(parts[port % len(parts)], island[name]) for port, name in enumerate(leaf)}
    if len(seats) > len({*parts}):
        return None
    cut = network if isinstance(network, CutNetwork) else CutNetwork(network)
    return replace(rule, network=cut) if isinstance(rule, EqualMachines) else cut
