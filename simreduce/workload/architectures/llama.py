"""Llama 3 (Grattafiori et al. 2024) and Mixtral (Jiang et al. 2024): no biases, keys and values for
groups of heads, a gated feed-forward part.

Of Mixtral's experts a token passes through two, and all have gradients on every device: this is
data parallelism, nothing is said of experts that are spread over devices.

A norm belongs to the part that reads it. PyTorch registers a block's two norms last.
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
from simreduce.workload.model import Kept, Layer

HEAD = 128
"""The width of a head, in all sizes."""


class Llama(NamedTuple):
    """The figures of a Llama or Mixtral model.

    `narrow` is the width of keys and of values, `inner` the width of a feed-forward part. There are
    `experts` of these; a token passes through `active` of them.
    """

    blocks: int
    width: int
    narrow: int
    inner: int
    words: int
    experts: int = 1
    active: int = 1

    def layers(self, tokens: int) -> list[Layer]:
        """The layers for sequences of `tokens` tokens."""
        h = self.width
        embedding = gradients("embed_tokens", [("weight", (self.words, h))])
        found = [Layer("embed_tokens", embedding, kept=Kept())]
        for i in range(self.blocks):
            heads = [
                *linear("q_proj", h, h, bias=False),
                *linear("k_proj", h, self.narrow, bias=False),
                *linear("v_proj", h, self.narrow, bias=False),
                *linear("o_proj", h, h, bias=False),
                *scale("input_layernorm", h),
            ]
            more = attention(tokens, tokens, h)
            kept = Kept(
                2.0 * tokens * h,
                tokens * (8.0 * h + 4.0 * self.narrow),
                2.0 * (h // HEAD) * tokens**2,
                more,
            )
            found += [
                layer(f"layers.{i}.self_attn", heads, tokens, more, kept),
                self._feed_forward(f"layers.{i}.mlp", tokens),
            ]
        head = linear("lm_head", h, self.words, bias=False)
        return [
            *found,
            layer(
                "head",
                [*scale("norm", h), *head],
                tokens,
                kept=kept_by_head(tokens, h, self.words),
            ),
        ]

    def _feed_forward(self, name: str, tokens: int) -> Layer:
        after = scale("post_attention_layernorm", self.width)
        if self.experts == 1:
            return layer(name, [*self._gated(""), *after], tokens, kept=self._kept(tokens))
        gate = linear("gate", self.width, self.experts, bias=False)
        experts = [p for j in range(self.experts) for p in self._gated(f"experts.{j}.")]
        forward = products(gate, tokens) + products(experts, tokens) * self.active / self.experts
        all_of_them = gradients(name, [*gate, *experts, *after])
        return Layer(name, all_of_them, forward, 2 * forward, kept=self._kept(tokens))

    def _kept(self, tokens: int) -> Kept:
        """What the norm, the gated parts in use and, of several, their inputs and outputs keep."""
        h, routed = self.width, 4.0 * self.active * self.width if self.experts > 1 else 0.0
        return Kept(2.0 * tokens * h, tokens * (4.0 * h + routed + 8.0 * self.active * self.inner))

    def _gated(self, path: str) -> Shapes:
        return [
            *linear(f"{path}gate_proj", self.width, self.inner, bias=False),
            *linear(f"{path}up_proj", self.width, self.inner, bias=False),
            *linear(f"{path}down_proj", self.inner, self.width, bias=False),
        ]
