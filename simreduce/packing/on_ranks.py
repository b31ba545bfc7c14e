"""The same ops on every rank, planned once: packing and unpacking are the same everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

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
    first = make(0, given[0])
    end = b.mark()
    made = [first]
    for rank in range(1, len(given)):
        instead = _instead_of(given[0], given[rank])
        read = np.array([*instead], dtype=np.int64), np.array([*instead.values()], dtype=np.int64)
        moved = len(b) - begin.ops
        if len(instead) < len({v.op for v in given[0]}) or not b.repeat(
            begin, end, *read, shift=0, device=rank
        ):
            made.append(make(rank, given[rank]))
            continue
        made.append(
            [
                v._replace(op=v.op + moved if v.op >= begin.ops else instead[v.op], device=rank)
                for v in first
            ]
        )
    return made


def _instead_of(first: Sequence[Value], others: Sequence[Value]) -> dict[int, int]:
    """For each op of the first values that of the others; empty if these are not alike."""
    instead: dict[int, int] = {}
    for mine, theirs in zip(first, others, strict=True):
        same = mine.lo == theirs.lo and mine.hi == theirs.hi and mine.dtype == theirs.dtype
        if not same or instead.setdefault(mine.op, theirs.op) != theirs.op:
            return {}
    return instead
