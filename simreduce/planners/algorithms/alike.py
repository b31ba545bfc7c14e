"""Tensors that are alike are planned once, for planners that take one tensor (`together` has the
others).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from simreduce.plan import PlanBuilder, Value, ValueTable
from simreduce.plan.alike import Alike
from simreduce.planners.algorithms.planner import Results, Tensors

PlanOne: TypeAlias = Callable[[Sequence[Value], int], Sequence[Value]]
"""From a tensor's values, by rank, and its turn, to the values that hold its result."""

PlanNext: TypeAlias = Callable[[Sequence[Value], Sequence[Value]], Sequence[Value]]
"""Likewise, from a tensor's values and the results of the tensor before it."""


def plan_each(b: PlanBuilder, tensors: Tensors, plan_one: PlanOne, turns: int = 1) -> Results:
    """`plan_one` of every tensor in order; tensor i has the turn i mod `turns`.

    It must plan each tensor by itself, and treat tensors of the same sizes, dtype and turn alike.
    """
    given = ValueTable.of(tensors)
    return Alike(b, given, lambda i, _: plan_one(given[i], i % turns)).plan_all(turns)


def plan_chain(b: PlanBuilder, tensors: Tensors, plan_next: PlanNext) -> Results:
    """`plan_next` of every tensor in order. It must treat tensors of the same sizes and dtype
    alike, and may wait for the results before.
    """
    given = ValueTable.of(tensors)
    plan = Alike(b, given, lambda i, before: plan_next(given[i], before), chained=True)
    return plan.plan_all(1)
