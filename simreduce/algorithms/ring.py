"""The textbook ring (Patarasuk and Yuan 2009): reduce-scatter, then all-gather, one chunk per rank.

2(n-1) steps of S/n: 2(n-1)(a + S/(nB)) when n divides the elements. Nothing is padded or copied locally: the
library works in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from simreduce.algorithms.planner import Options, Results, Tensors
from simreduce.layouts import Layout
from simreduce.plan import PlanBuilder, Value


def ring(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """Chunk c starts at rank c+1, is summed on its way to rank c, then goes round once more as it is."""
    order = [rank for task in layout.ring_tasks for rank in task]
    return [in_place(b, chunked_ring(b, tensor, order)) for tensor in tensors]


def chunked_ring(
    b: PlanBuilder,
    tensor: Mapping[int, Value] | Sequence[Value],
    order: Sequence[int],
    channel: int = 0,
    after: Sequence[int] = (),
) -> dict[int, list[Value]]:
    """By device, the chunks of the sum of `tensor[device]` over the devices of `order`, a ring on one channel.

    Every device sends its chunks one after another. The first sends wait for the ops `after`.
    """
    n, base = len(order), tensor[order[0]].lo
    size = tensor[order[0]].hi - base
    if n == 1:
        return {order[0]: [tensor[order[0]]]}
    bounds = pairwise(base + size * c // n for c in range(n + 1))
    # Views: cutting a tensor into chunks is no op.
    chunks = [tensor[order[(c + 1) % n]]._replace(lo=lo, hi=hi) for c, (lo, hi) in enumerate(bounds)]
    done: dict[int, list[Value]] = {device: [] for device in order}
    # Step by step, as each rank's port sends one chunk after another in program order.
    for step in range(2 * n - 2):
        for c, chunk in enumerate(chunks):
            target, stream = order[(c + 2 + step) % n], b.stream(chunk.device, channel)
            arrived = b.copy(chunk, target, chunk.lo, chunk.hi, stream=stream, after=() if step else after)
            chunks[c] = b.add([arrived, tensor[target]]) if step < n - 1 else arrived
            if step >= n - 2:
                done[target].append(chunks[c])
    return {device: sorted(pieces, key=lambda v: (v.lo, v.hi)) for device, pieces in done.items()}


def in_place(b: PlanBuilder, pieces: Mapping[int, Sequence[Value]]) -> list[Value]:
    """By ascending device, the value that its pieces make where they lie."""
    return [b.concat(pieces[device], in_place=True) for device in sorted(pieces)]
