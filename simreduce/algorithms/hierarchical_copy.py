"""TensorFlow's hierarchical copy, made for the DGX-1: two groups of GPUs, joined by one link per pair.

Tensor i has a main device i mod n and a secondary one n/2 further. Each sums its own group, the main adds the two
sums, and the total goes back the way it came.
"""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.algorithms.planner import Options, Results, Tensors
from simreduce.errors import StrategyError
from simreduce.layouts import Layout
from simreduce.plan import PlanBuilder, Value


def main_and_secondary(index: int, n: int) -> tuple[int, int]:
    """The two gather devices of tensor `index` among n."""
    main = index % n
    return main, (main + n // 2) % n


def hierarchical_copy(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """2(n-1) transfers a tensor. Upstream drops the last device of an odd number; that is refused here."""
    n = len(layout.ranks)
    if n < 2 or n % 2:
        raise StrategyError(f"hierarchical_copy needs an even number of GPUs, 2 or more, not {n}")
    return [_one(b, tensor, *main_and_secondary(i, n)) for i, tensor in enumerate(tensors)]


def _one(b: PlanBuilder, tensor: Sequence[Value], main: int, secondary: int) -> list[list[Value]]:
    half = len(tensor) // 2
    near = tensor[:half] if main < half else tensor[half:]
    far = tensor[half:] if main < half else tensor[:half]
    near_sum = b.add([b.copy(value, main) for value in near])
    far_sum = b.add([b.copy(value, secondary) for value in far])
    total = b.add([near_sum, b.copy(far_sum, main)])
    mirror = b.copy(total, secondary)
    on_near = {value.device for value in near}
    return [[b.copy(total if value.device in on_near else mirror, value.device)] for value in tensor]
