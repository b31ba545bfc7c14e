"""Routes of dragonflies by arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simreduce.computing.arrays import AnyInts, Ints, row_starts


@dataclass(frozen=True, slots=True)
class DragonflyRule:
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

    def bundled(self, links: int) -> None:
        """None: cables of two groups are at routers of their own."""

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
