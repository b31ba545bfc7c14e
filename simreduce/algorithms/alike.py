"""Tensors that are alike are planned once.

What a planner does with a tensor depends on its size and dtype, not on where in the address space
it is. So for every further tensor of one size and dtype the ops are those of the first, at other
addresses, and are appended by array arithmetic. The plan is the same, op by op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from simreduce.algorithms.planner import Results, Tensors
from simreduce.arrays import Ints
from simreduce.plan import PlanBuilder, Value, Values
from simreduce.plan.ops import Mark

PlanOne = Callable[[Sequence[Value]], Sequence[Value]]
"""From a tensor's values, by rank, to the values that hold its result."""


def plan_each(b: PlanBuilder, tensors: Tensors, plan_one: PlanOne) -> Results:
    """`plan_one` of every tensor in order; it must treat tensors of one size and dtype alike, and
    each by itself.
    """
    seen: dict[tuple[int, int, int], tuple[Values, Values, Mark, Mark]] = {}
    results: Results = []
    for tensor in tensors:
        given = Values.of(tensor)
        shape = _shape(given)
        made = _again(b, given, *seen[shape]) if shape in seen else None
        if made is None:
            begin = b.mark()
            made = Values.of(plan_one(tensor))
            if shape is not None:
                seen[shape] = (given, made, begin, b.mark())
        results.append(made)
    return results


def _shape(given: Values) -> tuple[int, int, int] | None:
    """Size, dtype and number of ranks; None if ranks give different intervals or share ops."""
    lo, hi = given.lo, given.hi
    if not len(lo) or (lo != lo[0]).any() or (hi != hi[0]).any():
        return None
    return int(hi[0] - lo[0]), given.dtype, len(lo)


def _again(
    b: PlanBuilder, given: Values, first: Values, made: Values, begin: Mark, end: Mark
) -> Values | None:
    """What the stretch makes of other values, appended once more; None if it cannot be."""
    shift = int(given.lo[0] - first.lo[0])
    moved = len(b) - begin.ops
    if (given.device != first.device).any() or not b.repeat(
        begin, end, first.op, given.op, shift
    ):
        return None
    op = np.where(made.op < begin.ops, _instead(made.op, first.op, given.op), made.op + moved)
    return Values(op, made.device, made.lo + shift, made.hi + shift, made.dtype)


def _instead(op: Ints, known: Ints, instead: Ints) -> Ints:
    order = np.argsort(known)
    place = np.searchsorted(known[order], op).clip(0, len(known) - 1)
    return instead[order][place]
