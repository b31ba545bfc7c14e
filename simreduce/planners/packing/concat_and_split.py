"""`ConcatAndSplitPacker` (TensorFlow 1.12 cross_tower_ops.py, `num_packs` ever since): one vector,
cut in k packs.

Nothing can move before every gradient of the device exists, and no gradient is back before all
packs are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simreduce.planners.packing.arrangement import Arrangement
from simreduce.planners.packing.options import whole
from simreduce.workload import Gradient

MOST_PACKS = 4096
"""A pack is an op on every device; thousands of them only cost time."""


@dataclass(frozen=True, slots=True)
class ConcatAndSplit:
    """k packs of floor(total / k) elements, the last with the remainder."""

    packs: int

    @staticmethod
    def parse(text: str | None) -> ConcatAndSplit:
        """Parse the K in `+packs=K`."""
        return ConcatAndSplit(whole("packs", text, 1, "the number of packs", "8", MOST_PACKS))

    def arrange(self, gradients: Sequence[Gradient], *, faithful: bool = False) -> Arrangement:
        """One group of everything, in `packs` pieces."""
        return Arrangement((tuple(range(len(gradients))),), pieces=self.packs)
