"""Routes that the structure of a network gives by arithmetic, many at a time.

Ways are given with the cables of a network and number its *ports*: port p belongs to node
`hosts[p]`, whose cable to its switch is cable `first + p`. A cable is two links, 2c from its first
end and 2c + 1 back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

Ints = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int32]
Nodes = TypeVar("Nodes", int, Ints)
"""One, or many."""


class Ways(Protocol):
    """`hosts` are places of nodes in their topology; `first` is the number of the cable of port 0."""

    @property
    def hosts(self) -> tuple[int, ...]: ...

    @property
    def first(self) -> int: ...

    def between(self, source: Ints, target: Ints) -> tuple[Ints, Ids]:
        """The links from port to port, as rows: where each begins (and the last ends), and all link
        ids.
        """

    def areas(self) -> Sequence[int]:
        """For each switch, the part of the network that it is in; a way leads through those of its
        two ends alone. Empty where the network has no such parts. The switches are the last nodes
        of their topology.
        """


def starts(count: npt.NDArray[Any]) -> Ints:
    """Where rows of these lengths begin, and where the last ends."""
    start = np.zeros(len(count) + 1, dtype=np.int64)
    np.cumsum(count, out=start[1:])
    return start


def places(start: Ints, count: npt.NDArray[Any]) -> Ints:
    """start[0], start[0]+1, ... (count[0] of them), then start[1], ..."""
    ends = np.cumsum(count)
    total = int(ends[-1]) if len(ends) else 0
    each = np.repeat(start - (ends - count), count)
    each += np.arange(total, dtype=np.int64)
    return each


@dataclass(frozen=True, slots=True)
class FatTreeWays:
    """Up to where both ends are below, and down again: port d as a destination takes the up-link d
    mod `spines` of its sender's leaf, and the up-link d / `spines` mod `cores` of that spine
    (D-mod-k: Zahavi 2012).

    `radix` ports are under each of the `leaves`; those left over are under the last. With `rails`,
    ports are numbered machine by machine, so many of each, and the i-th ports of `radix` machines
    share a leaf; d counts leaf by leaf. With `pod`, so many leaves have `spines` of their own, and
    every spine has a cable to each of `cores`, which join the pods; of these the first `large` are
    so, and those after them have one leaf fewer.

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

    def between(self, source: Ints, target: Ints) -> tuple[Ints, Ids]:
        """See `Ways`."""
        up = (2 * (self.first + source)).astype(np.int32)
        down = (2 * (self.first + target) + 1).astype(np.int32)
        moves = source != target
        if not self.spines and moves.all():
            return np.arange(0, 2 * len(up) + 1, 2), np.stack([up, down], axis=1).reshape(-1)
        (leaf, _), (other, number) = self.seat(source), self.seat(target)
        far = leaf != other
        apart = self.in_pod(leaf) != self.in_pod(other) if self.pod else np.zeros_like(far)
        start = starts(2 * moves + 2 * far + 2 * apart)
        begin, end = start[:-1], start[1:]
        links = np.empty(start[-1], dtype=np.int32)
        links[begin[moves]] = up[moves]
        links[end[moves] - 1] = down[moves]
        if self.spines:
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

    def areas(self) -> Sequence[int]:
        """None."""
        return ()

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
class DragonflyWays:
    """Minimal routing of a dragonfly (Kim et al. 2008): at most one local cable to the router that
    is linked to the other group, the global one, and at most one local cable there.

    `each` ports are at every router, those left over at the last; `routers` are in each of
    `groups`, every two of them linked. Two groups share `parallel` cables, of which port d as a
    destination takes number d mod `parallel`; global cable c between a group and the o-th after it
    (mod `groups`) is at router (c (groups - 1) + o - 1) mod `routers`.

    After the hosts' cables come the local ones, group by group and in each 0-1, 0-2, ..., 1-2, ...;
    then the global ones, for groups 0-1, 0-2, ... in the same way, `parallel` of each.
    """

    hosts: tuple[int, ...]
    each: int
    routers: int
    groups: int
    parallel: int
    first: int = 0

    def between(self, source: Ints, target: Ints) -> tuple[Ints, Ids]:
        """See `Ways`."""
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
        return starts(taken.sum(axis=1)), links[taken].astype(np.int32)

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
class TorusWays:
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

    def between(self, source: Ints, target: Ints) -> tuple[Ints, Ids]:
        """See `Ways`."""
        routers = int(np.prod(self.sizes))
        seats = (port // self.each for port in (source, target))
        here, there = (np.where(seat < routers, seat, 0) for seat in seats)
        hops = [self._hops(here, there, d) for d in range(len(self.sizes))]
        moves = source != target
        start = starts(2 * moves + sum(np.abs(hop) for hop in hops))
        links = np.empty(start[-1], dtype=np.int32)
        links[start[:-1][moves]] = 2 * (self.first + source[moves])
        links[start[1:][moves] - 1] = 2 * (self.first + target[moves]) + 1
        at, cable = start[:-1] + 1, self.first + len(self.hosts)
        for d, hop in enumerate(hops):
            count = np.abs(hop)
            links[places(at, count)] = self._links(d, cable, here, hop)
            stride, size = self._dimension(d)
            here = here + (there // stride % size - here // stride % size) * stride
            at = at + count
            cable += routers if size > 2 else routers // 2 * (size - 1)
        return start, links

    def areas(self) -> Sequence[int]:
        """None."""
        return ()

    def _dimension(self, d: int) -> tuple[int, int]:
        """How far apart neighbours are numbered, and how many there are."""
        return int(np.prod(self.sizes[:d])), self.sizes[d]

    def _hops(self, here: Ints, there: Ints, d: int) -> Ints:
        """How many steps forwards (above 0) or back."""
        stride, size = self._dimension(d)
        ahead = (there // stride - here // stride) % size
        return np.where(2 * ahead <= size, ahead, ahead - size)

    def _links(self, d: int, cable: int, router: Ints, hop: Ints) -> Ids:
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
        begin = places(np.zeros_like(count), count).astype(np.int32)
        begin *= sign
        begin += np.repeat(np.where(hop > 0, x, x - 1).astype(np.int32), count)
        begin += np.where(begin < 0, size, 0).astype(np.int32)
        begin -= np.where(begin >= size, size, 0).astype(np.int32)
        begin *= 2 * stride
        begin += np.repeat((2 * (cable + low) + (hop < 0)).astype(np.int32), count)
        return begin


@dataclass(frozen=True, slots=True)
class Copies:
    """`count` equal machines on a network. The `nodes` of each come machine by machine, then those
    of the network; the `cables` in each machine by machine, then those of the network, whose ports
    are numbered machine by machine too.

    A way between machines is the network's between two of their ports, and before and after it what
    the same transfer takes in the first machine and the second. `parts` says, of the ports of a
    machine, on which part of the network each is: ways lead between ports of one part only.
    """

    count: int
    nodes: int
    cables: int
    network: Ways
    parts: tuple[int, ...]

    def of_first(self, source: Nodes, target: Nodes) -> tuple[Nodes, Nodes, Nodes, Nodes]:
        """The machines of transfers, and the same transfers within the first machine or from it to
        the second.
        """
        here, there = source // self.nodes, target // self.nodes
        return here, there, source % self.nodes, target % self.nodes + self.nodes * (here != there)

    def rows(
        self, found: Sequence[Sequence[int]], which: Ints, here: Ints, there: Ints
    ) -> tuple[Ints, Ids]:
        """Ways from machines `here` to machines `there`, each like that one of `found` which
        `which` says.

        These are links of the first machine and the second, and where they cross the network the
        cables of two ports.
        """
        each, first = len(self.parts), 2 * self.network.first
        enter = np.array(
            [next((i for i, link in enumerate(row) if link >= first), -1) for row in found]
        )
        count = np.array([len(row) for row in found], dtype=np.int64)
        at = starts(count)
        table = np.array([link for row in found for link in row], dtype=np.int32)
        crosses = enter[which] >= 0
        begin = (at[:-1] + enter)[which[crosses]]
        out, into = ((table[begin + i] - first) // 2 for i in (0, 1))
        machine = np.stack([here[crosses], there[crosses]])
        # The ports of the found way are those of machines 0 and 1: of the first two that it names.
        ends = [
            np.where(port < each, machine[0], machine[1]) * each + port % each
            for port in (out, into)
        ]
        net = self.network.between(*(end.astype(np.int64) for end in ends))
        across = np.zeros(len(which), dtype=np.int64)
        across[crosses] = np.diff(net[0])
        head = np.where(crosses, enter[which], count[which])
        tail = np.where(crosses, count[which] - head - 2, 0)
        start = starts(head + across + tail)
        links = np.empty(start[-1], dtype=np.int32)
        for side, place, size in ((0, at[:-1][which], head), (1, at[1:][which] - tail, tail)):
            to = start[:-1] if side == 0 else start[1:] - tail
            links[places(to, size)] = self._moved(
                table[places(place, size)], np.repeat(here, size), np.repeat(there, size)
            )
        links[places((start[:-1] + head)[crosses], across[crosses])] = net[1]
        return start, links

    def row(self, found: Sequence[int], here: int, there: int) -> list[int]:
        """`rows` of a single way, for those who ask one by one."""
        mine, first, each = 2 * self.cables, 2 * self.network.first, len(self.parts)

        def moved(links: Sequence[int]) -> list[int]:
            return [link % mine + mine * (here if link < mine else there) for link in links]

        enter = next((i for i, link in enumerate(found) if link >= first), len(found))
        ports = [(link - first) // 2 for link in found[enter : enter + 2]]
        ends = [np.array([(here if port < each else there) * each + port % each]) for port in ports]
        across = self.network.between(*ends)[1].tolist() if ends else []
        return [*moved(found[:enter]), *across, *moved(found[enter + 2 :])]

    def _moved(self, links: Ids, here: Ints, there: Ints) -> Ids:
        """Links of the first machine and the second, as those in the same place of machines `here`
        and `there`.
        """
        machine = links // (2 * max(self.cables, 1))
        moved: Ids = (
            links + 2 * self.cables * (np.where(machine == 0, here, there) - machine)
        ).astype(np.int32)
        return moved


def ports(hosts: Sequence[int], nodes: int) -> Ints:
    """The port of every node, -1 for one that has none."""
    port = np.full(nodes, -1, dtype=np.int64)
    port[np.array(hosts, dtype=np.int64)] = np.arange(len(hosts))
    return port
