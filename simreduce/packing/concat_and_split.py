"""TensorFlow's `ConcatAndSplitPacker` and tf_cnn_benchmarks' `gradient_repacking`: one vector, cut in k packs.

Nothing can move before every gradient of the device exists, and no gradient is back before all packs are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simreduce.errors import StrategyError
from simreduce.plan import PlanBuilder, Value

MOST_PACKS = 4096
"""A pack is an op on every device; thousands of them only cost time."""


@dataclass(frozen=True, slots=True)
class ConcatAndSplit:
    """k packs of floor(total / k) elements, the last with the remainder."""

    packs: int

    @staticmethod
    def parse(text: str) -> ConcatAndSplit:
        """Of the K in `+packs=K`."""
        packs = int(text) if text.isdecimal() and len(text) <= len(str(MOST_PACKS)) else 0
        if not 1 <= packs <= MOST_PACKS:
            raise StrategyError(
                f"packs={text}: the number of packs is a whole number from 1 to {MOST_PACKS}, for example packs=8"
            )
        return ConcatAndSplit(packs)

    def pack(self, b: PlanBuilder, gradients: Sequence[Value]) -> list[Value]:
        """Concatenate all gradients of the device, then split."""
        if len({g.dtype for g in gradients}) > 1:
            raise StrategyError("+packs concatenates gradients, which needs one dtype for all of them")
        whole = b.concat(gradients)
        if whole.lo == whole.hi:  # k packs of nothing are one
            return [whole]
        size = (whole.hi - whole.lo) // self.packs
        return b.split(whole, [size] * (self.packs - 1) + [whole.hi - whole.lo - size * (self.packs - 1)])

    def unpack(self, b: PlanBuilder, pieces: Sequence[Value], like: Sequence[Value]) -> list[Value]:
        """Concatenate the reduced packs, then split by gradient."""
        return b.split(b.concat(pieces), [g.hi - g.lo for g in like])
