"""BERT (Devlin et al. 2018): the encoder with its pooler, without the heads of pretraining."""

from __future__ import annotations

from typing import NamedTuple

from simreduce.workload.architectures.shapes import attention, gradients, layer, linear, norm
from simreduce.workload.model import Layer

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
        found = [Layer("embeddings", gradients("embeddings", tables))]
        for i in range(self.blocks):
            projections = [
                p for name in ("query", "key", "value", "output") for p in linear(name, h, h)
            ]
            mlp = [*linear("intermediate", h, 4 * h), *linear("output", 4 * h, h)]
            found += [
                layer(
                    f"layer.{i}.attention",
                    [*projections, *norm("LayerNorm", h)],
                    tokens,
                    attention(tokens, tokens, h),
                ),
                layer(f"layer.{i}.mlp", [*mlp, *norm("LayerNorm", h)], tokens),
            ]
        return [*found, layer("pooler", linear("dense", h, h), 1)]
