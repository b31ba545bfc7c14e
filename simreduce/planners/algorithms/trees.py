"""Trees over the positions of a group: sums climb a tree, totals descend it.

A chunk moves on while the next one follows. Trees side by side take equal shares of the data. Each
edge is a stream of its own, so a node serves all its children at once; in a tree with `turns`, a
node serves its children one after another on one stream. Sums and totals take different channels,
so they do not wait for each other. Each family says what it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypedDict

import numpy as np

from simreduce.computing.arrays import Ints
from simreduce.plan import PlanBuilder, Values
from simreduce.planners.algorithms.planner import Collective, Knobs, chunk_count
from simreduce.planners.synthesis.trees import parents, second_tree


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Node 0 is the root, node v the child of `parent[v]`, at position `place[v]` of the group.
    With `turns`, a node sends to its highest child first and hears from its highest child last.
    """

    parent: Ints
    place: Ints
    turns: bool = False

    def levels(self) -> list[Ints]:
        """The nodes by depth from 1 on, ascending."""
        depth, ancestor = (self.parent != np.arange(len(self.parent))).astype(np.int64), self.parent
        for _ in range(len(depth).bit_length()):
            depth, ancestor = depth + depth[ancestor], ancestor[ancestor]
        order = np.argsort(depth, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)[1:]

    def sums(self, parent: Ints) -> Iterator[tuple[Ints, list[Ints]]]:
        """Yield what to add when a level has arrived at `parent`.

        Each item has some parents, and the arrivals that each of them adds. With `turns` a parent
        adds each as it comes, else all at once.
        """
        order = np.argsort(parent, kind="stable")
        parents, first, count = np.unique(parent[order], return_index=True, return_counts=True)
        for size in range(1, int(count.max()) + 1):
            those = count >= size if self.turns else count == size
            terms = range(size - 1, size) if self.turns else range(size)
            if those.any():
                yield parents[those], [order[first[those] + term] for term in terms]


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


Trees: TypeAlias = Callable[[int, int], Sequence[Tree]]
"""The trees over n positions from a root."""


class TreeCollectives(TypedDict):
    """What trees give a `Family`."""

    all_reduce: Collective
    reduce: Collective
    broadcast: Collective


def tree_collectives(
    rooted: Trees, free: Callable[[int], Sequence[Tree]] | None = None
) -> TreeCollectives:
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

    return TreeCollectives(all_reduce=all_reduce, reduce=reduce, broadcast=broadcast)


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


def _chain(n: int, root: int) -> list[Tree]:
    """From the root on, past the last position to the first."""
    node = np.arange(n)
    return [Tree(parent=np.maximum(node - 1, 0), place=(root + node) % n)]


CHAIN = tree_collectives(_chain)
"""The pipelined chain: every rank passes chunks on to its neighbour.

k chunks of S/k take (n-2+k)(a + S/(kB)) to the end of the chain, any n; the best chunk is sqrt(S a
B / (n-2)) and takes (sqrt((n-2)a) + sqrt(S/B))^2, nearly S/B. An all-reduce sums towards the first
rank and sends the total back, both at once: nearly 2 S/B, as every port between the ends carries S
twice.
"""


def _complete(n: int, root: int) -> list[Tree]:
    """The children of node v are 2v+1 and 2v+2, as in a heap."""
    node = np.arange(n)
    return [Tree(parent=np.maximum(node - 1, 0) // 2, place=(root + node) % n)]


BINARY_TREE = tree_collectives(_complete)
"""The pipelined binary tree: a complete tree, filled level by level, whose nodes serve both
children at once.

k chunks of S/k take (d-1+k)(a + 2S/(kB)) down a tree of depth d = floor(log2 n) in which every
inner node has two children (n = 2^(d+1) - 1); any other n takes no longer than the next of these.
With the best chunk a broadcast or a reduction is nearly 2 S/B, as a port carries S for each of two
children, and an all-reduce, both at once, nearly 3 S/B. The tree of Sanders, Speck and Traeff 2009,
section 2.
"""


def binomial(n: int, root: int = 0) -> Tree:
    """Nodes v to v + (lowest bit of v) - 1 are the subtree of v, as far as they exist."""
    node = np.arange(n)
    return Tree(parent=node & (node - 1), place=(root + node) % n, turns=True)


BINOMIAL_TREE = tree_collectives(lambda n, root: [binomial(n, root)])
"""The binomial tree: in every step each rank that has the data sends it to one that has not,
through a single port.

ceil(log2 n)(a + S/B) down, the same up, any n: node v hangs below v without its lowest bit, and
nodes from n on are left out. A node sends to its largest subtree first and hears from it last, so
that a step is never waited for.
"""


def _free(n: int) -> list[Tree]:
    return [Tree(parents(n), place) for place in (np.arange(n), second_tree(n))]


def _reroot(n: int, root: int) -> list[Tree]:
    places = np.arange(n), np.array([0, *(1 + second_tree(n - 1))])
    return [Tree(parents(n), (root + place) % n) for place in places]


DOUBLE_TREE = tree_collectives(_reroot, _free)
"""Two pipelined binary trees, half of the data each (Sanders, Speck and Traeff 2009), in NCCL's
form.

A rank with two children in one tree is a leaf of the other, so that no port carries more than S
down and S up: with the best chunk a broadcast or a reduction is nearly S/B, an all-reduce nearly 2
S/B, and the depth of a tree is about log2 n.

The odd nodes of the tree are leaves, the even ones have two children; node 0 is on top and has one.
An all-reduce puts the ranks into the second tree mirrored for even n, shifted by one for odd n
(where the first rank has one child in each tree). A root is on top of both trees, and what is below
it is mirrored or shifted, as NCCL does with all.
"""


def scatter_all_gather(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """Scatter the root's value down a binomial tree, then all-gather the parts.

    The node v places after the root gets part v of n and the parts of its subtree.

    Due to van de Geijn: (ceil(log2 n) + n-1) a + 2 (n-1)/n S/B when n divides the elements, any n.
    The subtree of node v is the next nodes, as far as they exist, and what they need is one
    interval. A rank's port ends its part of the scatter before the ring, in which it sends all
    parts but one.
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
