"""Bounds of orders of nodes: what a plan moves out of each group of switches, at the group's rate.

The bytes between nodes are those of the plan for one order. Nodes are alike, so that the plan of
another order moves as much between the nodes in the same places.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from simreduce.computing.arrays import Floats, Ints, blocks
from simreduce.plan import Kind, Plan
from simreduce.planners.layouts import Layout
from simreduce.study.tune.placement.orders import Leaves, Orders

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
        finite = [i for i, group in enumerate(orders.groups) if i and 0 < group.rate < inf]
        self._inside = np.zeros((len(orders.members), len(finite)))
        for leaf, path in enumerate(orders.paths):
            self._inside[leaf, [finite.index(at) for at in path if at in finite]] = 1.0
        self._rates = np.array([orders.groups[i].rate for i in finite])
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
        sides = []
        for each in (self._out, self._into):
            change = each[one][:, None] - is_swap * each[other][:, None]
            sides.append(each @ inside + by * change)
        seconds = (np.maximum(*sides) - new) / self._rates
        return seconds.max(axis=1), seconds.mean(axis=1)

    def _some(self, leaves: Ints) -> tuple[Floats, Floats]:
        inside = self._inside[leaves]  # order, place, cut
        stays = np.einsum("opc,opc->oc", inside, self._moved @ inside)
        out, into = (np.einsum("opc,p->oc", inside, each) for each in (self._out, self._into))
        seconds = (np.maximum(out, into) - stays) / self._rates
        return seconds.max(axis=1), seconds.mean(axis=1)
