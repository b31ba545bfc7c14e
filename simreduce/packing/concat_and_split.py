"""TensorFlow's `ConcatAndSplitPacker` and tf_cnn_benchmarks' `gradient_repacking`: one vector, cut in k packs.

Nothing can move before every gradient of the device exists, and no gradient is back before all packs are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simreduce.errors import StrategyError
from simreduce.packing.arrangement import Arrangement
from simreduce.workload import Gradient


@dataclass(frozen=True, slots=True)
class ConcatAndSplit:
    """k packs of floor(total / k) elements, the last with the remainder."""

    packs: int

    @staticmethod
    def parse(text: str) -> ConcatAndSplit:
        """Of the K in `+packs=K`."""
        if not text.isdecimal() or int(text) < 1:
            raise StrategyError(
                f"packs={text}: the number of packs is a whole number from 1, for example packs=8"
            )
        return ConcatAndSplit(int(text))

    def arrange(self, gradients: Sequence[Gradient]) -> Arrangement:
        """One group of everything, in `packs` pieces."""
        return Arrangement((tuple(range(len(gradients))),), pieces=self.packs)
