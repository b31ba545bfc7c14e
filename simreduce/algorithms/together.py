"""All tensors planned in a few calls, by planners that do array arithmetic; the plan is that of one
call for each, op by op.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

import numpy as np

from simreduce import dtypes
from simreduce.algorithms.alike import plan_each
from simreduce.algorithms.planner import Results, Tensors
from simreduce.plan import Aside, PlanBuilder, Values

PlanMany: TypeAlias = Callable[[PlanBuilder, Values], Values]
"""From shape (tensors, ranks) to shape (tensors, results)."""

Shape: TypeAlias = Callable[[Values], Hashable]
"""From the values of one tensor, by rank, to what decides which ops it takes."""

_AT_ONCE = 1 << 20
"""Upper limit of tensors planned at once, times about as many as the ops of each."""

_LARGE = 512
"""Tensors of about more ops are planned one by one: there the ops take the time, not the calls, and
those of equal tensors need only be copied.
"""


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
    given = [Values.of(tensor) for tensor in tensors]
    ranks = max(map(len, given), default=1)
    most = max((int(tensor.elements.max(initial=0)) for tensor in given), default=0)
    pieces = most * max(dtypes.SIZES) // chunk if chunk else 1
    ops = ranks * max(ranks, pieces)
    if ops > _LARGE:
        return plan_each(b, given, lambda tensor, _: plan(b, Values.of(tensor)[None, :])[0, :])
    step = max(_AT_ONCE // ops, 1)
    if chunk:
        shape = _sizes
    results: Results = []
    for first in range(0, len(given), step):
        results += _plan_some(b, given[first : first + step], plan, shape)
    return results


def _sizes(tensor: Values) -> Hashable:
    return tensor.elements.tobytes()


def _plan_some(
    b: PlanBuilder, given: Sequence[Values], plan: PlanMany, shape: Shape
) -> Sequence[Values]:
    if len(given) == 1:
        return [plan(b, given[0][None, :])[0, :]]
    places: dict[tuple[int, Hashable], list[int]] = {}
    for i, tensor in enumerate(given):
        places.setdefault((tensor.dtype, shape(tensor)), []).append(i)
    aside, made = Aside(b, len(given)), []
    for those in places.values():
        stacked = Values.stack([given[i] for i in those])
        made.append(plan(aside, aside.lift(stacked, np.array(those)[:, None])))
    aside.settle()
    results = {
        i: values[k, :]
        for those, values in zip(places.values(), map(aside.settled, made), strict=True)
        for k, i in enumerate(those)
    }
    return [results[i] for i in range(len(given))]
