"""tf_cnn_benchmarks' `build_recursive_hd_all_reduce`: halving with the nearest partner first, then
doubling.

Upstream leaves the halving splits without a device; they are placed on the owner of what they
split, as intended.
"""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.errors import StrategyError
from simreduce.plan import PlanBuilder, Value


def halving_doubling(b: PlanBuilder, values: Sequence[Value]) -> list[Value]:
    """The sum of `values` on the device of each. Their number must be a power of two that divides
    the elements.
    """
    n, size = len(values), values[0].hi - values[0].lo
    if n & (n - 1):
        raise StrategyError(f"needs a power of two of tasks, not {n}")
    if size % n:
        raise StrategyError(
            f"every tensor must be divisible by the {n} tasks; one has {size} elements"
        )
    held = list(values)
    spans = [1 << hop for hop in range(n.bit_length() - 1)]
    for span in spans:
        for left in (d for d in range(n) if d % (2 * span) < span):
            right = left + span
            half = (held[left].hi - held[left].lo) // 2
            (left_first, left_second), (right_first, right_second) = (
                b.split(held[d], [half, half]) for d in (left, right)
            )
            held[left] = b.add([left_first, b.copy(right_first, left_first.device)])
            held[right] = b.add([b.copy(left_second, right_second.device), right_second])
    for span in reversed(spans):
        for left in (d for d in range(n) if d % (2 * span) < span):
            pair = held[left], held[left + span]
            for d in (left, left + span):
                held[d] = b.concat([b.copy(half_value, values[d].device) for half_value in pair])
    return held
