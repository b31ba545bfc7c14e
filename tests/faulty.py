"""A planner with a fault, for tests of what finds it."""

from __future__ import annotations

from simreduce.planners.algorithms import Algorithm


def _lose_last(b, layout, tensors, options):  # noqa: ARG001 - a planner's signature
    """The sum on rank 0 lacks the last rank, where there is more than one."""
    return [
        [b.copy(b.add([b.copy(v, 0) for v in tensor[:-1] or tensor]), v.device) for v in tensor]
        for tensor in tensors
    ]


FORGETFUL = Algorithm("forgetful", _lose_last, "forgets one")
