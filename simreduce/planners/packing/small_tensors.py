"""`pack_small_tensors` and `extract_ranges` (tf_cnn_benchmarks allreduce.py, TensorFlow 1.12
cross_tower_utils.py).

Neighbours in the gradient list that are float32 and small travel as one tensor; all others travel
alone. Upstream's limit on the members of a pack is off by two: a pack takes up to `max_group + 2`.
Here it is the limit, unless `faithful` reproduces upstream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simreduce import dtypes
from simreduce.errors import StrategyError
from simreduce.files.formats import Faults
from simreduce.planners.packing.arrangement import Arrangement
from simreduce.planners.packing.options import nbytes, required, whole
from simreduce.workload import Gradient

DEFAULT_GROUP = 10
"""`--agg_small_grads_max_group`."""

OVERSHOOT = 2
"""Members that an upstream pack takes beyond its `max_group`."""

_FLOAT32 = dtypes.code("float32")


def extract_ranges(
    indices: Sequence[int], limit: int = 32
) -> tuple[list[tuple[int, int]], list[int]]:
    """Runs (first, last) of two or more consecutive `indices`, which ascend, and the indices in no
    run.

    A run takes the next index while last - first <= limit, so it holds up to limit + 2 of them.

    >>> extract_ranges([1, 3, 4, 6, 7, 8, 9])
    ([(3, 4), (6, 9)], [1])
    """
    runs: list[tuple[int, int]] = []
    for i in indices:
        first, last = runs[-1] if runs else (i, i)
        if runs and i == last + 1 and last - first <= limit:
            runs[-1] = first, i
        else:
            runs.append((i, i))
    return [run for run in runs if run[0] < run[1]], [
        first for first, last in runs if first == last
    ]


@dataclass(frozen=True, slots=True)
class SmallTensors:
    """Packs of up to `max_group` neighbours of at most `max_bytes` (inclusive) each."""

    max_bytes: int
    max_group: int = DEFAULT_GROUP

    @staticmethod
    def parse(text: str | None) -> SmallTensors:
        """Parse the `BYTES[,GROUP]` in `+small=64K,10`."""
        size, comma, group = required("small", text, "64K,10").partition(",")
        faults, group = Faults(), group if comma else str(DEFAULT_GROUP)
        most = faults.attempt("", nbytes, "small", size, 1, "64K,10")
        members = faults.attempt(
            "", whole, "small", group or "no number", 1, "the most members of a pack", "64K,10"
        )
        faults.raise_any(StrategyError)
        return SmallTensors(most or 1, members or 1)

    def arrange(self, gradients: Sequence[Gradient], *, faithful: bool = False) -> Arrangement:
        """The packs in their order, then all other gradients in theirs."""
        small = [
            i for i, g in enumerate(gradients) if g.dtype == _FLOAT32 and g.nbytes <= self.max_bytes
        ]
        runs, _ = extract_ranges(small, self.max_group if faithful else self.max_group - OVERSHOOT)
        packs = [tuple(range(first, last + 1)) for first, last in runs]
        packed = {i for pack in packs for i in pack}
        return Arrangement((*packs, *((i,) for i in range(len(gradients)) if i not in packed)))
