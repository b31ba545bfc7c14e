"""No packing: every gradient is a tensor of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simreduce.planners.packing.arrangement import Arrangement
from simreduce.workload import Gradient


@dataclass(frozen=True, slots=True)
class NoPacking:
    """Gradients as they are."""

    def arrange(self, gradients: Sequence[Gradient], *, faithful: bool = False) -> Arrangement:
        """One group per gradient."""
        return Arrangement(tuple((i,) for i in range(len(gradients))))
