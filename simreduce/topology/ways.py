"""Routes that the structure of a network gives by arithmetic, many at a time.

Ways are given with the cables of a network and number its *ports*: port p belongs to node `hosts[p]`, whose cable to
its switch is cable `first + p`. A cable is two links, 2c from its first end and 2c + 1 back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

Ints = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int32]


class Ways(Protocol):
    """`hosts` are places of nodes in their topology; `first` is the number of the cable of port 0."""

    @property
    def hosts(self) -> tuple[int, ...]: ...

    @property
    def first(self) -> int: ...

    def between(self, source: Ints, target: Ints) -> tuple[Ints, Ids]:
        """The links from port to port, as rows: where each begins (and the last ends), and all link ids."""


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
    """Up to a spine and down again; port d as a destination takes spine d mod `spines`. Under one leaf, over the leaf.

    `radix` ports are under each of the `leaves`; those left over are under the last. After the hosts' cables come
    those from leaf 0 to every spine, then those from leaf 1, and so on. A single switch is a leaf without spines.
    """

    hosts: tuple[int, ...]
    radix: int
    leaves: int
    spines: int
    first: int = 0

    def between(self, source: Ints, target: Ints) -> tuple[Ints, Ids]:
        """See `Ways`."""
        up = (2 * (self.first + source)).astype(np.int32)
        down = (2 * (self.first + target) + 1).astype(np.int32)
        if not self.spines and not np.any(source == target):
            return np.arange(0, 2 * len(up) + 1, 2), np.stack([up, down], axis=1).reshape(-1)
        leaf, other = (np.minimum(port // self.radix, self.leaves - 1) for port in (source, target))
        moves, far = source != target, leaf != other
        start = starts(2 * moves + 2 * far)
        links = np.empty(start[-1], dtype=np.int32)
        links[start[:-1][moves]] = up[moves]
        links[start[1:][moves] - 1] = down[moves]
        if self.spines:
            spine, trunk = target[far] % self.spines, self.first + len(self.hosts)
            links[start[:-1][far] + 1] = 2 * (trunk + leaf[far] * self.spines + spine)
            links[start[:-1][far] + 2] = 2 * (trunk + other[far] * self.spines + spine) + 1
        return start, links


@dataclass(frozen=True, slots=True)
class TorusWays:
    """One dimension after the other, the shorter way round, forwards when both are as long.

    Router i is at x = i mod X, y = i / X mod Y, and so on, and has port i; the ports left over are at router 0. After
    the hosts' cables come those along x, from every router to the next, then those along y, and so on. A dimension of
    size 2 has a cable from 0 to 1 only, one of size 1 none.
    """

    hosts: tuple[int, ...]
    sizes: tuple[int, ...]
    first: int = 0

    def between(self, source: Ints, target: Ints) -> tuple[Ints, Ids]:
        """See `Ways`."""
        routers = int(np.prod(self.sizes))
        here, there = (np.where(port < routers, port, 0) for port in (source, target))
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
    """`count` equal machines on one switch. The `nodes` of each come machine by machine, then the switch; the `cables` in
    each machine by machine, then those of its `ports` to the switch.
    """

    count: int
    nodes: int
    cables: int
    ports: int

    def of_first(self, source: Ints, target: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """The machines of transfers, and the same transfers within the first machine or from it to the second."""
        here, there = source // self.nodes, target // self.nodes
        return here, there, source % self.nodes, target % self.nodes + self.nodes * (here != there)

    def moved(self, links: Ids, here: Ints, there: Ints) -> Ids:
        """Links of the first machine and the second, as those in the same place of machines `here` and `there`."""
        cable, inside = links // 2, self.count * self.cables
        machine = np.where(
            cable < inside, cable // max(self.cables, 1), (cable - inside) // max(self.ports, 1)
        )
        by = np.where(machine == 0, here, there) - machine
        moved: Ids = (links + 2 * np.where(cable < inside, self.cables, self.ports) * by).astype(np.int32)
        return moved


def ports(hosts: Sequence[int], nodes: int) -> Ints:
    """The port of every node, -1 for one that has none."""
    port = np.full(nodes, -1, dtype=np.int64)
    port[np.array(hosts, dtype=np.int64)] = np.arange(len(hosts))
    return port
