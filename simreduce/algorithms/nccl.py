"""NCCL's ring all-reduce and broadcast, as TensorFlow launches them.

A collective starts when all participants have arrived. The tensor is shared out over the rings of
the layout; on every ring each GPU sends its chunks one after another. All-reduces of one
communicator run one after another, in the order of the tensors. `#k` is accepted and ignored, as
upstream does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from simreduce.algorithms.planner import Options, Results, Tensors
from simreduce.algorithms.ring import all_reduce_pieces
from simreduce.algorithms.rings import rings
from simreduce.layouts import Layout
from simreduce.plan import Executor, PlanBuilder, Value, Values


def nccl(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """One NCCL all-reduce over all ranks for every tensor."""
    orders = rings(layout, range(len(layout.ranks)))
    results: Results = []
    for tensor in tensors:
        before = results[-1] if results else []
        results.append(nccl_all_reduce(b, tensor, orders, before))
    return results


def nccl_all_reduce(
    b: PlanBuilder,
    values: Sequence[Value],
    orders: Sequence[Sequence[int]],
    before: Sequence[Value],
) -> list[Value]:
    """The sum of `values` on each one's device, by ascending device, after the results `before`."""
    if len(values) == 1:
        return list(values)
    launch = b.barrier(values[0].device, [v.op for v in (*values, *before)])
    mine = Values.of(sorted(values, key=lambda v: v.device))
    pieces = []
    with executed_by_nccl(b):
        parts = shares(mine, len(orders))
        for channel, (order, share) in enumerate(zip(orders, parts, strict=True)):
            position = np.searchsorted(mine.device, order)
            ring = all_reduce_pieces(b, share[position].reshape(1, -1), channel, after=[launch])
            pieces.append(ring[0, np.argsort(position)])
        return list(b.joins(Values.concatenate(pieces, axis=1)))


def shares(values: Values, parts: int) -> list[Values]:
    """Part i of every value, for each i."""
    cut = values.cut(parts)
    return [cut[..., i] for i in range(parts)]


def nccl_broadcast(b: PlanBuilder, value: Value, orders: Sequence[Sequence[int]]) -> list[Value]:
    """`value` on every device, by ascending device; each ring carries a share in n chunks."""
    n = len(orders[0])
    done: dict[int, list[Value]] = {device: [] for device in orders[0]}
    with executed_by_nccl(b):
        for channel, order in enumerate(orders):
            start = order.index(value.device)
            chain = [*order[start:], *order[:start]]
            lo, hi = _share(value, channel, len(orders))
            chunks = [
                value._replace(lo=lo + (hi - lo) * c // n, hi=lo + (hi - lo) * (c + 1) // n)
                for c in range(n)
            ]
            done[value.device].append(value._replace(lo=lo, hi=hi))
            # Chunk c makes hop h at tick c + h.
            for tick in range(2 * n - 2):
                for hop in range(max(0, tick - n + 1), min(tick + 1, n - 1)):
                    chunk = chunks[tick - hop]
                    stream = b.stream(chain[hop], channel)
                    target, bounds = chain[hop + 1], (chunk.lo, chunk.hi)
                    chunks[tick - hop] = b.copy(chunk, target, *bounds, stream=stream)
                    done[target].append(chunks[tick - hop])
        done[value.device] = [value]
        return [b.concat(done[device], in_place=True) for device in sorted(done)]


def _share(value: Value, channel: int, channels: int) -> tuple[int, int]:
    size = value.hi - value.lo
    return value.lo + size * channel // channels, value.lo + size * (channel + 1) // channels


@contextmanager
def executed_by_nccl(b: PlanBuilder) -> Iterator[None]:
    """Ops appended inside are NCCL's."""
    before, b.executor = b.executor, Executor.NCCL
    try:
        yield
    finally:
        b.executor = before
