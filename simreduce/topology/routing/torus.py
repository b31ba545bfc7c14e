"""Routes of tori by arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simreduce.computing.arrays import AnyInts, Ints, ranges, row_starts


@dataclass(frozen=True, slots=True)
class TorusRule:
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

    def bundled(self, links: int) -> None:
        """None: the paths of two transfers overlap in part."""

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
