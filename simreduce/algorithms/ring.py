"""The textbook ring (Patarasuk and Yuan 2009): reduce-scatter, then all-gather, one chunk per rank.

2(n-1) steps of S/n: 2(n-1)(a + S/(nB)) when n divides the elements. Nothing is padded or copied locally, and the
result stays in its chunks, as in a library that works in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from simreduce.algorithms.planner import Options, Results, Tensors
from simreduce.layouts import Layout
from simreduce.plan import PlanBuilder, Value


def ring(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """Chunk c starts at rank c+1, is summed on its way to rank c, then goes round once more as it is."""
    if len(layout.ranks) == 1:
        return [[[tensor[0]]] for tensor in tensors]
    return [_one(b, tensor) for tensor in tensors]


def _one(b: PlanBuilder, tensor: Sequence[Value]) -> list[list[Value]]:
    n, base, size = len(tensor), tensor[0].lo, tensor[0].hi - tensor[0].lo
    bounds = pairwise(base + size * c // n for c in range(n + 1))
    # Views: cutting a tensor into chunks is no op.
    chunks = [tensor[(c + 1) % n]._replace(lo=lo, hi=hi) for c, (lo, hi) in enumerate(bounds)]
    done: list[list[Value]] = [[] for _ in tensor]
    # Step by step, as each rank's port sends one chunk after another in program order.
    for step in range(2 * n - 2):
        for c, chunk in enumerate(chunks):
            arrived = b.copy(chunk, (chunk.device + 1) % n, stream=b.stream(chunk.device))
            reducing = step < n - 1
            chunks[c] = b.add([arrived, tensor[arrived.device]]) if reducing else arrived
            if step >= n - 2:
                done[arrived.device].append(chunks[c])
    return [sorted(pieces, key=lambda v: (v.lo, v.hi)) for pieces in done]
