"""BERT (Devlin et al. 2018): the encoder with its pooler, without the heads of pretraining."""

from __future__ import annotations

from typing import NamedTuple

from simreduce.workload.architectures.shapes import (
    block,
    gradients,
    layer,
    linear,
    norm,
)
from simreduce.workload.workload import Kept, Layer

WORDS = 30522
POSITIONS = 512


class Bert(NamedTuple):
    """A BERT model of `blocks` blocks and that width."""

    blocks: int
    width: int

    def layers(self, tokens: int) -> list[Layer]:
        """The layers for sequences of `tokens` tokens."""
        h = self.width
        tables = [
            ("word.weight", (WORDS, h)),
            ("position.weight", (POSITIONS, h)),
            ("token_type.weight", (2, h)),
            *norm("LayerNorm", h),
        ]
        kept = Kept(0.0, 3.0 * tokens * h)  # its norm and its dropout
        found = [Layer("embeddings", gradients("embeddings", tables), kept=kept)]
        for i in range(self.blocks):
            projections = [
                p for name in ("query", "key", "value", "output") for p in linear(name, h, h)
            ]
            mlp = [*linear("intermediate", h, 4 * h), *linear("output", 4 * h, h)]
            parts = [*projections, *norm("LayerNorm", h)], [*mlp, *norm("LayerNorm", h)]
            found += block((f"layer.{i}.attention", f"layer.{i}.mlp"), parts, tokens, h)
        pooled = Kept(2.0 * tokens * h, 4.0 * h)
        return [*found, layer("pooler", linear("dense", h, h), 1, kept=pooled)]
