"""The arguments and the results of every planner, and how it plans many tensors at once.

Tensors that are alike are planned once where a planner takes one tensor (`plan_each`). Planners
that do array arithmetic take all tensors in a few calls (`plan_together`). The plan is the same as
from one call for each tensor, op by op.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from simreduce import dtypes
from simreduce.computing.lists import grouped
from simreduce.plan import PlanBuilder, SeparateBuilder, Value, Values, ValueTable
from simreduce.plan.batches import Alike
from simreduce.planners.layouts import OPEN, Decision, Layout

Tensors: TypeAlias = Sequence[Sequence[Value]]
"""`tensors[i][r]` is the value of tensor i (after packing) on rank r; rank r is device r of the
builder.
"""

Results: TypeAlias = Sequence[Sequence[Value]]
"""`results[i][r]` is the value on rank r that holds the sum of tensor i; of other collectives, the
values that hold the results of tensor i in any order.
"""


@dataclass(frozen=True, slots=True)
class Options:
    """`shards` is the k of `#k`; `faithful` asks for upstream's quirks instead of what a user
    intends. `chunk` is the most bytes that a pipeline sends as one piece (0: no limit), `root` the
    rank of a rooted collective. `nccl` is what the strategy says of how NCCL does it.
    """

    shards: int = 1
    faithful: bool = False
    chunk: int = 0
    root: int = 0
    nccl: Decision = OPEN


Planner: TypeAlias = Callable[[PlanBuilder, Layout, Tensors, Options], Results]


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
    return Alike(b, given, lambda i, before: plan_next(given[i], before), chained=True).plan_all(1)


PlanMany: TypeAlias = Callable[[PlanBuilder, Values], Values]
"""From shape (tensors, ranks) to shape (tensors, results)."""

Shape: TypeAlias = Callable[[Values], Hashable]
"""From the values of one tensor, by rank, to what decides which ops it takes."""

_AT_ONCE = 1 << 20
"""Upper limit of tensors planned at once, times about as many as the ops of each."""

_LARGE = 512
"""Tensors of more than about this many ops are planned one by one.

There the ops take the time, not the calls, and the ops of equal tensors need only be copied.
"""

_REPEATED = 16
"""Tensors are also planned one by one if so many of them are equal, on average."""


def plan_together(
    b: PlanBuilder,
    tensors: Tensors,
    plan: PlanMany,
    chunk: int = 0,
    shape: Shape = lambda _: None,
) -> Results:
    """`plan` of all tensors in a few calls, in the order of one call after another.

    It must do the same ops for tensors of one dtype that are equal in `shape`, or in all sizes if
    they are sent in chunks of `chunk` bytes.
    """
    given = ValueTable.of(tensors)
    ranks, most = max(given.shape[1], 1), int((given.hi - given.lo).max(initial=0))
    pieces = most * max(dtypes.SIZES) // chunk if chunk else 1
    ops = ranks * max(ranks, pieces)
    size = given.hi[:, 0] - given.lo[:, 0] if given.shape[1] else given.dtype
    kinds = len(np.unique(size * len(dtypes.SIZES) + given.dtype))  # of sizes and dtypes
    if ops > _LARGE or _REPEATED * kinds <= len(given):
        return plan_each(b, given, lambda tensor, _: plan(b, Values.of(tensor)[None, :])[0, :])
    step = max(_AT_ONCE // ops, 1)
    parts = [given[first : first + step] for first in range(0, len(given), step)]
    alike: Shape = (lambda tensor: tensor.elements.tobytes()) if chunk else shape
    made = [_plan_some(b, part, plan, alike) for part in parts]
    return ValueTable.concatenate(made) if made else given


def _plan_some(b: PlanBuilder, given: ValueTable, plan: PlanMany, shape: Shape) -> ValueTable:
    if len(given) == 1:
        return ValueTable.of([plan(b, given[0][None, :])[0, :]])
    places = grouped(((tensor.dtype, shape(tensor)), i) for i, tensor in enumerate(given))
    separate, made = SeparateBuilder(b, len(given)), []
    for those in places.values():
        at = np.array(those)
        (stacked,) = given[at].by_dtype()
        made.append(plan(separate, separate.lift(stacked, at[:, None])))
    separate.settle()
    settled = [ValueTable.stacked(separate.settled(values)) for values in made]
    return ValueTable.concatenate(settled)[np.argsort(np.concatenate([*places.values()]))]
