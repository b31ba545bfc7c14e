"""The shared parts of tree families: chunks whose sums climb a tree and whose totals descend it.

A chunk moves on while the next one follows. Trees side by side take equal shares of the data. Each
edge is a stream of its own, so a node serves all its children at once; in a tree with `turns`, a
node serves its children one after another on one stream. Sums and totals take different channels,
so they do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from simreduce.plan import PlanBuilder, Values
from simreduce.planners.algorithms.climb import down, up
from simreduce.planners.algorithms.family import Collective, Knobs, chunk_count
from simreduce.planners.algorithms.tree_shape import Tree

Trees: TypeAlias = Callable[[int, int], Sequence[Tree]]
"""The trees over n positions from a root."""


def collectives(
    rooted: Trees, free: Callable[[int], Sequence[Tree]] | None = None
) -> tuple[Collective, Collective, Collective]:
    """All-reduce, reduce and broadcast over the trees `rooted(n, root)`.

    An all-reduce uses the trees `free(n)` if `free` is given, else the trees of root 0. Sums climb,
    totals descend as they arrive.
    """

    def all_reduce(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
        n = values.shape[1]
        if n == 1:
            return values
        parts = [
            down(b, up(b, given, tree, channel), tree, channel + 1)[..., np.argsort(tree.place)]
            for tree, given, channel in _shares(values, knobs, free(n) if free else rooted(n, 0))
        ]
        return b.joins(Values.concatenate(parts, axis=1).swapaxes(1, 2))

    def reduce(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
        n = values.shape[1]
        if n == 1:
            return values
        shares = _shares(values, knobs, rooted(n, knobs.root))
        parts = [up(b, given, tree, channel)[..., 0] for tree, given, channel in shares]
        return b.joins(Values.concatenate(parts, axis=1))[:, None]

    def broadcast(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
        n, root = values.shape[1], values[:, knobs.root, None]
        others = np.delete(np.arange(n), knobs.root)
        shares = _shares(root.on(values.device), knobs, rooted(n, knobs.root))
        parts = [
            down(b, given, tree, channel + 1)[..., np.argsort(tree.place)[others]]
            for tree, given, channel in shares
        ]
        made = b.joins(Values.concatenate(parts, axis=1).swapaxes(1, 2))
        return Values.concatenate([root, made], axis=1)[:, np.argsort([knobs.root, *others])]

    return all_reduce, reduce, broadcast


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
