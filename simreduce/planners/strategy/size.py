"""The size of a plan before it is built, by small plans of the same strategy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from simreduce.errors import InputError, PlanTooLarge
from simreduce.plan import Plan
from simreduce.plan.limits import most_ops, too_large
from simreduce.planners.layouts import Decide, Layout
from simreduce.planners.packing.concat_and_split import ConcatAndSplit
from simreduce.planners.strategy.text import Strategy
from simreduce.workload import Workload

_SURE = 2
"""A plan is refused unbuilt if its expected ops, divided by this, are still too many."""

_SMALL = 1 << 24
"""Plans that seem to have fewer ops are built at once."""

LONG = 1 << 22
"""Ops of a plan that takes several seconds to build, prove and simulate."""

_TRIED = 100_000
"""Ops of a plan that is large enough to go by."""

_GRADIENTS = 256
"""Gradients of the plans that are tried."""

_PACKS = 64
"""Packs of the plans that are tried."""

Compile = Callable[[Strategy, Workload, Layout], Plan]


def check_size(strategy: Strategy, workload: Workload, layout: Layout, build: Compile) -> None:
    """PlanTooLarge if the plan of all ranks, folded or not, would surely take more memory than
    there is. `build` makes other plans.
    """
    if _rough(strategy, workload, layout) < _SMALL:
        return
    ops = _expected(strategy, workload, layout, build)
    if ops > _SURE * most_ops():
        raise too_large(ops, "about")


def _expected(strategy: Strategy, workload: Workload, layout: Layout, build: Compile) -> int:
    """`expected_ops`, of many packs by a few of them."""
    packer, times = strategy.packer, 1.0
    packs = packer.packs if isinstance(packer, ConcatAndSplit) else 1
    if packs > _PACKS and len(workload.gradients) == 1:
        # As large packs, but fewer.
        times = packs / _PACKS
        strategy = replace(strategy, packer=ConcatAndSplit(_PACKS))
        (one,) = workload.gradients
        part = replace(one, elements=max(one.elements * _PACKS // packs, 1))
        workload = replace(workload, gradients=(part,))
    return int(times * expected_ops(strategy, workload, layout, build))


def many_ops(strategy: Strategy, workload: Workload, layout: Layout, build: Compile) -> int:
    """About how many ops the plan of all ranks has; 0 if they are at most `LONG`."""
    if _rough(strategy, workload, layout) * 16 < LONG:
        return 0
    ops = _expected(strategy, workload, layout, build)
    return ops if ops > LONG else 0


def _rough(strategy: Strategy, workload: Workload, layout: Layout) -> int:
    """More ops than most plans have."""
    tensors = max(len(workload.gradients), getattr(strategy.packer, "packs", 1))
    chunks = 1
    if strategy.chunk:
        chunks = max(sum(g.nbytes for g in workload.gradients) // strategy.chunk, 1)
    return layout.n**2 * max(tensors, chunks)


def expected_ops(strategy: Strategy, workload: Workload, layout: Layout, build: Compile) -> int:
    """The ops of a plan of all ranks, by plans of few of them and of few gradients: they grow by a
    power of the ranks, and linearly with further gradients. 0 if there are no small plans.
    """
    gradients = workload.gradients
    some, fewer = (
        replace(workload, gradients=gradients[:count]) for count in (_GRADIENTS, _GRADIENTS // 2)
    )
    count = layout.machines if layout.machines > 1 else len(layout.tasks)
    # One machine by itself is no measure: there is nothing to send to others.
    each, units = layout.n // count, 2 if count > 4 else 1
    if count == 1:
        each, count, units = 1, layout.n, 2
    found: list[int] = []
    while units < count and not (len(found) > 1 and found[-1] > _TRIED):
        few = layout.few(units) if layout.machines > 1 else layout.subset(each * units)
        few = replace(few, decide=_as_of_all(layout))
        try:
            found.append(len(build(strategy, some, few)))
            more = (
                found[-1] - len(build(strategy, fewer, few)) if len(gradients) > _GRADIENTS else 0
            )
        except PlanTooLarge:
            raise
        except InputError:
            return 0
        units *= 2
    if len(found) < 2 or not found[-2]:
        return 0
    ops = found[-1] + more * max(len(gradients) - _GRADIENTS, 0) / (_GRADIENTS // 2)
    growth = math.log2(found[-1] / found[-2])
    return int(ops * (count / (units // 2)) ** min(max(growth, 0), 3))


def _as_of_all(layout: Layout) -> Decide | None:
    """Return a choice for a few ranks that repeats NCCL's choice among all ranks."""
    decide = layout.decide
    if decide is None:
        return None
    return lambda _, collective, nbytes, wanted: decide(layout.ranks, collective, nbytes, wanted)
