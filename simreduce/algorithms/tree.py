"""Trees that sums climb and totals descend, cut into chunks that follow each other: what every tree
family shares.

A chunk climbs on while the next one is being summed below it, and descends on while the next one
follows. Trees that work side by side take equal shares of the data. Each edge is a stream of its
own, so that a node serves all of its children at once; in a tree with `turns`, a node has one
stream for its children, a single port that serves them one after another. Sums and totals take
different channels, so that they do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from simreduce.algorithms.family import Knobs, chunk_count
from simreduce.algorithms.tree_shape import Tree
from simreduce.plan import PlanBuilder, Values


def all_reduce(b: PlanBuilder, values: Values, knobs: Knobs, trees: Sequence[Tree]) -> Values:
    """Sums climb to the root of each tree, and descend from there as they arrive."""
    if values.shape[1] == 1:
        return values
    parts = [
        down(b, up(b, given, tree, channel), tree, channel + 1)[..., np.argsort(tree.place)]
        for tree, given, channel in _shares(values, knobs, trees)
    ]
    return b.joins(Values.concatenate(parts, axis=1).swapaxes(1, 2))


def reduce(b: PlanBuilder, values: Values, knobs: Knobs, trees: Sequence[Tree]) -> Values:
    """Sums climb to the root of each tree, which is at one place."""
    if values.shape[1] == 1:
        return values
    parts = [
        up(b, given, tree, channel)[..., 0]
        for tree, given, channel in _shares(values, knobs, trees)
    ]
    return b.joins(Values.concatenate(parts, axis=1))[:, None]


def broadcast(b: PlanBuilder, values: Values, knobs: Knobs, trees: Sequence[Tree]) -> Values:
    """What the root gives descends each tree."""
    root, others = values[:, knobs.root, None], np.delete(np.arange(values.shape[1]), knobs.root)
    parts = [
        down(b, given, tree, channel + 1)[..., np.argsort(tree.place)[others]]
        for tree, given, channel in _shares(root.on(values.device), knobs, trees)
    ]
    made = b.joins(Values.concatenate(parts, axis=1).swapaxes(1, 2))
    return Values.concatenate([root, made], axis=1)[:, np.argsort([knobs.root, *others])]


def up(b: PlanBuilder, given: Values, tree: Tree, channel: int) -> Values:
    """By group, chunk and node: the sum over what the node and all below it gave."""
    held = given.made_by(given.op.copy())
    for node in reversed(tree.levels()):
        parent = tree.parent[node]
        stream = b.streams(held.device[..., parent if tree.turns else node], channel)
        arrived = b.copies(held[..., node], held.device[..., parent], stream=stream)
        for adder, terms in tree.sums(parent):
            held.op[..., adder] = b.adds(
                [held[..., adder], *(arrived[..., term] for term in terms)]
            ).op
    return held


def down(b: PlanBuilder, given: Values, tree: Tree, channel: int) -> Values:
    """By group, chunk and node: what the root gave."""
    held = given.made_by(given.op.copy())
    for level in tree.levels():
        node = level[::-1]
        parent = tree.parent[node]
        stream = b.streams(held.device[..., parent if tree.turns else node], channel)
        held.op[..., node] = b.copies(held[..., parent], held.device[..., node], stream=stream).op
    return held


def _shares(
    values: Values, knobs: Knobs, trees: Sequence[Tree]
) -> Iterator[tuple[Tree, Values, int]]:
    """Every tree with its share by group, chunk and node, and its channels: that for sums, and the
    next for totals.
    """
    shares = values.cut(len(trees))
    most = int(shares.elements.max(initial=0))
    chunks = chunk_count(most, knobs.chunk, shares.lo.size)
    for i, tree in enumerate(trees):
        yield tree, shares[:, tree.place, i].cut(chunks).swapaxes(1, 2), knobs.channel + 2 * i
