"""The all-pairs all-reduce that RCCL's MSCCL has for eight GPUs, in the two shots of `direct`.

Every GPU sends each other one its part, adds what it is sent, and sends the sum to all, over a
connection to each (ROCm/rccl tools/msccl-algorithms allreduce-allpairs-8n). By LL the flags travel
with the data: 2a + 2 (n-1)/n M/B over n - 1 links each of B/(n-1).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simreduce.plan import PlanBuilder, Values
from simreduce.plan.channels import LAST, merged_channel
from simreduce.planners.algorithms.family import Knobs, parts
from simreduce.planners.layouts import Decision


def all_reduce(b: PlanBuilder, given: Values, how: Decision, after: Sequence[int]) -> Values:
    """The sum on every rank; `given` by rank."""
    n, blocks = len(given), max(how.channels // max(len(given) - 1, 1), 1)
    whole: Values = parts(given[None], Knobs())[0, ...]
    rank = np.arange(n)

    def send(values: Values, far: int, last: int) -> Values:
        """By receiver, what each rank sends to the one `far` above it."""
        channel = merged_channel(far, blocks) + last
        streams = b.streams(values.device, channel)
        sent = b.copies(values, given.device[(rank + far) % n], stream=streams, after=after)
        return sent[(rank - far) % n]

    arrived = [send(whole[rank, (rank + far) % n], far, 0) for far in range(1, n)]
    sums = b.adds([whole[rank, rank], *arrived])
    made = [sums, *(send(sums, far, LAST) for far in range(1, n))]
    every = Values.concatenate([values[:, None] for values in made], axis=1)
    # Part p of rank r came from p, which is r - p below it.
    return b.joins(every[rank[:, None], (rank[:, None] - rank) % n])
