"""Tensors that are alike are planned once, for planners that take one tensor (`together` has the
others).

What a planner does with a tensor depends on its size and dtype, not on where in the address space
it is. So for every further tensor of one size and dtype the ops are those of the first, at other
addresses, and are appended by array arithmetic. The plan is the same, op by op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from simreduce.algorithms.planner import Results, Tensors
from simreduce.arrays import Ints
from simreduce.plan import PlanBuilder, Value, Values
from simreduce.plan.ops import Mark

PlanOne: TypeAlias = Callable[[Sequence[Value], int], Sequence[Value]]
"""From a tensor's values, by rank, and its turn, to the values that hold its result."""

PlanNext: TypeAlias = Callable[[Sequence[Value], Sequence[Value]], Sequence[Value]]
"""Likewise, from a tensor's values and the results of the tensor before it."""


class _Stretch(NamedTuple):
    """The ops of a tensor: its values, the ops they use before `begin`, and its results."""

    given: Values
    used: Ints
    made: Values
    begin: Mark
    end: Mark


def plan_each(b: PlanBuilder, tensors: Tensors, plan_one: PlanOne, turns: int = 1) -> Results:
    """`plan_one` of every tensor in order; tensor i has the turn i mod `turns`.

    It must plan each tensor by itself, and treat tensors of the same sizes, dtype and turn alike.
    """
    seen: dict[tuple[object, ...], _Stretch] = {}
    return [
        _plan(b, tensor, (), seen, i % turns, partial(plan_one, tensor, i % turns))
        for i, tensor in enumerate(tensors)
    ]


def plan_chain(b: PlanBuilder, tensors: Tensors, plan_next: PlanNext) -> Results:
    """`plan_next` of every tensor in order. It must treat tensors of the same sizes and dtype
    alike, and may wait for the results before.
    """
    seen: dict[tuple[object, ...], _Stretch] = {}
    results: Results = []
    for tensor in tensors:
        before = results[-1] if results else ()
        results.append(_plan(b, tensor, before, seen, 0, partial(plan_next, tensor, before)))
    return results


def _plan(
    b: PlanBuilder,
    tensor: Sequence[Value],
    before: Sequence[Value],
    seen: dict[tuple[object, ...], _Stretch],
    turn: int,
    plan: Callable[[], Sequence[Value]],
) -> Values:
    given = Values.of(tensor)
    used = np.concatenate([given.op, Values.of(before).op]) if len(before) else given.op
    lo = given.lo[0]
    intervals = (given.lo - lo).tobytes(), (given.hi - lo).tobytes()
    alike = *intervals, given.dtype, len(before), turn
    made = _again(b, given, used, seen[alike]) if alike in seen else None
    if made is None:
        begin = b.mark()
        made = Values.of(plan())
        seen[alike] = _Stretch(given, used, made, begin, b.mark())
    return made


def _again(b: PlanBuilder, given: Values, used: Ints, first: _Stretch) -> Values | None:
    """What the stretch makes of other values, appended once more; None if it cannot be."""
    shift, begin, made = int(given.lo[0] - first.given.lo[0]), first.begin, first.made
    moved = len(b) - begin.ops
    if (given.device != first.given.device).any() or not b.repeat(
        begin, first.end, first.used, used[None], shift=shift
    ):
        return None
    op = np.where(made.op < begin.ops, _instead(made.op, first.used, used), made.op + moved)
    return Values(op, made.device, made.lo + shift, made.hi + shift, made.dtype)


def _instead(op: Ints, known: Ints, instead: Ints) -> Ints:
    order = np.argsort(known)
    place = np.searchsorted(known[order], op).clip(0, len(known) - 1)
    return np.asarray(instead[order][place])
