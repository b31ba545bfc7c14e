"""Trees that share a network and reach its best rate: for all-reduce, broadcast, reduce,
all-gather, reduce-scatter.

An all-reduce sums up a tree and broadcasts down a tree. Where paths are symmetric, one undirected
tree serves both directions and any rank may be its root; elsewhere every root has an in-tree and an
out-tree of the same share. Shares come from `packing`. The cheapest tree at given prices is a
spanning tree (Prim) or an arborescence (Edmonds), which proves that the packing is best for
transfers along the network's paths. Where paths are not symmetric and ranks are more than 16, the
packing is the best one found, and the narrowest cut is the bound.

Every search works on the network in canonical order, so the trees depend on no names and no order.

NCCL's double binary trees know no network: they go by the numbers of nodes.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from simreduce.computing import breadth_first, grouped
from simreduce.computing.arrays import Ints
from simreduce.errors import StrategyError
from simreduce.planners.synthesis import Edge, Network, way_to
from simreduce.planners.synthesis.optimum import broadcast, narrowest_cut
from simreduce.planners.synthesis.packing import (
    Packing,
    PackingProblem,
    arborescence,
    canonical,
    pack,
    spanning_tree,
)

_SEVERAL_ROOTS = 16
"""Up to this many ranks every rank is tried as the root at every price; beyond, trees are used in
both directions.
"""

_ROUNDS, _ROUNDS_UNPROVED = 3000, 200
"""How often better trees are looked for, where prices can prove that there are none and where they
cannot.
"""

_SHALLOW = 3
"""Trees of up to this depth are looked for besides the cheapest."""


@dataclass(frozen=True, slots=True)
class SpanningTree:
    """An in-tree and an out-tree of one root. `up` are edges (child, parent), children first;
    `down` are (parent, child), parents first. Either is () where the collective does not use it.
    """

    root: int
    up: tuple[Edge, ...]
    down: tuple[Edge, ...]

    @property
    def hops(self) -> int:
        """Transfers, one after another, on the longest path up and down."""
        ways = _turned(self.up), self.down
        return sum(max(_depths(way, self.root).values()) for way in ways)

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Every transfer."""
        return (*self.up, *self.down)

    def relabel(self, ranks: Sequence[int]) -> SpanningTree:
        """The same tree over other ranks: `ranks[r]` where this has r."""
        up, down = (tuple((ranks[a], ranks[b]) for a, b in edges) for edges in (self.up, self.down))
        return SpanningTree(ranks[self.root], up, down)

    def reverse(self) -> SpanningTree:
        """A reduction where this is a broadcast."""
        return SpanningTree(self.root, _turned(self.down), _turned(self.up))


Trees = Packing[SpanningTree]


def _turned(edges: Sequence[Edge]) -> tuple[Edge, ...]:
    """Edges the other way round, the last one first."""
    return tuple((b, a) for a, b in reversed(edges))


def _depths(down: Iterable[Edge], root: int) -> dict[int, int]:
    """How far each rank is below the root, by edges (parent, child), parents first."""
    depth = {root: 0}
    for parent, child in down:
        depth[child] = depth[parent] + 1
    return depth


@functools.lru_cache(maxsize=32)
def all_reduce_trees(network: Network) -> Trees:
    """Trees that sum at their root and broadcast from there; the rate is the sum of the shares.

    Of what is found in canonical order and in the reverse order, that with fewer hops for a byte
    counts if it has the same rate: the shallower trees are, the sooner their links are busy.
    """
    return min(
        (search_in_order(network, _all_reduce), search_in_order(network, _all_reduce, back=True)),
        key=lambda found: (-float(f"{found.rate:.9g}"), _hops(found)),
    )


@functools.lru_cache(maxsize=64)
def broadcast_trees(network: Network, root: int) -> Trees:
    """Trees from `root`; the rate is the sum of the shares."""
    return search_in_order(network, _broadcast, root)


@functools.lru_cache(maxsize=64)
def reduce_trees(network: Network, root: int) -> Trees:
    """Trees to `root`."""
    return broadcast_trees(network.reverse(), root).turned(SpanningTree.reverse)


@functools.lru_cache(maxsize=16)
def all_gather_trees(network: Network) -> Trees:
    """Trees from every rank; the rate is the sum of the shares of *one* root, the same for all."""
    return search_in_order(network, _all_gather)


@functools.lru_cache(maxsize=16)
def reduce_scatter_trees(network: Network) -> Trees:
    """Trees to every rank."""
    return all_gather_trees(network.reverse()).turned(SpanningTree.reverse)


def search_in_order(
    network: Network, search: Callable[[Network], Trees], root: int = -1, *, back: bool = False
) -> Trees:
    """Return the trees that `search` finds in canonical order, in which `root` is the first.

    With `back`, the order is reversed.
    """
    ordered, ranks = canonical(network, root)
    if back:
        paths = tuple(row[::-1] for row in ordered.paths[::-1])
        ordered, ranks = replace(ordered, paths=paths), ranks[::-1]
    return search(ordered).turned(lambda tree: tree.relabel(ranks))


def _hops(found: Trees) -> float:
    """Transfers one after another, in the mean over the bytes; rounded, as shares are."""
    return round(sum(share * tree.hops for tree, share in found.patterns) / found.rate, 6)


def _all_reduce(network: Network) -> Trees:
    either_way = network.symmetric or network.ranks > _SEVERAL_ROOTS
    every = range(network.ranks)
    price: Callable[..., Iterator[SpanningTree]] = (
        _both_ways if either_way else functools.partial(_rooted, roots=every, both=True)
    )
    # The cheapest undirected tree proves nothing of asymmetric paths; the narrowest cut still does.
    proved = network.symmetric or not either_way
    return _pack_trees(
        network,
        1,
        lambda _: 0,
        functools.partial(price, network),
        functools.partial(price, network, depths=range(1, _SHALLOW + 1)),
        bound=math.inf if proved else narrowest_cut(network),
        exact=proved,
    )


def _broadcast(network: Network) -> Trees:
    bound = broadcast(network, 0).rate if network.ranks > 1 else math.inf
    return _pack_outward(network, [0], list(_by_first_edges(network)), bound)


def _all_gather(network: Network) -> Trees:
    return _pack_outward(network, range(network.ranks))


def _by_first_edges(network: Network) -> Iterator[SpanningTree]:
    """Trees that leave rank 0 by one edge each: of a complete graph they are the best packing."""
    edges = [edge for edge in network.edges if edge[0] == 0]
    for edge in edges:
        dear = len(network.arcs) * max(network.capacity) / min(network.capacity)
        prices = [1.0 / c for c in network.capacity]
        for arc in network.load([other for other in edges if other != edge]):
            prices[arc] *= dear
        yield from _rooted(network, prices, [0], depths=[math.inf])


def _pack_outward(
    network: Network,
    roots: Sequence[int],
    seeds: Sequence[SpanningTree] = (),
    bound: float = math.inf,
) -> Trees:
    """Trees from 0 and the ranks after it, a group for each of these `roots`."""
    return _pack_trees(
        network,
        len(roots),
        lambda tree: tree.root,
        functools.partial(_rooted, network, roots=roots),
        functools.partial(_rooted, network, roots=roots, depths=range(1, 2 * _SHALLOW)),
        bound=bound,
        more=seeds,
    )


def _pack_trees(
    network: Network,
    groups: int,
    group: Callable[[SpanningTree], int],
    price: Callable[[Sequence[float]], Iterator[SpanningTree]],
    light: Callable[[Sequence[float]], Iterator[SpanningTree]],
    bound: float,
    *,
    exact: bool = True,
    more: Sequence[SpanningTree] = (),
) -> Trees:
    """`bound` is one of the rate that is known before; without `exact`, trees that `price` gives
    need not be the cheapest. `more` are trees to begin with.
    """
    if network.ranks == 1:
        return Packing(((SpanningTree(0, (), ()), 1.0),), math.inf, math.inf)
    seeds = list(price([1.0 / c for c in network.capacity]))
    if len({group(tree) for tree in seeds}) < groups:
        raise StrategyError(f"no trees were found that span these {network.ranks} GPUs")
    problem = PackingProblem(
        capacity=network.capacity,
        groups=groups,
        load=functools.cache(lambda tree: network.load(tree.edges)),
        group=group,
        # A chunk's journey is what pipelining has to fill, and the longest one counts; then fewer
        # arcs.
        weight=functools.cache(
            lambda tree: tree.hops**2 + 1e-3 * sum(network.load(tree.edges).values())
        ),
        price=price,
        exact=exact,
        bound=bound,
        rounds=_ROUNDS if exact else _ROUNDS_UNPROVED,
        light=light,
    )
    return pack(problem, [*seeds, *more])


def _both_ways(
    network: Network, prices: Sequence[float], depths: Sequence[float] = (math.inf,)
) -> Iterator[SpanningTree]:
    """Cheapest trees of at most some depths, used in both directions.

    They grow from every rank, so that some are shallow.
    """
    one_way, n = network.costs(prices), range(network.ranks)
    costs = [[one_way[u][v] + one_way[v][u] for v in n] for u in n]
    for start in n:
        for deepest in depths:
            edges = spanning_tree(costs, start, 1e-9 * max(prices), deepest)
            if edges is not None:
                yield _from_centre(edges)


def _from_centre(edges: Sequence[Edge]) -> SpanningTree:
    """The tree of these edges, rooted where it is least deep."""
    beside = grouped((*edges, *_turned(edges)))

    def search(start: int) -> dict[int, int]:
        return breadth_first(start, lambda vertex: sorted(beside[vertex]))

    before = search(list(search(min(beside)))[-1])
    path = way_to(before, list(before)[-1])
    root = min(path[(len(path) - 1) // 2], path[len(path) // 2])
    down = tuple((parent, child) for child, parent in search(root).items() if child != root)
    return SpanningTree(root, _turned(down), down)


def _rooted(
    network: Network,
    prices: Sequence[float],
    roots: Sequence[int],
    depths: Sequence[float] = (),
    *,
    both: bool = False,
) -> Iterator[SpanningTree]:
    """For each of `roots` a cheapest tree from it, and with `both` one to it; of at most some
    `depths`, if there are any, cheap trees.
    """
    costs, top = network.costs(prices), max(prices)
    ways = [costs, [list(column) for column in zip(*costs, strict=True)]] if both else [costs]
    for root in roots:
        for search in _searches(root, top, depths):
            found = [way for each in ways if (way := search(each)) is not None]
            if len(found) == len(ways):
                yield SpanningTree(root, _turned(found[1]) if both else (), tuple(found[0]))


def _searches(
    root: int, top: float, depths: Sequence[float]
) -> list[Callable[[Sequence[Sequence[float]]], list[Edge] | None]]:
    """For every depth a search for a cheap tree that is no deeper; else one for the cheapest."""
    return [
        functools.partial(spanning_tree, root=root, close=1e-9 * top, deepest=deepest)
        for deepest in depths
    ] or [functools.partial(_shallow, root=root, scale=top)]


def _shallow(costs: Sequence[Sequence[float]], root: int, scale: float) -> list[Edge] | None:
    """A cheapest arborescence that, of equally cheap edges, takes those that lead away from the
    root.
    """
    # Not networkx's: to make a graph of the table takes longer than this.
    before = breadth_first(root, lambda u: [v for v, x in enumerate(costs[u]) if x < math.inf])
    if len(before) < len(costs):
        return None
    far = _depths(((u, v) for v, u in before.items() if v != root), root)
    nudge = 1e-7 * scale
    nudged = [
        [cost + nudge * (far[u] - far[v] + 1) for v, cost in enumerate(row)]
        for u, row in enumerate(costs)
    ]
    return arborescence(nudged, root)


PACKINGS: Mapping[str, Callable[[Network, int], Trees]] = {
    "all_reduce": lambda network, _: all_reduce_trees(network),
    "broadcast": broadcast_trees,
    "reduce": reduce_trees,
    "all_gather": lambda network, _: all_gather_trees(network),
    "reduce_scatter": lambda network, _: reduce_scatter_trees(network),
}
"""By collective, the trees for it; the second argument is the root, where there is one."""


MOST_STREAMS = 6
"""Streams of a pair at most."""


class ChunkHop(NamedTuple):
    """A tree sends its first chunk from `source` to `target` in round `start`, and the next ones
    after it.
    """

    start: int
    tree: int
    source: int
    target: int
    upwards: bool


class Sum(NamedTuple):
    """In round `start`, before it is sent on, the first chunk is summed on `rank` with what came
    from `children`.
    """

    start: int
    tree: int
    rank: int
    children: tuple[int, ...]


def streams(trees: Sequence[SpanningTree]) -> dict[Edge, int]:
    """The number of streams of every pair of ranks, enough to hide the latency of one transfer
    behind others. The more trees share a pair, the shorter their transfers; but streams beyond need
    make the pipeline longer to fill. The numbers are the best ones on the subsets of a DGX-1.
    """
    users = Counter(edge for tree in trees for edge in tree.edges)
    return {
        edge: 3 if count == 1 else 4 if count <= 3 else MOST_STREAMS
        for edge, count in users.items()
    }


def timetable(
    trees: Sequence[SpanningTree], sizes: Sequence[int]
) -> tuple[list[ChunkHop], list[Sum]]:
    """Return every hop and every sum of the first chunk of every tree, as early as possible.

    `sizes` gives the size of a chunk, by tree.

    Every edge of every tree sends a chunk each round. One rank sends to another over a few streams
    at once. A chunk that is a large part of what its pair sends in a round therefore takes longer
    than a round, and the timetable gives it that time. If it did not, transfers behind it in the
    same streams would wait for data that cannot be there yet, and two trees that wait for each
    other would stop all. A reduction is a broadcast reversed in time (`mirror`).
    """
    width, total = streams(trees), Counter[Edge]()
    for tree, size in zip(trees, sizes, strict=True):
        total.update(dict.fromkeys(tree.edges, size))
    hops: list[ChunkHop] = []
    sums: list[Sum] = []
    for t, (tree, size) in enumerate(zip(trees, sizes, strict=True)):

        def rounds(edge: Edge, size: int = size) -> int:
            return max(1, math.ceil(width[edge] * size / max(1, total[edge]) - 1e-3))

        ready: dict[int, int] = {}
        for child, parent in tree.up:
            hops.append(ChunkHop(ready.setdefault(child, 0), t, child, parent, upwards=True))
            ready[parent] = max(ready.get(parent, 0), ready[child] + rounds((child, parent)))
        children = grouped((parent, child) for child, parent in tree.up)
        sums += [Sum(ready[rank], t, rank, tuple(below)) for rank, below in children.items()]
        for parent, child in tree.down:
            # A rank forwards what its parent sent, whenever it had its own sum.
            start = ready.setdefault(parent, 0)
            hops.append(ChunkHop(start, t, parent, child, upwards=False))
            ready[child] = start + rounds((parent, child))
    return hops, sums


def assign_streams(trees: Sequence[SpanningTree], hops: Sequence[ChunkHop], sizes: Ints) -> Ints:
    """Return, by hop and chunk, the stream of its pair that was sent the least before it.

    `sizes` gives the sizes of chunks, by tree and chunk.
    """
    sent = {edge: [0] * width for edge, width in streams(trees).items()}
    loads = [sent[hop.source, hop.target] for hop in hops]
    weights = [sizes[hop.tree].tolist() for hop in hops]
    chunks = sizes.shape[1]
    turns = [0] * (len(hops) * chunks)
    starts = np.array([hop.start for hop in hops], dtype=np.int64)
    for place in program_order(starts, chunks).tolist():
        hop, chunk = divmod(place, chunks)
        had = loads[hop]
        turns[place] = least = had.index(min(had))
        had[least] += weights[hop][chunk]
    return np.array(turns, dtype=np.int64).reshape(len(hops), chunks)


def program_order(starts: Ints, chunks: int) -> Ints:
    """The order of all chunks' steps by round, from the rounds of chunk 0: each chunk is a round
    behind the one before. Step s of chunk c is s * chunks + c.
    """
    return np.argsort(starts[:, None] + np.arange(chunks), axis=None, kind="stable")


def mirror(hops: Sequence[ChunkHop]) -> tuple[list[ChunkHop], list[Sum]]:
    """The sums up trees that take the hops of a broadcast backwards, the last one first: chunk c
    goes as chunk -1 - c of the broadcast went.
    """
    last = max((hop.start for hop in hops), default=0)
    back = [ChunkHop(last - h.start, h.tree, h.target, h.source, upwards=True) for h in hops[::-1]]
    sent = {(hop.tree, hop.source): hop.start for hop in back}
    children = grouped(((hop.tree, hop.target), hop.source) for hop in back)
    sums = [
        Sum(sent.get((tree, rank), last + 1), tree, rank, tuple(below))
        for (tree, rank), below in children.items()
    ]
    return back, sums


def parents(n: int) -> Ints:
    """The parent of each node of NCCL's binary tree, the root 0 its own.

    Node v has its lowest bit set, and the next one up instead of it in its parent; that one is
    not set if the parent would be n or more.
    """
    node = np.arange(n)
    bit = node & -node
    above = (node ^ bit) | (bit << 1)
    return np.where(above < n, above, node ^ bit)


def second_tree(n: int) -> Ints:
    """The places of the second tree's nodes: odd nodes are where even ones are in the first."""
    node = np.arange(n)
    return (node + 1) % n if n % 2 else node[::-1]


def double_tree(nodes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two binary trees of nodes as parents, -1 for the root: of an even number none has children in
    both. The second is the first mirrored, or shifted by one where the number is odd.
    """
    up = parents(nodes)

    def tree(place: Ints) -> tuple[int, ...]:
        found = np.full(nodes, -1)
        found[place[1:]] = place[up[1:]]
        return tuple(found.tolist())

    return tree(np.arange(nodes)), tree(second_tree(nodes))


def ring_text(network: Network, ring: Sequence[int]) -> str:
    """`gpu0 > gpu3 > gpu2 > gpu0`."""
    return " > ".join(network.names[rank] for rank in (*ring, ring[0]))


def tree_lines(network: Network, tree: SpanningTree) -> list[str]:
    """Return the tree as indented lines, its root first.

    A rank's children follow below it in rank order, two columns further right.
    """
    if not tree.up or {*_turned(tree.up)} == {*tree.down}:
        return _indent(network, tree.root, tree.down)
    return [
        "up:",
        *_indent(network, tree.root, _turned(tree.up)),
        *(["down:", *_indent(network, tree.root, tree.down)] if tree.down else []),
    ]


def _indent(network: Network, root: int, down: Sequence[Edge]) -> list[str]:
    lines: list[str] = []

    def write(rank: int, depth: int) -> None:
        lines.append("  " * depth + network.names[rank])
        for parent, child in sorted(down):
            if parent == rank:
                write(child, depth + 1)

    write(root, 0)
    return lines
