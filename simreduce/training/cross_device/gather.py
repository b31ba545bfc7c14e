"""All-gather of IndexedSlices, which CollectiveAllReduce uses instead of a sum.

TensorFlow 1.14 gathers the values, then the indices; every device must have the same number of
rows. TensorFlow 2 gathers the numbers of rows first; if they differ, it pads everything to the
largest, gathers, cuts and concatenates (cross_device_utils.py, `all_gather` and
`all_reduce_indexed_slices`).
"""

from __future__ import annotations

from collections.abc import Sequence

from simreduce import dtypes
from simreduce.errors import StrategyError
from simreduce.plan import PlanBuilder, Value
from simreduce.plan.plan import NO_STREAM
from simreduce.planners.algorithms.collective import rank_order
from simreduce.planners.algorithms.nccl import executed_by_nccl
from simreduce.planners.algorithms.nccl.paths import rings
from simreduce.planners.layouts import Layout
from simreduce.training.cross_device.one_device import slices_inputs
from simreduce.training.cross_device.value import PerDeviceSlices

_INT32 = dtypes.code("int32")


def gather_slices(
    b: PlanBuilder, layout: Layout, value: PerDeviceSlices, *, lengths: bool, nccl: bool
) -> list[list[Value]]:
    """[all rows, all indices] on every rank of `layout`.

    The ranks of `layout` are the devices of `value` in order.

    `lengths`: gather the numbers of rows first, and pad where they differ, as TensorFlow 2 does.
    """
    n, rows = layout.n, value.rows
    values, indices, _ = slices_inputs(b, value)
    if len(set(rows)) > 1 and not lengths:
        raise StrategyError(
            f"the devices have {', '.join(map(str, rows))} rows: TensorFlow 1.14 gathers"
            " IndexedSlices only where all have the same number; version 2.x pads them"
        )
    if lengths and n > 1:
        top = indices[-1].hi + value.dimensions
        known = _all_gather(
            b, layout, [b.input(r, top + r, top + r + 1, _INT32) for r in range(n)], nccl=nccl
        )
        waits = [[v.op for v in of_rank] for of_rank in known]
        values = [b.hold(v, wait) for v, wait in zip(values, waits, strict=True)]
        indices = [b.hold(v, wait) for v, wait in zip(indices, waits, strict=True)]
    all_values = _gather_padded(b, layout, values, max(rows) * value.row_elements, nccl=nccl)
    if nccl and n > 1:
        # NCCL's collectives must be launched in one order on every GPU.
        indices = [b.hold(v, [all_values[r].op]) for r, v in enumerate(indices)]
    all_indices = _gather_padded(b, layout, indices, max(rows), nccl=nccl)
    return [list(pair) for pair in zip(all_values, all_indices, strict=True)]


def _gather_padded(
    b: PlanBuilder, layout: Layout, values: Sequence[Value], size: int, *, nccl: bool
) -> list[Value]:
    """The concatenation of all `values` on every rank; they move padded to `size` elements."""
    if len({v.hi - v.lo for v in values}) == 1:
        return [
            b.concat(of_rank, in_place=True)
            for of_rank in _all_gather(b, layout, values, nccl=nccl)
        ]
    whole = [
        b.concat([v, b.zeros(v.device, v.hi, v.lo + size, v.dtype)]) if v.hi - v.lo < size else v
        for v in values
    ]
    results = []
    for of_rank in _all_gather(b, layout, whole, nccl=nccl):
        pairs = zip(of_rank, values, strict=True)
        cut = [b.slice(v, like.lo, like.hi) if v.hi > like.hi else v for v, like in pairs]
        results.append(b.concat(cut))
    return results


def _all_gather(
    b: PlanBuilder, layout: Layout, values: Sequence[Value], *, nccl: bool
) -> list[list[Value]]:
    """By rank, the values of all ranks, after n-1 steps round the ring."""
    n = layout.n
    if not nccl:
        return _round(b, values, [rank for task in rank_order(layout) for rank in task])
    orders = rings(layout, range(n))
    with executed_by_nccl(b, "simple", values) as launch:
        shares = [
            _round(b, [_share(v, channel, len(orders)) for v in values], order, channel, launch)
            for channel, order in enumerate(orders)
        ]

        def whole(rank: int, owner: int) -> Value:
            pieces = [share[rank][owner] for share in shares]
            return values[rank] if rank == owner else b.concat(pieces, in_place=True)

        return [[whole(rank, owner) for owner in range(n)] for rank in range(n)]


def _round(
    b: PlanBuilder,
    values: Sequence[Value],
    order: Sequence[int],
    channel: int | None = None,
    launch: Sequence[int] = (),
) -> list[list[Value]]:
    """One ring; with a channel, every rank sends its pieces in order, after `launch`."""
    n = len(order)
    held: list[dict[int, Value]] = [{rank: value} for rank, value in enumerate(values)]
    for step in range(n - 1):
        for at, rank in enumerate(order):
            owner, target = order[(at - step) % n], order[(at + 1) % n]
            piece = held[rank][owner]
            stream = NO_STREAM if channel is None else b.stream(rank, channel)
            after = () if step else launch
            held[target][owner] = b.copy(
                piece, target, piece.lo, piece.hi, stream=stream, after=after
            )
    return [[by_owner[owner] for owner in range(n)] for by_owner in held]


def _share(value: Value, channel: int, channels: int) -> Value:
    size = value.hi - value.lo
    lo, hi = (value.lo + size * c // channels for c in (channel, channel + 1))
    return value._replace(lo=lo, hi=hi)
