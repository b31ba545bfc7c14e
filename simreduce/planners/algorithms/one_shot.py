"""The one-shot all-reduce of small tensors (Intel MPI's and NCCL's "all-to-all" kernels,
TensorRT-LLM's ONESHOT): every rank sends everything to all, and each adds for itself, in rank
order.

a + (n-1) M/B, and every rank adds (n-1) M. Any n.
"""

from __future__ import annotations

from simreduce.plan import PlanBuilder, Values
from simreduce.planners.algorithms.direct import add_up, exchange, givers
from simreduce.planners.algorithms.family import Knobs, size


def all_reduce(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """By taker and giver, added over the givers."""
    here = values.shape[1]
    return add_up(b, exchange(b, values, values[:, givers(here, size(values, knobs)) % here]))
