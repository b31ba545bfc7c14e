"""Orders of nodes, each by the lowest groups of switches that its nodes are in.

Nodes of one such group are alike, and so are groups of equal shape below the same switches. Of
orders that differ in these only, one is canonical: it takes groups that are alike by number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from simreduce.topology.switch_groups import SwitchGroup

Leaves = tuple[int, ...]
"""An order of nodes by the lowest group of each."""


@dataclass(frozen=True)
class _Place:
    """A group in the tree: the one above it, the alike ones before it, and its number among the
    lowest ones, -1 if it is none of them.
    """

    above: int
    before: tuple[int, ...]
    leaf: int


class Orders:
    """Orders of some of the `free` nodes, by name, on a network."""

    def __init__(self, network: SwitchGroup, free: Sequence[str]) -> None:
        self.free = tuple(free)
        place, count = {name: i for i, name in enumerate(free)}, dict.fromkeys(free, 1)
        self._places: list[_Place] = []
        self.groups: list[SwitchGroup] = []
        """All groups with free nodes, those above before those below."""
        self._kinds: list[object] = []
        self.members: list[list[int]] = []
        """The free nodes of each lowest group, by number."""
        self._add(network, -1, (), place, count)

    def _add(
        self,
        group: SwitchGroup,
        above: int,
        before: tuple[int, ...],
        place: dict[str, int],
        count: dict[str, int],
    ) -> None:
        here = len(self._places)
        inside = sorted(place[name] for name in group.machines if name in place)
        self._places.append(_Place(above, before, -1 if group.parts else len(self.members)))
        self.groups.append(group)
        self._kinds.append(group.shape(count))
        if not group.parts:
            self.members.append(inside)
            return
        alike: dict[object, list[int]] = {}
        for part in group.parts:
            if any(name in place for name in part.machines):
                same = alike.setdefault(part.shape(count), []) if group.alike else []
                at = len(self._places)
                self._add(part, here, tuple(same), place, count)
                same.append(at)

    @cached_property
    def leaf_of(self) -> dict[int, int]:
        """The lowest group of each free node."""
        return {node: leaf for leaf, nodes in enumerate(self.members) for node in nodes}

    @cached_property
    def _below(self) -> list[list[int]]:
        """For each group, the groups right below it."""
        found: list[list[int]] = [[] for _ in self._places]
        for i, each in enumerate(self._places[1:], 1):
            found[each.above].append(i)
        return found

    @cached_property
    def paths(self) -> list[list[int]]:
        """For each lowest group, the groups that it is in, from below the top to itself."""
        found = []
        for i, each in enumerate(self._places):
            if each.leaf >= 0:
                path, at = [], i
                while at > 0:
                    path.append(at)
                    at = self._places[at].above
                found.append(path[::-1])
        return found

    def leaves(self, nodes: Sequence[int]) -> Leaves:
        """The lowest group of each node of an order."""
        return tuple(self.leaf_of[node] for node in nodes)

    def nodes(self, leaves: Leaves) -> tuple[int, ...]:
        """An order with these lowest groups: of each, the first nodes that are free."""
        left = [iter(members) for members in self.members]
        return tuple(next(left[leaf]) for leaf in leaves)

    def by_switch(self, nodes: Sequence[int]) -> tuple[int, ...]:
        """The nodes sorted by the switches they share."""
        return tuple(sorted(nodes, key=lambda node: (self.leaf_of[node], node)))

    def canonical(self, leaves: Leaves) -> Leaves:
        """The canonical order of those that differ in groups that are alike."""
        taken: dict[int, int] = {0: 0}
        used: set[int] = set()
        found = []
        for leaf in leaves:
            at = 0
            for group in self.paths[leaf]:
                if group not in taken:
                    kin = self._kin(group, at)
                    taken[group] = next(each for each in kin if each not in used)
                    used.add(taken[group])
                at = taken[group]
            found.append(self._places[at].leaf)
        return tuple(found)

    def _kin(self, group: int, above: int) -> list[int]:
        """The groups below `above` that a group may stand for: those of its shape, or, where parts
        are not alike, the one in its place.
        """
        mine = self._places[group].above
        below = self._below[above]
        if not self.groups[mine].alike:
            return [below[self._below[mine].index(group)]]
        return [i for i in below if self._kinds[i] == self._kinds[group]]

    def all(self, count: int) -> Iterator[Leaves]:
        """Every canonical order of `count` nodes, each once."""
        left = [len(members) for members in self.members]
        touched = [0] * len(self._places)
        chosen: list[int] = []

        def extend() -> Iterator[Leaves]:
            if len(chosen) == count:
                yield tuple(chosen)
                return
            for leaf, path in enumerate(self.paths):
                if left[leaf] and all(touched[at] or self._next(at, touched) for at in path):
                    left[leaf] -= 1
                    chosen.append(leaf)
                    for at in path:
                        touched[at] += 1
                    yield from extend()
                    for at in path:
                        touched[at] -= 1
                    chosen.pop()
                    left[leaf] += 1

        return extend()

    def _next(self, at: int, touched: Sequence[int]) -> bool:
        """Whether a group that no node is taken of is the first such of those alike."""
        return all(touched[each] for each in self._places[at].before)
