"""Sums climb a tree, totals descend it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from simreduce.computing.arrays import Ints
from simreduce.plan import PlanBuilder, Values
from simreduce.planners.algorithms.tree_shape import Tree

Send: TypeAlias = Callable[[Values, Ints, Ints, Sequence[int]], Values]
"""Copies of values to devices over the edges above some nodes, after some ops; in the place of one
stream for each edge.
"""


def up(
    b: PlanBuilder,
    given: Values,
    tree: Tree,
    channel: int,
    after: Sequence[int] = (),
    send: Send | None = None,
) -> Values:
    """By group, chunk and node: the sum over it and all below it, sent after the ops `after`."""
    held = given.with_ops(given.op.copy())
    for node in reversed(tree.levels()):
        parent = tree.parent[node]
        to = held.device[..., parent]
        if send is None:
            stream = b.streams(held.device[..., parent if tree.turns else node], channel)
            come = b.copies(held[..., node], to, stream=stream, after=after)
        else:
            come = send(held[..., node], to, node, after)
        for adder, terms in tree.sums(parent):
            held.op[..., adder] = b.adds([held[..., adder], *(come[..., t] for t in terms)]).op
    return held


def down(
    b: PlanBuilder, given: Values, tree: Tree, channel: int, send: Send | None = None
) -> Values:
    """By group, chunk and node: what the root gave."""
    held = given.with_ops(given.op.copy())
    for level in tree.levels():
        node = level[::-1]
        parent = tree.parent[node]
        to = held.device[..., node]
        if send is None:
            stream = b.streams(held.device[..., parent if tree.turns else node], channel)
            come = b.copies(held[..., parent], to, stream=stream)
        else:
            come = send(held[..., parent], to, node, ())
        held.op[..., node] = come.op
    return held
