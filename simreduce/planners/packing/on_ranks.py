"""Packs and unpacks on all ranks: the same ops on every rank are planned once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from simreduce.computing.arrays import Bools, Ints
from simreduce.plan import PlanBuilder, Value, ValueTable
from simreduce.plan.intervals import OpInterval
from simreduce.planners.packing.arrangement import Arrangement, GradientSpan, pack, unpack

Fields = Sequence[Sequence[GradientSpan]]


def pack_all(b: PlanBuilder, ranks: int, arrangement: Arrangement, fields: Fields) -> ValueTable:
    """The tensors to reduce, made on every rank from its own gradients."""
    dtypes = {field.dtype for group in fields for field in group}
    if not arrangement.is_bare or len(dtypes) != 1:
        given = ValueTable.empty(ranks)
        return on_each(b, given, lambda rank, _: pack(b, rank, arrangement, fields))
    lo, hi = (np.array([each[i] for (each,) in fields], dtype=np.int64) for i in (0, 1))
    device = np.repeat(np.arange(ranks)[:, None], len(fields), axis=1)
    return ValueTable.stacked(b.inputs(device, lo, hi, *dtypes).swapaxes(0, 1))


def unpack_all(
    b: PlanBuilder, arrangement: Arrangement, results: ValueTable, fields: Fields
) -> ValueTable:
    """Per gradient in address order, its result on every rank; row i of `results` is tensor i."""
    if arrangement.is_bare:
        size = np.array([each.hi - each.lo for (each,) in fields], dtype=np.int64)
        dtype = np.array([each.dtype for (each,) in fields], dtype=np.int64)
        if (results.hi - results.lo == size[:, None]).all() and (results.dtype == dtype).all():
            return results
    return on_each(b, results, lambda _, own: unpack(b, arrangement, own, fields))


def on_each(
    b: PlanBuilder, given: ValueTable, make: Callable[[int, Sequence[Value]], list[Value]]
) -> ValueTable:
    """Return a table whose column r is what `make(r, column r)` makes.

    All ops of `make` are on rank r. Ranks that are given the same intervals do the same.
    """
    begin, ranks = b.mark(), given.shape[1]
    first = ValueTable.of_columns([make(0, given.column(0))])
    interval = OpInterval(begin, b.mark(), given.op[:, 0])
    op, closed = interval.relative(first.op[:, 0]), b.is_closed(interval)
    alike = _compare(given) if op is not None and closed else np.zeros(ranks, dtype=np.bool_)
    made, rank = [first], 1
    while rank < ranks:
        last = rank + int(np.argmin(np.append(alike[rank:], np.False_)))
        if op is not None and last > rank:
            some = np.arange(rank, last)
            made.append(_copies(first, op, given.op[:, some], len(b), len(interval), some))
            which = np.zeros(len(some), dtype=np.int64)
            b.repeat([interval], which, given.op[:, some].T, devices=some)
        else:
            last = rank + 1
            made.append(ValueTable.of_columns([make(rank, given.column(rank))]))
        rank = last
    return ValueTable.concatenate(made, axis=1)


def _compare(given: ValueTable) -> Bools:
    """Return which ranks are given values like the first rank's.

    Their intervals are the same, and values that share an op on the first rank share one here.
    """
    _, first, which = np.unique(given.op[:, 0], return_index=True, return_inverse=True)
    same = given.op == given.op[first[which]]
    for each in (given.lo, given.hi):
        same &= each == each[:, :1]
    return np.asarray(same.all(axis=0))


def _copies(
    first: ValueTable, op: Ints, given: Ints, moved: int, size: int, ranks: Ints
) -> ValueTable:
    """Return the values of ranks whose ops are copies of the first rank's.

    Each rank has `size` ops; the first copy starts at op `moved`. `op` gives the first rank's ops
    as `OpInterval.relative` does.
    """
    own = op[:, None] + moved + size * np.arange(len(ranks))
    old = np.flatnonzero(op < 0)
    own[old] = given[-1 - op[old]]
    device, lo, hi = (np.broadcast_to(each, own.shape) for each in (ranks, first.lo, first.hi))
    return ValueTable(own, device, lo, hi, first.dtype)
