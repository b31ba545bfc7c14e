"""TensorFlow's `ReductionToOneDevice`: everything to the first device, summed there, and copied
back.
"""

from __future__ import annotations

from simreduce.algorithms.copy_to_device import sum_on
from simreduce.algorithms.planner import Options, Results, Tensors
from simreduce.layouts import Layout
from simreduce.plan import PlanBuilder


def reduce_to_one(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """A star on rank 0: (n-1) S in, (n-1) S out."""
    return [sum_on(b, tensor, 0) for tensor in tensors]
