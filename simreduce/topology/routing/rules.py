"""Routing rules: networks whose structure gives routes by arithmetic, many at a time.

A rule goes with the cables of a network. It numbers the network's *ports*: port p belongs to node
`hosts[p]`, and cable `first + p` joins that node to its switch. Cable c is two links: 2c from its
first end, and 2c + 1 back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np

from simreduce.computing.arrays import AnyInts, Floats, Ints, ranges, row_starts
from simreduce.errors import InternalError, TopologyError
from simreduce.topology.elements import Link, Node, joined
from simreduce.topology.routing import RouteRows, join_rows, list_rows


class Bundled(NamedTuple):
    """Links in bundles, each used evenly by all transfers that use one of its links.

    One link represents each bundle: `rule` gives routes over these alone, `home` is the one that
    represents each link of the topology, and `share` the part of a transfer's bytes that it
    carries. Sharing out one link is then sharing out all of the bundle, if they carry the same.
    """

    rule: RoutingRule
    home: Ints
    share: Floats


class RoutingRule(ABC):
    """How routes go through a network.

    `hosts` are places of nodes in their topology; `first` numbers the cable of port 0.
    """

    __slots__ = ()
    hosts: tuple[int, ...]
    first: int

    def between(self, source: Ints, target: Ints) -> tuple[Ints, AnyInts]:
        """The links from port to port, as rows: where each begins (and the last ends), and all link
        ids.
        """
        raise InternalError(f"{self} has no routes from {source} to {target}")

    @property
    @abstractmethod
    def several(self) -> bool:
        """Whether the network has equal paths, of which the rule takes one."""

    def bundled(self, links: int) -> Bundled | None:  # noqa: B027 - most rules have none
        """Its links in bundles, over which transfers are split; None if equal paths are no bundles.

        `links` is how many the topology has.
        """

    def areas(self) -> Sequence[int]:
        """The area of the network that each switch is in; a route stays in the areas of its two
        ends. Empty where the network has no areas. The switches are the last nodes of their
        topology.
        """
        return ()


@dataclass(frozen=True, slots=True)
class SearchedNetwork(RoutingRule):
    """A network whose routes are searched: it has lost links between its switches, or has no rule
    and no ports.
    """

    hosts: tuple[int, ...] = ()
    first: int = 0
    area: tuple[int, ...] = ()

    @property
    def several(self) -> bool:
        """True after a loss: where the whole network has one path, detours may be as long."""
        return bool(self.hosts)

    def areas(self) -> Sequence[int]:
        """See `RoutingRule`."""
        return self.area


@dataclass(frozen=True, slots=True)
class DragonflyRule(RoutingRule):
    """Minimal routing of a dragonfly (Kim et al. 2008).

    A route takes at most one local cable to the router that is linked to the other group, the
    global cable, and at most one local cable there.

    Every router has `each` ports, and the last one the ports left over. Each of `groups` groups has
    `routers` routers, and every two groups are linked. Two groups share `parallel` cables; port d
    as a destination takes number d mod `parallel`. Global cable c between a group and the o-th
    after it (mod `groups`) is at router (c (groups - 1) + o - 1) mod `routers`.

    After the hosts' cables come the local ones, group by group and in each 0-1, 0-2, ..., 1-2, ...;
    then the global ones, for groups 0-1, 0-2, ... in the same way, `parallel` of each.
    """

    hosts: tuple[int, ...]
    each: int
    routers: int
    groups: int
    parallel: int
    first: int = 0

    def between(self, source: Ints, target: Ints) -> tuple[Ints, AnyInts]:
        """See `RoutingRule`."""
        here, there = (
            np.minimum(port // self.each, self.groups * self.routers - 1)
            for port in (source, target)
        )
        (home, a), (away, b) = np.divmod(here, self.routers), np.divmod(there, self.routers)
        leaves = home != away
        cable = target % max(self.parallel, 1)
        out = np.where(leaves, self.router(cable, home, away), b)
        into = np.where(leaves, self.router(cable, away, home), b)
        moves = source != target
        steps = (moves, a != out, leaves, into != b, moves)
        links = np.stack(
            [
                2 * (self.first + source),
                self._local(home, a, out),
                self._global(cable, home, away),
                self._local(away, into, b),
                2 * (self.first + target) + 1,
            ],
            axis=1,
        )
        taken = np.stack(steps, axis=1)
        return row_starts(taken.sum(axis=1)), links[taken].astype(np.int32)

    @property
    def several(self) -> bool:
        """See `RoutingRule`."""
        return self.parallel > 1

    def areas(self) -> Sequence[int]:
        """The groups."""
        return [group for group in range(self.groups) for _ in range(self.routers)]

    def router(self, cable: Ints, group: Ints | int, other: Ints | int) -> Ints:
        """The router, in its group, of the global cable of that number to another group."""
        return (cable * (self.groups - 1) + (other - group) % self.groups - 1) % self.routers

    def _local(self, group: Ints, a: Ints, b: Ints) -> Ints:
        """The link from router `a` to router `b` of a group."""
        before = self.first + len(self.hosts) + group * (self.routers * (self.routers - 1) // 2)
        return 2 * (before + _pair(np.minimum(a, b), np.maximum(a, b), self.routers)) + (a > b)

    def _global(self, cable: Ints, group: Ints, other: Ints) -> Ints:
        """The link of a global cable, from `group` to `other`."""
        before = (
            self.first + len(self.hosts) + self.groups * (self.routers * (self.routers - 1) // 2)
        )
        pair = _pair(np.minimum(group, other), np.maximum(group, other), self.groups)
        return 2 * (before + pair * self.parallel + cable) + (group > other)


def _pair(low: Ints, high: Ints, count: int) -> Ints:
    """The place of each pair among 0-1, 0-2, ..., 1-2, ..., where low < high < count."""
    return low * (2 * count - low - 1) // 2 + high - low - 1


@dataclass(frozen=True, slots=True)
class FatTreeRule(RoutingRule):
    """Up to where both ends are below, and down again: port d as a destination takes the up-link d
    mod `spines` of its sender's leaf, and the up-link d / `spines` mod `cores` of that spine
    (D-mod-k: Zahavi 2012).

    `radix` ports are under each of the `leaves`; those left over are under the last. With `rails`,
    ports are numbered machine by machine, so many of each, and the i-th ports of `radix` machines
    share a leaf; d counts leaf by leaf. With `pod`, so many leaves have `spines` of their own, and
    every spine has a cable to each of `cores`, which join the pods; of these the first `large` are
    so, and those after them have one leaf fewer.

    With `bundle`, all take up-link 0, which represents the others (`Bundled`).

    After the hosts' cables come those from leaf 0 to its spines, then those from leaf 1, and so on,
    then those from spine to core. A single switch is a leaf without spines. Without spines several
    leaves are not joined: only ports of one leaf may be asked for.
    """

    hosts: tuple[int, ...]
    radix: int
    leaves: int
    spines: int
    first: int = 0
    rails: int = 1
    pod: int = 0
    cores: int = 0
    large: int = 0
    bundle: bool = False

    def between(self, source: Ints, target: Ints) -> tuple[Ints, AnyInts]:
        """See `RoutingRule`."""
        up = (2 * (self.first + source)).astype(np.int32)
        down = (2 * (self.first + target) + 1).astype(np.int32)
        moves = source != target
        if not self.spines and moves.all():
            return np.arange(0, 2 * len(up) + 1, 2), np.stack([up, down], axis=1).reshape(-1)
        (leaf, _), (other, number) = self.seat(source), self.seat(target)
        far = leaf != other
        apart = self.in_pod(leaf) != self.in_pod(other) if self.pod else np.zeros_like(far)
        start = row_starts(2 * moves + 2 * far + 2 * apart)
        begin, end = start[:-1], start[1:]
        links = np.empty(start[-1], dtype=np.int32)
        links[begin[moves]] = up[moves]
        links[end[moves] - 1] = down[moves]
        if self.spines:
            number = number * (not self.bundle)
            spine, trunk = number % self.spines, self.first + len(self.hosts)
            links[begin[far] + 1] = 2 * (trunk + leaf * self.spines + spine)[far]
            links[end[far] - 2] = 2 * (trunk + other * self.spines + spine)[far] + 1
        if self.pod:
            core, roof = number // self.spines % self.cores, trunk + self.leaves * self.spines
            above, below = (
                (self.in_pod(at) * self.spines + spine) * self.cores + core for at in (leaf, other)
            )
            links[begin[apart] + 2] = 2 * (roof + above)[apart]
            links[end[apart] - 3] = 2 * (roof + below)[apart] + 1
        return start, links

    @property
    def several(self) -> bool:
        """See `RoutingRule`."""
        return self.spines > 1 or self.cores > 1

    def bundled(self, links: int) -> Bundled:
        """See `RoutingRule`: the up-links of a leaf are a bundle, those of a pod's spines another,
        and so are the links down.
        """
        home, share = np.arange(links), np.ones(links)
        trunk = 2 * (self.first + len(self.hosts))
        roof = trunk + 2 * self.leaves * self.spines
        pods = (self.pod and int(self.in_pod(np.array([self.leaves - 1]))[0])) + 1
        for begin, bundles, size in (
            (trunk, self.leaves, self.spines),
            (roof, pods, self.spines * self.cores),
        ):
            if size:
                up = begin + 2 * size * np.repeat(np.arange(bundles), size)
                mine = slice(begin, begin + 2 * size * bundles)
                home[mine] = np.stack([up, up + 1], axis=1).reshape(-1)
                share[mine] = 1.0 / size
        return Bundled(replace(self, bundle=True), home, share)

    def in_pod(self, leaf: Ints) -> Ints:
        """The pod of every leaf."""
        rest = leaf - self.large * self.pod
        return np.where(rest < 0, leaf // self.pod, self.large + rest // max(self.pod - 1, 1))

    def seat(self, port: Ints) -> tuple[Ints, Ints]:
        """The leaf of every port, and its number leaf by leaf."""
        machine, rail = port // self.rails, port % self.rails
        leaf = machine // self.radix * self.rails + rail
        return np.minimum(leaf, self.leaves - 1), leaf * self.radix + machine % self.radix


@dataclass(frozen=True, slots=True)
class TorusRule(RoutingRule):
    """One dimension after the other, the shorter way round, forwards when both are as long.

    Router i is at x = i mod X, y = i / X mod Y, and so on, and has the i-th `each` ports; those
    left over are at router 0. After the hosts' cables come those along x, from every router to the
    next, then those along y, and so on. A dimension of size 2 has a cable from 0 to 1 only, one of
    size 1 none.
    """

    hosts: tuple[int, ...]
    sizes: tuple[int, ...]
    first: int = 0
    each: int = 1

    def between(self, source: Ints, target: Ints) -> tuple[Ints, AnyInts]:
        """See `RoutingRule`."""
        routers = int(np.prod(self.sizes))
        seats = (port // self.each for port in (source, target))
        here, there = (np.where(seat < routers, seat, 0) for seat in seats)
        hops = [self._hops(here, there, d) for d in range(len(self.sizes))]
        moves = source != target
        start = row_starts(2 * moves + sum(np.abs(hop) for hop in hops))
        links = np.empty(start[-1], dtype=np.int32)
        links[start[:-1][moves]] = 2 * (self.first + source[moves])
        links[start[1:][moves] - 1] = 2 * (self.first + target[moves]) + 1
        at, cable = start[:-1] + 1, self.first + len(self.hosts)
        for d, hop in enumerate(hops):
            count = np.abs(hop)
            links[ranges(at, count)] = self._links(d, cable, here, hop)
            stride, size = self._dimension(d)
            here = here + (there // stride % size - here // stride % size) * stride
            at = at + count
            cable += routers if size > 2 else routers // 2 * (size - 1)
        return start, links

    @property
    def several(self) -> bool:
        """See `RoutingRule`."""
        return sum(size > 1 for size in self.sizes) > 1 or any(size % 2 == 0 for size in self.sizes)

    def _dimension(self, d: int) -> tuple[int, int]:
        """How far apart neighbours are numbered, and how many there are."""
        return int(np.prod(self.sizes[:d])), self.sizes[d]

    def _hops(self, here: Ints, there: Ints, d: int) -> Ints:
        """How many steps forwards (above 0) or back."""
        stride, size = self._dimension(d)
        ahead = (there // stride - here // stride) % size
        return np.where(2 * ahead <= size, ahead, ahead - size)

    def _links(self, d: int, cable: int, router: Ints, hop: Ints) -> AnyInts:
        """One after the other, the links of `hop` steps along dimension `d` from every router."""
        stride, size = self._dimension(d)
        count = np.abs(hop)
        x = router // stride % size
        low = router - x * stride
        if size == 2:
            at, step = low // (2 * stride) * stride + low % stride, x
            return (2 * (cable + at) + step)[count > 0].astype(np.int32)
        # A cable belongs to the router behind it: x going forwards, x - 1 going back.
        sign = np.repeat(np.sign(hop).astype(np.int32), count)
        begin = ranges(np.zeros_like(count), count).astype(np.int32)
        begin *= sign
        begin += np.repeat(np.where(hop > 0, x, x - 1).astype(np.int32), count)
        begin += np.where(begin < 0, size, 0).astype(np.int32)
        begin -= np.where(begin >= size, size, 0).astype(np.int32)
        begin *= 2 * stride
        begin += np.repeat((2 * (cable + low) + (hop < 0)).astype(np.int32), count)
        return begin


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
    """Links of transfers between `machines`.

    `find` returns those between two nodes, given by name, of the first two machines, with their
    shares. There the cables of two ports represent the network.
    """

    machines: EqualMachines
    names: Sequence[str]
    find: Callable[[str, str], Sequence[tuple[int, float]]]

    def rows(self, source: Ints, target: Ints, across: Callable[..., RouteRows]) -> RouteRows:
        """The links of many transfers.

        `across` gives routes from port to port, for those of the transfers that a mask has.
        """
        machines = self.machines
        here, there, near, far = self._of_first(source, target)
        pair = near * (2 * machines.nodes) + far
        _, example, which = np.unique(pair, return_index=True, return_inverse=True)
        found = list_rows(self._as_first(int(source[one]), int(target[one])) for one in example)
        each, first = len(machines.parts), 2 * machines.network.first
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
        near_rows, far_rows = (
            rows._replace(
                links=self._shift(rows.links, np.repeat(here, size), np.repeat(there, size))
            )
            for rows, size in (
                (found.pick(found.start[which], head), head),
                (found.pick(found.start[which + 1] - tail, tail), tail),
            )
        )
        return join_rows(len(which), (all_, near_rows), (crosses, net), (all_, far_rows))

    def row(self, source: int, target: int, across: Callable[[Ints, Ints], RouteRows]) -> list[int]:
        """The links of one transfer; by lists, as arrays of one take three times as long."""
        machines = self.machines
        found = [link for link, _ in self._as_first(source, target)]
        here, there = source // machines.nodes, target // machines.nodes
        mine, first, each = 2 * machines.cables, 2 * machines.network.first, len(machines.parts)

        def shift(links: Sequence[int]) -> list[int]:
            return [link % mine + mine * (here if link < mine else there) for link in links]

        enter = next((i for i, link in enumerate(found) if link >= first), len(found))
        ports = [(link - first) // 2 for link in found[enter : enter + 2]]
        ends = [np.array([(here if port < each else there) * each + port % each]) for port in ports]
        middle = across(*ends).links.tolist() if ends else []
        return [*shift(found[:enter]), *middle, *shift(found[enter + 2 :])]

    def _of_first(self, source: Nodes, target: Nodes) -> tuple[Nodes, Nodes, Nodes, Nodes]:
        """The machines of transfers, and the same transfers within the first machine or from it to
        the second.
        """
        nodes = self.machines.nodes
        here, there = source // nodes, target // nodes
        return here, there, source % nodes, target % nodes + nodes * (here != there)

    def _shift(self, links: AnyInts, here: Ints, there: Ints) -> AnyInts:
        """Links of the first machine and the second, as those in the same place of machines `here`
        and `there`.
        """
        mine = 2 * self.machines.cables
        machine = links // max(mine, 1)
        return (links + mine * (np.where(machine == 0, here, there) - machine)).astype(np.int32)

    def _as_first(self, source: int, target: int) -> Sequence[tuple[int, float]]:
        """The links of the same transfer within the first machine, or from it to the second."""
        _, _, near, far = self._of_first(source, target)
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
    cut = SearchedNetwork(network.hosts, network.first, tuple(network.areas()))
    return replace(rule, network=cut) if isinstance(rule, EqualMachines) else cut
