"""Trees over the positions of a group: sums climb a tree, totals descend it.

A chunk moves on while the next one follows. Trees side by side take equal shares of the data. Each
edge is a stream of its own, so a node serves all its children at once; in a tree with `turns`, a
node serves its children one after another on one stream. Sums and totals take different channels,
so they do not wait for each other. Each family says what it takes.

Others are packed into the graph at hand (Blink, Wang et al. 2020; ForestColl, Zhao et al. 2024):
every tree carries a share of the tensor in as many chunks: one, or as `options.chunk` says. Chunks
are summed up the tree and handed out down it, pipelined (`carry`). Where a GPU sends one
copy at a time (TensorFlow), a packing may reach half its rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from simreduce import dtypes
from simreduce.computing import grouped
from simreduce.computing.arrays import Ints
from simreduce.plan import Kind, PlanBuilder, Value, Values
from simreduce.plan.plan import NO_STREAM
from simreduce.planners.algorithms.planner import (
    Knobs,
    Options,
    Planner,
    Results,
    Tensors,
    check_chunks,
    chunk_count,
    plan_each,
)
from simreduce.planners.algorithms.ring import divide, over_rings
from simreduce.planners.layouts import Layout
from simreduce.planners.synthesis import rings, trees
from simreduce.planners.synthesis.rings import all_to_all_paths
from simreduce.planners.synthesis.trees import (
    MOST_STREAMS,
    ChunkHop,
    SpanningTree,
    Sum,
    assign_streams,
    mirror,
    parents,
    program_order,
    second_tree,
    timetable,
)


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


def tree_collectives(
    rooted: Callable[[int, int], Sequence[Tree]],
    free: Callable[[int], Sequence[Tree]] | None = None,
) -> dict[str, Any]:
    """All-reduce, reduce and broadcast over the trees `rooted(n, root)`, as a `Family` takes them.

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

    return {"all_reduce": all_reduce, "reduce": reduce, "broadcast": broadcast}


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


def _complete(children: int, n: int, root: int) -> list[Tree]:
    """From the root on, past the last position to the first; the `children` of a node as in a heap:
    of two, those of node v are 2v+1 and 2v+2.
    """
    node = np.arange(n)
    return [Tree(parent=np.maximum(node - 1, 0) // children, place=(root + node) % n)]


CHAIN = tree_collectives(partial(_complete, 1))
"""The pipelined chain: every rank passes chunks on to its neighbour.

k chunks of S/k take (n-2+k)(a + S/(kB)) to the end of the chain, any n; the best chunk is sqrt(S a
B / (n-2)) and takes (sqrt((n-2)a) + sqrt(S/B))^2, nearly S/B. An all-reduce sums towards the first
rank and sends the total back, both at once: nearly 2 S/B, as every port between the ends carries S
twice.
"""


BINARY_TREE = tree_collectives(partial(_complete, 2))
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


Load: TypeAlias = tuple[SpanningTree, int, int]
"""A tree and the elements [lo, hi) that it carries."""


def chunks(loads: Sequence[Load], most: int, dtype: int) -> int:
    """How many chunks to cut loads into: none over `most` bytes (0: no limit), none empty."""
    sizes = [hi - lo for _, lo, hi in loads]
    elements = max(1, most // dtypes.SIZES[dtype]) if most else max(*sizes, 1)
    return max(1, min(-(-max(sizes) // elements), (min(sizes) + 1) // 2))


def carry(b: PlanBuilder, own: Values, loads: Sequence[Load], chunks: int) -> Values:
    """Send `chunks` chunks of every load up and down its tree; rank r gives `own[r]`.

    By tree, rank and chunk, what the rank has in the end: by default what it gave.

    A device sends in the order of the rounds (`timetable`), over the least loaded of a few streams.
    The order keeps trees in step: fair sharing alone would let small shares run ahead and leave
    links idle at the end. While one stream waits for a latency, the others use the link. What only
    goes up does what a broadcast down the same trees does, reversed in time: the plan, not what it
    takes, as whatever is ready starts at once.
    """
    n = len(own)
    check_chunks(chunks, n * len(loads))
    bounds = np.array([_cut(lo, hi, chunks) for _, lo, hi in loads])
    sums_only = not any(tree.down for tree, _, _ in loads)
    trees = [tree.reverse() if sums_only else tree for tree, _, _ in loads]
    sizes = np.diff(bounds)
    hops, sums = timetable(trees, sizes[:, -1].tolist())
    turns = assign_streams(trees, hops, sizes)
    if sums_only:
        hops, sums = mirror(hops)
        turns, bounds = turns[::-1, ::-1], (bounds[:, :1] + bounds[:, -1:] - bounds)[:, ::-1]
    steps: list[Sum | ChunkHop] = [*sorted(sums, key=lambda s: len(s.children)), *hops]
    reads, last = _follow(steps)
    places = [(*s[:2], s.rank, s.rank) if isinstance(s, Sum) else s[:4] for s in steps]
    start, tree, giver, taker = np.array(places, dtype=np.int64).reshape(-1, 4).T[..., None]
    order = program_order(start, chunks)
    made = np.zeros((len(steps) + 1, chunks), dtype=np.int64)  # the last row is no step's
    made[:-1].reshape(-1)[order] = len(b) + np.arange(len(order))

    def ops_of(step: Ints, rank: Ints) -> Ints:
        """By chunk, the ops of steps; where it is -1, what the rank gave."""
        return np.where(step[..., None] < 0, own.op[rank][..., None], made[step])

    arity = np.array([len(each) for each in reads], dtype=np.int64)[:, None]
    width = max(map(len, reads), default=0)
    padded = np.array([[*each, *[-1] * (width - len(each))] for each in reads], dtype=np.int64)
    terms = ops_of(padded.reshape(len(steps), width), giver).swapaxes(1, 2)
    is_read = np.arange(width) < arity[order // chunks]
    stream = np.full((len(steps), chunks), NO_STREAM)
    channel = taker[len(sums) :] * MOST_STREAMS + turns
    stream[len(sums) :] = b.streams(own.device[giver[len(sums) :]], channel)
    kind = np.repeat([Kind.ADD, Kind.COPY], [len(sums), len(hops)])[:, None]
    cut = bounds[tree, :-1][:, 0], bounds[tree, 1:][:, 0]
    columns = kind, own.device[taker], *cut, own.dtype, 0, stream, b.executor, arity, 0
    b.append(
        [np.broadcast_to(each, stream.shape).reshape(-1)[order] for each in columns],
        operands=terms.reshape(len(order), width)[order][is_read],
        controls=np.zeros(0, dtype=np.int64),
    )
    tree, rank, chunk = np.indices((len(loads), n, chunks))
    ends = [[last.get((t, r), -1) for r in range(n)] for t in range(len(loads))]
    held = ops_of(np.array(ends), np.arange(n))
    return Values(held, own.device[rank], bounds[tree, chunk], bounds[tree, chunk + 1], own.dtype)


def _follow(steps: Sequence[Sum | ChunkHop]) -> tuple[list[list[int]], dict[tuple[int, int], int]]:
    """By step, those whose results it reads, and by tree and rank the one whose result it ends
    with: -1 or none where a rank has what it gave.
    """
    reads: list[list[int]] = [[] for _ in steps]
    held: dict[tuple[int, int], int] = {}
    came: dict[tuple[int, int], int] = {}  # by child, what it sent its parent on the way up
    for i in sorted(range(len(steps)), key=lambda i: steps[i].start):
        step = steps[i]
        if isinstance(step, Sum):
            below = (came[step.tree, child] for child in step.children)
            reads[i] = [held.get((step.tree, step.rank), -1), *below]
            held[step.tree, step.rank] = i
        else:
            reads[i] = [held.get((step.tree, step.source), -1)]
            if step.upwards:
                came[step.tree, step.source] = i
            else:
                held[step.tree, step.target] = i
    return reads, held


def _cut(lo: int, hi: int, chunks: int) -> Ints:
    """Edges of equal chunks, the first half as large so that streams never all wait at once."""
    half = np.maximum(2 * np.arange(chunks + 1) - 1, 0)
    return lo + (hi - lo) * half // (2 * chunks - 1)


FILLED = 0.98
"""Share of their rate that trees reach with the best chunk of a large tensor."""

Shares = Sequence[tuple[SpanningTree, float]]


def all_reduce(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """Every tree sums its share and hands it out; rings do, if as fast: they never idle."""
    network = layout.network()
    packing, circles = trees.all_reduce_trees(network), rings.ring_packing(network)
    ringed = rings.all_reduce_rate(layout.n, circles.rate) >= FILLED * packing.rate

    def one(tensor: Sequence[Value], _: int) -> Values:
        own = Values.of(tensor)
        cut = divide(packing.patterns, int(own.lo[0]), int(own.hi[0]))
        k = chunks(cut, options.chunk, own.dtype)
        if layout.n == 1 or (k > 1 and ringed):
            return own if layout.n == 1 else over_rings(b, own[None, :], circles.patterns)[0, :]
        return b.joins(carry(b, own, cut, k).swapaxes(0, 1).reshape(layout.n, -1))

    return plan_each(b, tensors, one)


def planner(collective: str) -> Planner:
    """The planner of a collective but all-reduce, whose trees hand out parts from their roots or
    sum them there: one part for the root, or one for each rank.
    """

    def plan(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
        shares = trees.PACKINGS[collective](layout.network(), options.root).patterns
        finish = _hand_out if collective in ("broadcast", "all_gather") else _sum_up

        def one(own: Values) -> list[Value]:
            parts = {
                "broadcast": own[options.root : options.root + 1],
                "all_gather": own,
                "reduce": own[:1],
                "reduce_scatter": own.cut(layout.n)[0, :],
            }[collective]
            return finish(b, own, parts, shares, options)

        return [one(Values.of(tensor)) for tensor in tensors]

    return plan


def _hand_out(
    b: PlanBuilder, own: Values, parts: Values, shares: Shares, options: Options
) -> list[Value]:
    """On every rank part i, which the i-th root has."""
    results = list(parts)
    for root, made in _carry(b, own, parts, shares, options):
        results += b.joins(made[np.arange(len(own)) != root])
    return results


def _sum_up(
    b: PlanBuilder, own: Values, parts: Values, shares: Shares, options: Options
) -> list[Value]:
    """On the i-th root the sum of part i."""
    if len(own) == 1:
        return list(parts)
    carried = _carry(b, own, parts, shares, options)
    return [b.joins(made[np.array([root])])[0] for root, made in carried]


def _carry(
    b: PlanBuilder, own: Values, parts: Values, shares: Shares, options: Options
) -> list[tuple[int, Values]]:
    """By root, what every rank has of its part, in pieces."""
    roots = list(dict.fromkeys(tree.root for tree, _ in shares))
    loads: list[Load] = []
    for root, part in zip(roots, parts[np.argsort(np.argsort(roots))], strict=True):
        loads += divide([each for each in shares if each[0].root == root], part.lo, part.hi)
    made = carry(b, own, loads, chunks(loads, options.chunk, own.dtype))
    root_of = np.array([tree.root for tree, _, _ in loads])
    return [(root, made[root_of == root].swapaxes(0, 1).reshape(len(own), -1)) for root in roots]


def all_to_all(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """Every rank sends every other its part, in shares, along paths over other ranks.

    It relays over other GPUs where that is faster, as store-and-forward networks do. Where some
    pairs have no link, as in a DGX-1, direct sends go through the hosts. Here the part for such a
    pair goes over GPUs that both are linked to, in shares of a best multicommodity flow
    (`synthesis.relays`), in chunks. On a DGX-1V every pair gets 3/8 of a link: 8/3 M/(nB) where B
    is the rate of one link.
    """
    shares = grouped(
        ((path.root, path.down[-1][1]), (path, share))
        for path, share in all_to_all_paths(layout.network()).patterns
    )

    def one(tensor: Sequence[Value], _: int) -> Values:
        own = Values.of(tensor)
        parts = own.cut(len(own))
        kept = parts[np.arange(len(own)), np.arange(len(own))]
        loads: list[Load] = []
        pairs: list[tuple[int, slice]] = []
        for (giver, taker), paths in shares.items():
            first, part = len(loads), parts[giver, taker]
            loads += divide(paths, int(part.lo), int(part.hi))
            pairs.append((taker, slice(first, len(loads))))
        if not loads:
            return kept
        made = carry(b, own, loads, chunks(loads, options.chunk, own.dtype))
        arrived = [
            b.joins(made[places, taker : taker + 1].swapaxes(0, 1).reshape(1, -1))
            for taker, places in pairs
        ]
        return Values.concatenate([kept, *arrived])

    return plan_each(b, tensors, one)
