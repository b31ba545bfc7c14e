"""Tensors that are alike are planned once, for planners that take one tensor (`together` has the
others).

What a planner does with a tensor depends on its size and dtype, not on where in the address space
it is. So for every further tensor of one size and dtype the ops are those of the first, at other
addresses, and are appended by array arithmetic. The plan is the same, op by op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from simreduce.algorithms.planner import Results, Tensors
from simreduce.arrays import Ints
from simreduce.plan import PlanBuilder, Value, Values
from simreduce.plan.ops import Mark

PlanOne: TypeAlias = Callable[[Sequence[Value], int], Sequence[Value]]
"""From a tensor's values, by rank, and its turn, to the values that hold its result."""


def plan_each(b: PlanBuilder, tensors: Tensors, plan_one: PlanOne, turns: int = 1) -> Results:
    """`plan_one` of every tensor in order; tensor i has the turn i mod `turns`.

    It must plan each tensor by itself, and treat tensors of the same sizes, dtype and turn alike.
    """
    seen: dict[tuple[bytes, bytes, int, int], tuple[Values, Values, Mark, Mark]] = {}
    results: Results = []
    for i, tensor in enumerate(tensors):
        given, turn = Values.of(tensor), i % turns
        lo = given.lo[0]
        alike = (given.lo - lo).tobytes(), (given.hi - lo).tobytes(), given.dtype, turn
        made = _again(b, given, *seen[alike]) if alike in seen else None
        if made is None:
            begin = b.mark()
            made = Values.of(plan_one(tensor, turn))
            seen[alike] = (given, made, begin, b.mark())
        results.append(made)
    return results


def _again(
    b: PlanBuilder, given: Values, first: Values, made: Values, begin: Mark, end: Mark
) -> Values | None:
    """What the stretch makes of other values, appended once more; None if it cannot be."""
    shift = int(given.lo[0] - first.lo[0])
    moved = len(b) - begin.ops
    if (given.device != first.device).any() or not b.repeat(
        begin, end, first.op, given.op[None], shift=shift
    ):
        return None
    op = np.where(made.op < begin.ops, _instead(made.op, first.op, given.op), made.op + moved)
    return Values(op, made.device, made.lo + shift, made.hi + shift, made.dtype)


def _instead(op: Ints, known: Ints, instead: Ints) -> Ints:
    order = np.argsort(known)
    place = np.searchsorted(known[order], op).clip(0, len(known) - 1)
    found: Ints = instead[order][place]
    return found
