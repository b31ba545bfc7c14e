"""When chunks make their hops: in every round every edge of every tree is busy with one chunk.

What one rank sends another goes over a few streams at once. So a chunk that is a large part of what
its pair sends in a round takes longer than a round, and is expected to: if later hops were planned
for the next round, transfers behind them in the same streams would wait for data that cannot be
there yet, and where two trees wait for each other so would all.
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


class Hop(NamedTuple):
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
    """By pair of ranks, how many streams it has: so many that some have the link while others wait
    for the latency of their next transfer. The more trees share a pair, the shorter their
    transfers; but more streams than it takes make the pipeline longer to fill. The numbers are what
    did best on the subsets of a DGX-1.
    """
    users = Counter(edge for tree in trees for edge in tree.edges)
    return Counter(
        {
            edge: 3 if count == 1 else 4 if count <= 3 else MOST_STREAMS
            for edge, count in users.items()
        }
    )


def timetable(trees: Sequence[SpanningTree], sizes: Sequence[int]) -> tuple[list[Hop], list[Sum]]:
    """Every hop and every sum of the first chunk of every tree, as early as it can be; `sizes` are
    those of chunks.
    """
    width, total = streams(trees), Counter[Edge]()
    for tree, size in zip(trees, sizes, strict=True):
        total.update(dict.fromkeys(tree.edges, size))
    hops: list[Hop] = []
    sums: list[Sum] = []
    for t, (tree, size) in enumerate(zip(trees, sizes, strict=True)):

        def rounds(edge: Edge, size: int = size) -> int:
            return max(1, math.ceil(width[edge] * size / max(1, total[edge]) - 1e-3))

        ready: dict[int, int] = {}
        children: dict[int, list[int]] = {}
        for child, parent in tree.up:
            hops.append(Hop(ready.setdefault(child, 0), t, child, parent, upwards=True))
            ready[parent] = max(ready.get(parent, 0), ready[child] + rounds((child, parent)))
            children.setdefault(parent, []).append(child)
        sums += [Sum(ready[rank], t, rank, tuple(below)) for rank, below in children.items()]
        for parent, child in tree.down:
            # What a rank hands out it has from its parent; what it had on the way up is of no
            # concern.
            start = ready.setdefault(parent, 0)
            hops.append(Hop(start, t, parent, child, upwards=False))
            ready[child] = start + rounds((parent, child))
    return hops, sums
