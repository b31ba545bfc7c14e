"""TensorFlow's `ReductionToOneDevice`: everything to the first device, summed there, and copied back."""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.algorithms.copy_to_device import sum_on
from simreduce.errors import StrategyError
from simreduce.layouts import Layout
from simreduce.plan import PlanBuilder, Value


def reduce_to_one(
    b: PlanBuilder, layout: Layout, tensors: Sequence[Sequence[Value]], shards: int
) -> list[list[list[Value]]]:
    """A star on rank 0: (n-1) S in, (n-1) S out."""
    if shards != 1:
        raise StrategyError(
            f"reduce_to_one#{shards}: it takes no shards; all {len(layout.ranks)} GPUs send to the first"
        )
    return [sum_on(b, tensor, 0) for tensor in tensors]
