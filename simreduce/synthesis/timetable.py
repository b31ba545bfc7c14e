"""The rounds in which chunks make their hops: every edge of every tree sends a chunk each round.

One rank sends to another over a few streams at once. A chunk that is a large part of what its pair
sends in a round therefore takes longer than a round, and the timetable gives it that time. If it
did not, transfers behind it in the same streams would wait for data that cannot be there yet, and
two trees that wait for each other would stop all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from simreduce.synthesis.network import Edge
from simreduce.synthesis.trees import SpanningTree

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
    """Every hop and every sum of the first chunk of every tree, as early as it can be; `sizes` are
    those of chunks.
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
