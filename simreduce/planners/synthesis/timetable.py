"""The rounds in which chunks make their hops: every edge of every tree sends a chunk each round.

One rank sends to another over a few streams at once. A chunk that is a large part of what its pair
sends in a round therefore takes longer than a round, and the timetable gives it that time. If it
did not, transfers behind it in the same streams would wait for data that cannot be there yet, and
two trees that wait for each other would stop all.

A reduction is a broadcast reversed in time (`mirror`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simreduce.computing.arrays import Ints
from simreduce.planners.synthesis.network import Edge
from simreduce.planners.synthesis.trees import SpanningTree

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


def streams(trees: Sequence[SpanningTree]) -> Counter[Edge]:
    """The number of streams of every pair of ranks, enough to hide the latency of one transfer
    behind others. The more trees share a pair, the shorter their transfers; but streams beyond need
    make the pipeline longer to fill. The numbers are the best ones on the subsets of a DGX-1.
    """
    users = Counter(edge for tree in trees for edge in tree.edges)
    return Counter(
        {
            edge: 3 if count == 1 else 4 if count <= 3 else MOST_STREAMS
            for edge, count in users.items()
        }
    )


def timetable(
    trees: Sequence[SpanningTree], sizes: Sequence[int]
) -> tuple[list[ChunkHop], list[Sum]]:
    """Return every hop and every sum of the first chunk of every tree, as early as possible.

    `sizes` gives the size of a chunk, by tree.
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
        children: dict[int, list[int]] = {}
        for child, parent in tree.up:
            hops.append(ChunkHop(ready.setdefault(child, 0), t, child, parent, upwards=True))
            ready[parent] = max(ready.get(parent, 0), ready[child] + rounds((child, parent)))
            children.setdefault(parent, []).append(child)
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
    children: dict[tuple[int, int], list[int]] = {}
    for hop in back:
        children.setdefault((hop.tree, hop.target), []).append(hop.source)
    sums = [
        Sum(sent.get((tree, rank), last + 1), tree, rank, tuple(below))
        for (tree, rank), below in children.items()
    ]
    return back, sums
