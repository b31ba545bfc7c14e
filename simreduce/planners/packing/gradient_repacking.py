"""`gradient_repacking` with `compact_gradient_transfer` (tf_cnn_benchmarks batch_allreduce.py,
`_TensorPacker`).

Concatenate all gradients, cast the vector to float16 if they travel compacted, cut it in k.
Afterwards everything is undone in reverse, so results have the dtype of their gradients. Without
concatenation (k = 0) each gradient is cast on its own. Upstream compacts by default, but only a
float16 run (`--use_fp16`) of float32 variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simreduce.errors import StrategyError
from simreduce.planners.packing.arrangement import Arrangement
from simreduce.planners.packing.options import FLOAT16, FP16, required, whole, wire_of
from simreduce.workload import Gradient


@dataclass(frozen=True, slots=True)
class GradientRepacking:
    """k packs (0: the gradients themselves), in float16 while they travel if `fp16`."""

    packs: int
    fp16: bool = False

    @staticmethod
    def parse(text: str | None) -> GradientRepacking:
        """Parse the `K[,fp16]` in `+repack=K,fp16`."""
        number, comma, option = required("repack", text, "8,fp16").partition(",")
        if comma and option != FP16:
            raise StrategyError(
                f"repack: unknown {option!r} after the number of packs; only fp16 is known"
            )
        packs = whole("repack", number, 0, "the number of packs", "8")
        if not packs and not comma:
            raise StrategyError(
                "repack=0 does nothing; give a number of packs (repack=8) or compaction "
                "(repack=0,fp16), or leave it out"
            )
        return GradientRepacking(packs, bool(comma))

    def arrange(self, gradients: Sequence[Gradient], *, faithful: bool = False) -> Arrangement:
        """One group of everything, or one per gradient if there is nothing but the cast."""
        if self.packs and any(g.dtype == FLOAT16 for g in gradients):
            raise StrategyError(
                "repack: tf_cnn_benchmarks does not repack float16 variables; use packs=K, "
                "or gradients of another dtype"
            )
        wire = wire_of("repack", gradients, fp16=self.fp16)
        if not self.packs:
            return Arrangement(tuple((i,) for i in range(len(gradients))), wire=wire)
        return Arrangement((tuple(range(len(gradients))),), pieces=self.packs, wire=wire)
