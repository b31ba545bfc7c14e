"""Adds the same ops on every rank but plans them once, as for packing and unpacking."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from simreduce.arrays import Bools, Ints
from simreduce.plan import PlanBuilder, Value


def on_each(
    b: PlanBuilder,
    given: Sequence[Sequence[Value]],
    make: Callable[[int, Sequence[Value]], list[Value]],
) -> list[list[Value]]:
    """By rank r, `make(r, given[r])`, whose ops are all on rank r: where ranks are given the same
    intervals, they do the same.
    """
    begin = b.mark()
    made = [make(0, given[0])]
    end = b.mark()
    ops, alike = _compare(given)
    read, places = np.unique(ops[0], return_index=True)
    while len(made) < len(given):
        rank = len(made)
        last = rank + int(np.argmin(np.append(alike[rank:], np.False_)))
        moved = len(b) - begin.ops
        ranks = np.arange(rank, last)
        if last > rank and b.repeat(begin, end, read, ops[rank:last, places], devices=ranks):
            made += _copies(made[0], begin.ops, end.ops - begin.ops, moved, ops, ranks)
            continue
        alike[rank:last] = False  # none of them can be repeated
        made.append(make(rank, given[rank]))
    return made


def _compare(given: Sequence[Sequence[Value]]) -> tuple[Ints, Bools]:
    """The ops that ranks are given, and which ranks are given values like those of the first: of
    the same intervals and dtypes, and of one op wherever the first has values of one op.
    """
    shape = len(given), len(given[0]), len(Value._fields)
    values = np.array(given, dtype=np.int64).reshape(shape)
    op, _, *like = np.moveaxis(values, -1, 0)
    alike = np.logical_and.reduce([(each == each[0]).all(axis=1) for each in like])
    _, first, which = np.unique(op[0], return_index=True, return_inverse=True)
    return op, alike & (op == op[:, first[which]]).all(axis=1)


def _copies(
    made: Sequence[Value], begin: int, size: int, moved: int, ops: Ints, ranks: Ints
) -> list[list[Value]]:
    """What ranks make whose ops are copies of the first rank's, `moved` ops further on and then
    `size` from rank to rank.
    """
    op = np.array([value.op for value in made], dtype=np.int64)
    given = np.array([int(np.argmax(ops[0] == each)) if each < begin else -1 for each in op])
    own = op + moved + size * np.arange(len(ranks))[:, None]
    old = given >= 0
    own[:, old] = ops[np.ix_(ranks, given[old])]
    rest = [value[2:] for value in made]
    return [
        [Value(each, rank, *others) for each, others in zip(row, rest, strict=True)]
        for rank, row in zip(ranks.tolist(), own.tolist(), strict=True)
    ]
