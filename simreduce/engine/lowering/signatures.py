"""Ops that are alike in all but their size: each such group is a *call*, whose costs are
kept once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from simreduce.arrays import AnyInts, Ints, blocks
from simreduce.engine.runtime import Runtime
from simreduce.plan import Executor, Kind, Plan
from simreduce.plan.plan import IN_PLACE, NO_STREAM


class Signatures(NamedTuple):
    """Columns over calls: ops with the same signature belong to one call. The first call is that of
    ops that cost nothing.

    `source` and `target` are devices of the plan, or past them those of another machine. `channel`
    is -1 without a stream. `passes` is how many times its own size an op moves: a sum of n values
    reads n and writes one, a join reads and writes every byte once. `away` is the number of
    machines from the source to the target, if the machines are folded and something may queue for
    it.
    """

    executor: AnyInts
    kind: AnyInts
    source: AnyInts
    target: AnyInts
    channel: AnyInts
    passes: AnyInts
    away: AnyInts


_ONE: Ints = np.array([-1], dtype=np.int64)
"""A column that is the same for all ops."""
_FREE = Signatures(
    *np.array([[Executor.TF], [Kind.INPUT], [0], [0], [-1], [0], [0]], dtype=np.int64)
)


def group_ops(plan: Plan, runtime: Runtime) -> tuple[AnyInts, Signatures]:
    """The call of every op, and the signatures of the calls in ascending order."""
    queues = runtime.queues or bool(plan.executor.any())
    call = np.zeros(len(plan), dtype=np.int32)
    if queues or runtime.local or runtime.dispatch:
        ops = np.flatnonzero((plan.kind != Kind.CONCAT) | (plan.arg != IN_PLACE)).astype(np.int32)
        source = plan.source[ops]
    else:
        ops = np.flatnonzero(plan.kind == Kind.COPY).astype(np.int32)
        source = plan.device[plan.operands[plan.operand_start[ops]]]
    if not len(ops):
        return call, _FREE
    away = _away(plan, ops)
    heads = Signatures(
        executor=plan.executor[ops],
        kind=plan.kind[ops],
        source=source,
        target=plan.device[ops] + len(plan.devices) * (away > 0).astype(np.int32),
        channel=np.where(plan.stream == NO_STREAM, -1, plan.stream // len(plan.devices))[ops]
        if queues
        else _ONE,
        passes=_passes(plan)[ops] if runtime.local else _ONE,
        away=away if queues else _ONE,
    )
    which, distinct = _distinct(heads)
    call[ops] = which + 1
    return call, Signatures(*(np.concatenate(pair) for pair in zip(_FREE, distinct, strict=True)))


def _away(plan: Plan, ops: AnyInts) -> AnyInts:
    """The number of machines from the operand of each copy to the copy; 0 for other ops.

    A folded plan has one copy for each copy to another machine and one for each copy from another.
    They are as many and as large, so the first kind stands for both: the sender's way out, then the
    receiver's way in.
    """
    return np.where(plan.kind[ops] == Kind.COPY, plan.arg[ops], 0) if plan.machines > 1 else _ONE


def _passes(plan: Plan) -> Ints:
    """`passes` of every op."""
    return np.where(
        plan.kind == Kind.COPY, 1, np.where(plan.kind == Kind.CONCAT, 2, plan.operand_count + 1)
    )


def _distinct(rows: Signatures) -> tuple[AnyInts, Signatures]:
    """The place of each row among the distinct rows, and the distinct rows in ascending order. A
    column may hold one number that stands for all rows.
    """
    low = [int(column.min()) for column in rows]
    size = [int(column.max()) - least + 1 for column, least in zip(rows, low, strict=True)]
    narrow = math.prod(size) <= np.iinfo(np.int32).max
    length = max(len(column) for column in rows)
    key: AnyInts = np.zeros(length, dtype=np.int32 if narrow else np.int64)
    for column, least, many in zip(rows, low, size, strict=True):
        if many > 1:
            key *= many
            for some in blocks(length):
                part = column[some] if len(column) == length else column
                key[some] += (part - least).astype(key.dtype, copy=False)
    which: AnyInts
    if math.prod(size) > 4 * len(key) + (1 << 20):
        distinct, which = np.unique(key, return_inverse=True)
    else:
        which = np.zeros(math.prod(size), dtype=np.int32)
        which[key] = 1
        distinct = np.flatnonzero(which)
        which[distinct] = np.arange(len(distinct), dtype=np.int32)
        for some in blocks(length):
            key[some] = which[key[some]]
        which = key
    columns = []
    for least, many in zip(low[::-1], size[::-1], strict=True):
        columns.append(distinct % many + least)
        distinct = distinct // many
    return which, Signatures(*columns[::-1])
