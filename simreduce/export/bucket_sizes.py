"""Sizes of buckets that are worth trying."""

from __future__ import annotations

from simreduce.planners.packing import joined_sizes
from simreduce.planners.packing.buckets import MIB, ready_order
from simreduce.workload import Workload

_RATIO = 2 ** (1 / 4)
"""From one size of buckets to the next that is tried."""

_SMALLEST = 1 << 18
"""Bytes of the smallest buckets that are tried."""


def bucket_sizes(workload: Workload, *, within: bool = False) -> list[int]:
    """Bytes of buckets that are worth trying: four for each doubling, up to all in one.

    Recorded buckets are joined, and none exceeds a size `within` which they should be.
    """
    gradients, whole = workload.gradients, workload.nbytes
    if workload.finest:
        recorded = [gradients[i].nbytes for i in ready_order(gradients)]
        return joined_sizes(recorded, workload.finest, within=within)
    found, size = [], float(min(_SMALLEST, whole))
    while size < whole:
        unit = 1 << max(int(size).bit_length() - 6, 0)  # two digits and a half
        found.append(int(size) // unit * unit)
        size *= _RATIO
    return [*dict.fromkeys(found), -(-whole // MIB) * MIB]
