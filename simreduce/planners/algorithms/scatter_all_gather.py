"""Broadcast by scattering and gathering (van de Geijn): a binomial tree deals out one part per
rank, a ring collects.

(ceil(log2 n) + n-1) a + 2 (n-1)/n S/B when n divides the elements, any n: the subtree of node v is
the next nodes, as far as they exist, and what they need is one interval. A rank's port ends its
part of the scatter before the ring, in which it sends all parts but one.
"""

from __future__ import annotations

import numpy as np

from simreduce.computing.arrays import Ints
from simreduce.plan import PlanBuilder, Values
from simreduce.planners.algorithms.binomial_tree import binomial
from simreduce.planners.algorithms.family import Knobs
from simreduce.planners.algorithms.tree_shape import Tree


def broadcast(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """Scatter the root's value down a binomial tree, then all-gather the parts.

    The node v places after the root gets part v of n and the parts of its subtree.
    """
    tree = binomial(values.shape[1], knobs.root)
    dealt = _scatter(b, values[:, knobs.root], values[:, tree.place], tree, knobs.channel)
    parts = _collect(b, dealt, knobs.channel)
    return _join_parts(b, dealt, parts)[:, np.argsort(tree.place)]


def _scatter(b: PlanBuilder, given: Values, nodes: Values, tree: Tree, channel: int) -> Values:
    """By node: the parts of its subtree in one piece."""
    n = nodes.shape[1]
    op, part = np.repeat(given.op[:, None], n, axis=1), given.cut(n)
    held = Values(op, nodes.device, part.lo, part.hi[:, np.arange(n) + _size(n) - 1], nodes.dtype)
    for level in tree.levels():
        node = level[::-1]  # large subtrees first
        sent = held[:, tree.parent[node]].view(held.lo[:, node], held.hi[:, node])
        stream = b.streams(sent.device, channel)
        op[:, node] = b.copies(sent, held.device[:, node], stream=stream).op
    return held


def _collect(b: PlanBuilder, dealt: Values, channel: int) -> Values:
    """By node and part: every part as it came round the ring."""
    n = dealt.shape[1]
    part, whole = np.arange(n), dealt[:, 0]
    cut = whole.cut(n)
    steps = [dealt.view(cut.lo, cut.hi)]
    for step in range(1, n):
        sent = steps[-1]
        target = dealt.device[:, (part + step) % n]
        steps.append(b.copies(sent, target, stream=b.streams(sent.device, channel)))
    return Values.stack(steps, axis=1)[:, (part[:, None] - part) % n, part]


def _join_parts(b: PlanBuilder, dealt: Values, parts: Values) -> Values:
    """By node: what was dealt to it, between the parts before and after. Nodes with subtrees of one
    size join as many.
    """
    n, op = dealt.shape[1], dealt.op.copy()
    size = _size(n)
    for of in np.unique(size[1:]):
        node, i = np.flatnonzero(size == of)[:, None], np.arange(n - of + 1)
        joined = parts[:, node, i + (of - 1) * (i > node)]
        own = np.broadcast_to(i == node, joined.shape)
        mine = dealt[:, node]
        whole = joined.with_ops(np.where(own, mine.op, joined.op)).view(
            joined.lo, np.where(own, mine.hi, joined.hi)
        )
        op[:, node[:, 0]] = b.joins(whole).op
    op, lo, hi = np.broadcast_arrays(op, dealt.lo[:, :1], dealt.hi[:, :1])
    return Values(op, dealt.device, lo, hi, dealt.dtype)


def _size(n: int) -> Ints:
    """The nodes of each subtree, down from its root: v to v + (lowest bit of v) - 1."""
    node = np.arange(n)
    return np.concatenate([[n], np.minimum(node & -node, n - node)[1:]])
