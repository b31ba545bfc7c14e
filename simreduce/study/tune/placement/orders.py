"""Orders of nodes, each by the lowest groups of switches that its nodes are in.

Nodes of one such group are alike, and so are groups of equal shape below the same switches. Of
orders that differ in these only, one is canonical: it takes groups that are alike by number.

An order takes at least what a plan moves out of each group of switches, at the group's rate. The
bytes between nodes are those of the plan for one order. Nodes are alike, so that the plan of
another order moves as much between the nodes in the same places.

On nodes that do not all share a switch, groups of an axis of a mesh are no longer alike: all run at
once, and the slowest counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

import numpy as np

from simreduce.computing.arrays import Floats, Ints, blocks
from simreduce.engine.setup import Setup
from simreduce.plan import Kind, Plan
from simreduce.planners.layouts import Layout
from simreduce.study.scenario import Meshes
from simreduce.topology.switch_groups import SwitchGroup
from simreduce.training.calls import CallCost
from simreduce.training.mesh.passes import Costs, Group
from simreduce.training.mesh.write import simulate_mesh

Leaves = tuple[int, ...]
"""An order of nodes by the lowest group of each."""


@dataclass(frozen=True)
class _Place:
    """A group in the tree: its `shape`, the alike groups before it, those right below it, and its
    number among the lowest ones, -1 if it is none of them.
    """

    group: SwitchGroup
    shape: object
    before: frozenset[int]
    leaf: int
    below: list[int] = field(default_factory=list)


class Orders:
    """Orders of some of the `free` nodes, by name, on a network."""

    def __init__(self, network: SwitchGroup, free: Sequence[str]) -> None:
        self._place, self._count = {name: i for i, name in enumerate(free)}, dict.fromkeys(free, 1)
        self.places: list[_Place] = []
        """All groups with free nodes, those above before those below."""
        self.members: list[list[int]] = []
        """The free nodes of each lowest group, by number."""
        self.paths: list[list[int]] = []
        """For each lowest group, the groups that it is in, from below the top to itself."""
        self._add(network, [], frozenset())

    def _add(self, group: SwitchGroup, path: Sequence[int], before: frozenset[int]) -> None:
        """Add a group, which is in those of a `path` from the top."""
        place, path = self._place, [*path, len(self.places)]
        here = _Place(
            group, group.shape(self._count), before, -1 if group.parts else len(self.members)
        )
        self.places.append(here)
        if not group.parts:
            self.members.append(sorted(place[name] for name in group.machines if name in place))
            self.paths.append(path[1:])
            return
        alike: dict[object, list[int]] = {}
        for part in group.parts:
            if any(name in place for name in part.machines):
                same = alike.setdefault(part.shape(self._count), []) if group.alike else []
                at = len(self.places)
                self._add(part, path, frozenset(same))
                here.below.append(at)
                same.append(at)

    @cached_property
    def leaf_of(self) -> dict[int, int]:
        """The lowest group of each free node."""
        return {node: leaf for leaf, nodes in enumerate(self.members) for node in nodes}

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
            above = at = 0
            for group in self.paths[leaf]:
                if group not in taken:
                    taken[group] = next(
                        each for each in self._kin(group, above, at) if each not in used
                    )
                    used.add(taken[group])
                above, at = group, taken[group]
            found.append(self.places[at].leaf)
        return tuple(found)

    def _kin(self, group: int, above: int, other: int) -> list[int]:
        """The groups below another than the one `above` that a group may stand for: those of its
        shape, or, where parts are not alike, the one in its place.
        """
        mine, theirs = self.places[above], self.places[other].below
        if not mine.group.alike:
            return [theirs[mine.below.index(group)]]
        return [i for i in theirs if self.places[i].shape == self.places[group].shape]

    def all(self, count: int) -> Iterator[Leaves]:
        """Every canonical order of `count` nodes, each once."""
        left = [len(members) for members in self.members]

        def extend(chosen: Leaves, taken: frozenset[int]) -> Iterator[Leaves]:
            """Orders that begin with some leaves, which are in the groups `taken`."""
            if len(chosen) == count:
                yield chosen
                return
            for leaf, path in enumerate(self.paths):
                new = () if leaf in chosen else path
                # Of alike groups that no node is taken of, only the first is next.
                if left[leaf] and all(at in taken or taken >= self.places[at].before for at in new):
                    left[leaf] -= 1
                    yield from extend((*chosen, leaf), taken.union(new) if new else taken)
                    left[leaf] += 1

        return extend((), frozenset())


_AT_ONCE = 1 << 22
"""Numbers that are worked on at once."""


def bytes_between(plan: Plan, layout: Layout) -> Floats:
    """The bytes that a plan moves from each node of the layout to each other, by their places.

    What goes to switches that sum is left out.
    """
    count = len(layout.tasks)
    node = {layout.ranks[rank]: i for i, task in enumerate(layout.tasks) for rank in task}
    node |= {host: i for i, host in enumerate(layout.hosts) if host}
    at = np.array([node.get(name, -1) for name in plan.devices])
    found = np.zeros(count * count)
    source = plan.source
    for some in blocks(len(plan)):
        a, b = at[source[some]], at[plan.device[some]]
        moves = (plan.kind[some] == Kind.COPY) & (a >= 0) & (b >= 0) & (a != b)
        size = plan.sizes(some)[moves].astype(np.float64)
        found += np.bincount((a * count + b)[moves], size, minlength=count * count)
    return found.reshape(count, count)


class Cuts:
    """Bounds in seconds of orders of nodes, by the bytes that leave groups of switches."""

    def __init__(self, orders: Orders, moved: Floats) -> None:
        rates = [place.group.rate for place in orders.places]
        finite = [i for i, rate in enumerate(rates) if i and 0 < rate < inf]
        self._inside = np.zeros((len(orders.members), len(finite)))
        for leaf, path in enumerate(orders.paths):
            self._inside[leaf, [finite.index(at) for at in path if at in finite]] = 1.0
        self._rates = np.array([rates[i] for i in finite])
        self._moved, self._both = moved, moved + moved.T
        self._out, self._into = moved.sum(axis=1), moved.sum(axis=0)

    def seconds(self, some: Sequence[Leaves]) -> tuple[Floats, Floats]:
        """For each order the bound, by its busiest cut, and the mean over all cuts."""
        if not len(self._rates) or not some:
            return np.zeros(len(some)), np.zeros(len(some))
        step = max(_AT_ONCE // (self._inside.shape[1] * len(some[0])), 1)
        parts = [self._some(np.array(some[i : i + step])) for i in range(0, len(some), step)]
        longest, mean = (np.concatenate(each) for each in zip(*parts, strict=True))
        return longest, mean

    def steps(self, at: Leaves, one: Ints, other: Ints, leaf: Ints) -> tuple[Floats, Floats]:
        """As `seconds`, for orders a step from `at`: the node in the place `one` moves to a lowest
        group, and the one in the place `other` (-1 for none) takes its place.
        """
        if not len(self._rates):
            return np.zeros(len(one)), np.zeros(len(one))
        inside = self._inside[np.array(at)]
        near = self._both @ inside
        stays = np.einsum("pc,pc->c", inside, self._moved @ inside)
        by, is_swap = self._inside[leaf] - inside[one], (other >= 0)[:, None]
        new = stays + by * (near[one] - is_swap * near[other])
        new -= by**2 * (is_swap[:, 0] * self._both[one, other])[:, None]
        sides = [
            each @ inside + by * (each[one][:, None] - is_swap * each[other][:, None])
            for each in (self._out, self._into)
        ]
        seconds = (np.maximum(*sides) - new) / self._rates
        return seconds.max(axis=1), seconds.mean(axis=1)

    def _some(self, leaves: Ints) -> tuple[Floats, Floats]:
        inside = self._inside[leaves]  # order, place, cut
        stays = np.einsum("opc,opc->oc", inside, self._moved @ inside)
        out, into = (np.einsum("opc,p->oc", inside, each) for each in (self._out, self._into))
        seconds = (np.maximum(out, into) - stays) / self._rates
        return seconds.max(axis=1), seconds.mean(axis=1)


@dataclass
class _AllGroups(Costs):
    """Costs where the slowest group counts; `moved` sums the bytes between nodes of one call of
    each kind.
    """

    moved: list[Floats] = field(default_factory=list)

    def _beside(self, group: Group, groups: Sequence[Group]) -> list[Group]:
        return [group, *(each for each in groups if each != group)]

    def _alike(self, axis: str, stage: int) -> int:  # noqa: ARG002 - stages lie on other nodes
        return stage

    def _together(self, plans: list[Plan]) -> CallCost:
        layout = self.setup.layout
        self.moved += [bytes_between(plan, layout) for plan in plans]
        return super()._together(plans)


def mesh_seconds(asked: Meshes, setup: Setup) -> float:
    """Seconds of the step of the first mesh on the nodes of a setup."""
    return simulate_mesh(asked.job, _AllGroups(setup, asked.job.mesh)).seconds


def mesh_bytes(asked: Meshes, setup: Setup) -> Floats:
    """The bytes that calls of a mesh move between nodes, one of each kind: what a search swaps
    nodes by, and no bound.
    """
    costs = _AllGroups(setup, asked.job.mesh)
    simulate_mesh(asked.job, costs)
    count = len(setup.layout.tasks)
    return sum(costs.moved, np.zeros((count, count)))
