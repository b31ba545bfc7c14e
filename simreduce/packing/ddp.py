"""The buckets of PyTorch's DistributedDataParallel (reducer.cpp,
`compute_bucket_assignment_by_size`).

Gradients are filled in as they become ready, which is about the reverse of their order in the
model; this is the assignment that DDP uses from its second iteration on. Every dtype has buckets of
its own. A gradient is put in first and the bucket closes once it has reached its cap, so buckets
overshoot. With `bucket_cap_mb` unset the cap is 25 MiB, but 1 MiB for the first bucket, which makes
the first all-reduce start early; set, it is the cap of all (distributed.py; in older releases the
first bucket kept 1 MiB).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simreduce.errors import StrategyError
from simreduce.packing.arrangement import Arrangement
from simreduce.packing.options import required
from simreduce.workload import Gradient

MIB = 2**20


@dataclass(frozen=True, slots=True)
class DdpBuckets:
    """Buckets of `cap` bytes or a little more, of each dtype the first of `first_cap`."""

    cap: int = 25 * MIB
    first_cap: int = 1 * MIB

    @staticmethod
    def parse(text: str | None) -> DdpBuckets:
        """Of `+ddp`, or of the MiB in `+ddp=50`."""
        if text is None:
            return DdpBuckets()
        try:
            cap = float(required("ddp", text, "25")) * MIB
        except ValueError:
            cap = math.nan
        if not 1 <= cap < math.inf:
            raise StrategyError(
                f"ddp: {text!r}: bucket_cap_mb is a number of MiB above 0, for example ddp=25; ddp "
                "alone is unset"
            )
        return DdpBuckets(int(cap), int(cap))

    def arrange(self, gradients: Sequence[Gradient], *, faithful: bool = False) -> Arrangement:
        """The buckets in the order in which they close; those that never fill come last, in the
        order they began.
        """
        closed: list[tuple[int, ...]] = []
        filling: dict[int, list[int]] = {}
        held: dict[int, int] = {}
        caps: dict[int, int] = {}
        for i in reversed(range(len(gradients))):
            dtype = gradients[i].dtype
            filling.setdefault(dtype, []).append(i)
            held[dtype] = held.get(dtype, 0) + gradients[i].nbytes
            if held[dtype] >= caps.get(dtype, self.first_cap):
                closed.append(tuple(filling.pop(dtype)))
                held[dtype], caps[dtype] = 0, self.cap
        return Arrangement((*closed, *map(tuple, filling.values())))
