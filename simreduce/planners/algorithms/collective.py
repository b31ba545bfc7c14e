"""TensorFlow's runtime ring (`ring_alg.cc`, `ring_reducer.cc`), behind `collective` and
CollectiveAllReduce.

The tensor is cut in (ranks x subdivisions) fields of equal, 64-byte aligned size; the last ones are
short or empty, and empty ones are never sent. Each subdivision runs a ring of its own; odd ones may
run the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simreduce import dtypes
from simreduce.errors import OptionNotTaken, StrategyError
from simreduce.plan import PlanBuilder, Values
from simreduce.planners.algorithms.planner import Options, Results, Tensors
from simreduce.planners.algorithms.together import plan_together
from simreduce.planners.algorithms.walks import paths, walks
from simreduce.planners.layouts import Layout

ALIGNMENT = 64
"""Bytes; EIGEN_MAX_ALIGN_BYTES of the released binaries."""


def collective(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """`#1`: one ring. `#2`: a second one, which starts half-way and runs the other way round."""
    if len(layout.ranks) < 2:
        raise StrategyError("needs a group of 2 GPUs or more")
    local = len(layout.tasks[0])
    if any(len(task) != local for task in layout.tasks):
        raise StrategyError("needs the same number of GPUs in every task")
    if options.shards not in (1, 2):
        raise OptionNotTaken("the number of shards is 1 or 2")
    offsets = [0] if options.shards == 1 or local == 1 else [0, -(local // 2)]
    tasks = rank_order(layout)
    rings = [subdivision_order(tasks, offset) for offset in offsets]

    def many(b: PlanBuilder, tensors: Values) -> Values:
        return runtime_ring(b, tensors, rings)

    def full_fields(tensor: Values) -> int:
        width, fields = dtypes.SIZES[tensor.dtype], layout.n * len(rings)
        return int(np.count_nonzero(field_sizes(int(tensor.elements[0]), fields, width)))

    return plan_together(b, tensors, many, shape=full_fields)


def subdivision_order(tasks: Sequence[Sequence[int]], offset: int) -> list[int]:
    """The ring of one subdivision: every task rotated by |offset|, and reversed first if it is
    negative.
    """
    order: list[int] = []
    for task in tasks:
        for i in range(len(task)):
            at = (i + abs(offset)) % len(task)
            order.append(task[at if offset >= 0 else len(task) - 1 - at])
    return order


def rank_order(layout: Layout) -> list[list[int]]:
    """The ranks of every task as the runtime orders them: as configured (`gpu_indices`), else
    greedily along links from the first, lowest rank first, with a jump to the lowest one left where
    there is no link.
    """
    if layout.order:
        return [list(task) for task in layout.ring_tasks]
    tasks = []
    for task in layout.tasks:
        left = sorted(task)
        order: list[int] = []
        while left:
            linked = [r for r in left if order and layout.links[order[-1]][r]]
            order.append((linked or left)[0])
            left.remove(order[-1])
        tasks.append(order)
    return tasks


def field_sizes(elements: int, fields: int, element_bytes: int) -> list[int]:
    """Elements of each field. Sizes are rounded up to the next multiple of 64 bytes, by a full 64
    if they are one.
    """
    base = -(-elements // fields) * element_bytes
    chunk = ALIGNMENT if base < ALIGNMENT else base + ALIGNMENT - base % ALIGNMENT
    step = chunk // element_bytes
    return [max(0, min(step, elements - f * step)) for f in range(fields)]


def runtime_ring(b: PlanBuilder, values: Values, rings: Sequence[Sequence[int]]) -> Values:
    """The sum by tensor and rank, of tensors with as many fields that are not empty. Field f is
    segment f // K of subdivision f % K.

    Pass 0: segment c starts at ring rank c and every next rank adds what arrives to its own; pass
    1: the sum goes on from rank c-1 to the others.
    """
    fields, width = values.shape[1] * len(rings), dtypes.SIZES[values.dtype]
    sizes = [field_sizes(size, fields, width) for size in values.elements[:, 0].tolist()]
    edges = np.cumsum([[0, *each] for each in sizes], axis=1)
    some = np.arange(max(int(np.count_nonzero(sizes[0])), 1))
    lo, hi = (values.lo[:, :1, None] + edges[:, None, at] for at in (some, some + 1))
    path = paths(np.array(rings)[some % len(rings)], some // len(rings))
    return b.joins(walks(b, values[..., None].view(lo, hi), path, own_first=True))
