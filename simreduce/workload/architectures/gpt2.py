"""GPT-2 (Radford et al. 2019). Its output is tied to the word embedding, whose gradient is complete
only when back-propagation is at the input again.
"""

from __future__ import annotations

from typing import NamedTuple

from simreduce.workload.architectures.decoder import Decoder
from simreduce.workload.architectures.shapes import (
    HEAD,
    block,
    gradients,
    kept_by_head,
    linear,
    norm,
)
from simreduce.workload.workload import Kept, Layer

WORDS = 50257
POSITIONS = 1024


class Gpt2(NamedTuple):
    """A GPT-2 model of `blocks` blocks and that width."""

    blocks: int
    width: int

    @property
    def shape(self) -> Decoder:
        """Its figures as a decoder."""
        heads = self.width // HEAD
        return Decoder(
            self.blocks, self.width, heads, heads, HEAD, 4 * self.width, WORDS, POSITIONS,
            gated=False, bias=True, dropout=True, tied=True, positions=POSITIONS,
        )  # fmt: skip

    def layers(self, tokens: int) -> list[Layer]:
        """The layers for sequences of `tokens` tokens."""
        h = self.width
        found = [
            Layer(
                "embeddings",
                (
                    *gradients("wte", [("weight", (WORDS, h))]),
                    *gradients("wpe", [("weight", (POSITIONS, h))]),
                ),
                kept=Kept(0.0, 1.0 * tokens * h),  # the mask of its dropout
            )
        ]
        for i in range(self.blocks):
            heads = [*norm("ln", h), *linear("c_attn", h, 3 * h), *linear("c_proj", h, h)]
            mlp = [*norm("ln", h), *linear("c_fc", h, 4 * h), *linear("c_proj", 4 * h, h)]
            names = f"h.{i}.attention", f"h.{i}.mlp"
            found += block(names, (heads, mlp), tokens, h)
        head = 2.0 * WORDS * h * tokens
        return [
            *found,
            Layer(
                "head",
                gradients("ln_f", [("weight", (h,)), ("bias", (h,))]),
                head,
                2 * head,
                kept=kept_by_head(tokens, h, WORDS),
            ),
        ]
