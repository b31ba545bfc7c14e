"""Packs and unpacks on all ranks: the same ops on every rank are planned once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from simreduce.arrays import Bools, Ints
from simreduce.packing.arrangement import Arrangement, Field, pack, unpack
from simreduce.plan import PlanBuilder, Table, Value
from simreduce.plan.stretches import Stretch

Fields = Sequence[Sequence[Field]]


def pack_all(b: PlanBuilder, ranks: int, arrangement: Arrangement, fields: Fields) -> Table:
    """The tensors to reduce, made on every rank from its own gradients."""
    dtypes = {field.dtype for group in fields for field in group}
    if not arrangement.is_bare or len(dtypes) != 1:
        given = Table.empty(ranks)
        return on_each(b, given, lambda rank, _: pack(b, rank, arrangement, fields))
    lo, hi = (np.array([each[i] for (each,) in fields], dtype=np.int64) for i in (0, 1))
    device = np.repeat(np.arange(ranks)[:, None], len(fields), axis=1)
    return Table.stacked(b.inputs(device, lo, hi, *dtypes).swapaxes(0, 1))


def unpack_all(b: PlanBuilder, arrangement: Arrangement, results: Table, fields: Fields) -> Table:
    """Per gradient in address order, its result on every rank; row i of `results` is tensor i."""
    if arrangement.is_bare:
        size = np.array([each.hi - each.lo for (each,) in fields], dtype=np.int64)
        dtype = np.array([each.dtype for (each,) in fields], dtype=np.int64)
        if (results.hi - results.lo == size[:, None]).all() and (results.dtype == dtype).all():
            return results
    return on_each(b, results, lambda _, own: unpack(b, arrangement, own, fields))


def on_each(
    b: PlanBuilder, given: Table, make: Callable[[int, Sequence[Value]], list[Value]]
) -> Table:
    """What `make(r, column r)` makes, rank by rank, as column r of a table. All its ops are on rank
    r, and where ranks are given the same intervals, they do the same.
    """
    begin, ranks = b.mark(), given.shape[1]
    first = Table.of_columns([make(0, given.column(0))])
    stretch = Stretch(begin, b.mark(), given.op[:, 0])
    op, closed = stretch.relative(first.op[:, 0]), b.is_closed(stretch)
    alike = _compare(given) if op is not None and closed else np.zeros(ranks, dtype=np.bool_)
    made, rank = [first], 1
    while rank < ranks:
        last = rank + int(np.argmin(np.append(alike[rank:], np.False_)))
        if op is not None and last > rank:
            some = np.arange(rank, last)
            made.append(_copies(first, op, given.op[:, some], len(b), len(stretch), some))
            which = np.zeros(len(some), dtype=np.int64)
            b.repeat([stretch], which, given.op[:, some].T, devices=some)
        else:
            last = rank + 1
            made.append(Table.of_columns([make(rank, given.column(rank))]))
        rank = last
    return Table.concatenate(made, axis=1)


def _compare(given: Table) -> Bools:
    """Which ranks are given values like those of the first: of the same intervals, and of one op
    wherever the first has values of one op.
    """
    _, first, which = np.unique(given.op[:, 0], return_index=True, return_inverse=True)
    same = given.op == given.op[first[which]]
    for each in (given.lo, given.hi):
        same &= each == each[:, :1]
    return np.asarray(same.all(axis=0))


def _copies(first: Table, op: Ints, given: Ints, moved: int, size: int, ranks: Ints) -> Table:
    """What ranks make whose ops are copies of the first rank's, `size` for each from op `moved`
    on; `op` as `Stretch.relative` gives those of the first.
    """
    own = op[:, None] + moved + size * np.arange(len(ranks))
    old = np.flatnonzero(op < 0)
    own[old] = given[-1 - op[old]]
    device, lo, hi = (np.broadcast_to(each, own.shape) for each in (ranks, first.lo, first.hi))
    return Table(own, device, lo, hi, first.dtype)
