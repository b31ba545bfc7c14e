"""T5 (Raffel et al. 2020), the first version: encoder and decoder share one table of words with the
output; the first block of either has the table of relative positions.

A sample is what the encoder reads. The decoder writes 114 tokens for 512, as in pre-training with
15 % of the text masked in spans of three tokens, and in proportion for other lengths.
"""

from __future__ import annotations

from typing import NamedTuple

from simreduce.workload.architectures.shapes import (
    Shapes,
    attention,
    gradients,
    kept_by_head,
    layer,
    linear,
    products,
    scale,
)
from simreduce.workload.workload import Kept, Layer

WORDS = 32128
_BUCKETS = 32
_WRITTEN = 114 / 512


class T5(NamedTuple):
    """The figures of a T5 model.

    `projected` is the width of all heads together, `inner` the width of the feed-forward part.
    """

    blocks: int
    width: int
    projected: int
    inner: int
    heads: int

    def layers(self, tokens: int) -> list[Layer]:
        """The layers for inputs of `tokens` tokens."""
        written = tokens * _WRITTEN
        table = gradients("shared", [("weight", (WORDS, self.width))])
        masks = Kept(0.0, (tokens + written) * self.width)
        found = [Layer("shared", table, kept=masks)]
        for i in range(self.blocks):
            found += [
                self._attention(f"encoder.block.{i}.self", i == 0, tokens, tokens),
                self._feed_forward(f"encoder.block.{i}.mlp", tokens),
            ]
        ends = Kept(2.0 * tokens * self.width, 4.0 * tokens * self.width)  # and what decoders read
        found.append(layer("encoder.final", scale("layer_norm", self.width), tokens, kept=ends))
        for i in range(self.blocks):
            found += [
                self._attention(f"decoder.block.{i}.self", i == 0, written, written),
                self._attention(f"decoder.block.{i}.cross", False, written, tokens),
                self._feed_forward(f"decoder.block.{i}.mlp", written),
            ]
        head = 2.0 * WORDS * self.width * written
        norm = gradients("decoder.final", scale("layer_norm", self.width))
        kept = kept_by_head(written, self.width, WORDS)
        return [*found, Layer("decoder.final", norm, head, 2 * head, kept=kept)]

    def _attention(self, name: str, positions: bool, queries: float, keys: float) -> Layer:
        of_queries = [*linear("q", self.width, self.projected, bias=False)]
        of_keys = [
            *linear("k", self.width, self.projected, bias=False),
            *linear("v", self.width, self.projected, bias=False),
        ]
        out = linear("o", self.projected, self.width, bias=False)
        # Flat, because it is looked up and not multiplied.
        table: Shapes = [("relative_attention_bias", (_BUCKETS * self.heads,))] if positions else []
        forward = (
            products([*of_queries, *out], queries)
            + products(of_keys, keys)
            + attention(queries, keys, self.projected)
        )
        shapes = [*of_queries, *of_keys, *out, *table, *scale("layer_norm", self.width)]
        kept = Kept(
            2.0 * queries * self.width,
            queries * (5.0 * self.width + 4.0 * self.projected) + 4.0 * keys * self.projected,
            5.0 * self.heads * queries * keys,
            attention(queries, keys, self.projected),
        )
        return Layer(name, gradients(name, shapes), forward, 2 * forward, kept=kept)

    def _feed_forward(self, name: str, tokens: float) -> Layer:
        shapes = [
            *linear("wi", self.width, self.inner, bias=False),
            *linear("wo", self.inner, self.width, bias=False),
            *scale("layer_norm", self.width),
        ]
        kept = Kept(2.0 * tokens * self.width, 5.0 * tokens * (self.width + self.inner))
        return layer(name, shapes, tokens, kept=kept)
