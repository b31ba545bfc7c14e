"""Transformers by their architecture: parameters in the order in which PyTorch registers them, work
by the length of a sequence.

Gradients are float32, as masters of mixed precision are.

Activations are counted by the rules of Korthikanti et al. 2022, Reducing Activation Recomputation
in Large Transformer Models (https://arxiv.org/abs/2205.05198), section 4, for 16 bits: backward
needs the inputs of products, norms and nonlinearities and what softmax gives, two bytes an element,
masks of dropout, one byte, and logits in float32. A block of GPT-2, BERT or ViT with s tokens, a
width of h and a heads keeps 34 s h + 5 a s^2 bytes of a sample, as published. The others follow
from the same rules: most decoders have no dropout, fewer heads of keys, and gated parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from simreduce.workload.decoder import (
    DECODERS,
    GPT2_POSITIONS,
    Decoder,
    Gpt2,
    Shapes,
    attention,
    block,
    gradients,
    kept_by_head,
    layer,
    linear,
    norm,
    products,
    scale,
)
from simreduce.workload.workload import Kept, Layer, Model

_BERT_WORDS = 30522
BERT_POSITIONS = 512


class Bert(NamedTuple):
    """A BERT model of `blocks` blocks and that width.

    Devlin et al. 2018: the encoder with its pooler, without the heads of pretraining.
    """

    blocks: int
    width: int

    def layers(self, tokens: int) -> list[Layer]:
        """The layers for sequences of `tokens` tokens."""
        h = self.width
        tables = [
            ("word.weight", (_BERT_WORDS, h)),
            ("position.weight", (BERT_POSITIONS, h)),
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


_T5_WORDS = 32128
_T5_BUCKETS = 32
_T5_WRITTEN = 114 / 512


class T5(NamedTuple):
    """The figures of a T5 model.

    `projected` is the width of all heads together, `inner` the width of the feed-forward part.

    Raffel et al. 2020, the first version: encoder and decoder share one table of words with the
    output; the first block of either has the table of relative positions. A sample is what the
    encoder reads. The decoder writes 114 tokens for 512, as in pre-training with 15 % of the text
    masked in spans of three tokens, and in proportion for other lengths.
    """

    blocks: int
    width: int
    projected: int
    inner: int
    heads: int

    def layers(self, tokens: int) -> list[Layer]:
        """The layers for inputs of `tokens` tokens."""
        written = tokens * _T5_WRITTEN
        table = gradients("shared", [("weight", (_T5_WORDS, self.width))])
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
        head = 2.0 * _T5_WORDS * self.width * written
        norm = gradients("decoder.final", scale("layer_norm", self.width))
        kept = kept_by_head(written, self.width, _T5_WORDS)
        return [*found, Layer("decoder.final", norm, head, 2 * head, kept=kept)]

    def _attention(self, name: str, positions: bool, queries: float, keys: float) -> Layer:
        of_queries = [*linear("q", self.width, self.projected, bias=False)]
        of_keys = [
            *linear("k", self.width, self.projected, bias=False),
            *linear("v", self.width, self.projected, bias=False),
        ]
        out = linear("o", self.projected, self.width, bias=False)
        # Flat, because it is looked up and not multiplied.
        table: Shapes = (
            [("relative_attention_bias", (_T5_BUCKETS * self.heads,))] if positions else []
        )
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


_VIT_CLASSES = 1000
_VIT_PATCHES = (224 // 16) ** 2
VIT_TOKENS = _VIT_PATCHES + 1


class Vit(NamedTuple):
    """A ViT model of `blocks` blocks and that width.

    Dosovitskiy et al. 2020, as torchvision has them: images of 224 x 224 in patches of 16 x 16,
    1000 classes. A sample is an image: 196 patches and the token of the class.
    """

    blocks: int
    width: int

    def layers(self, tokens: int) -> list[Layer]:
        """The layers for an image, which has `tokens` tokens."""
        h = self.width
        patches = linear("conv_proj", 3 * 16 * 16, h)
        shapes = [("class_token", (h,)), *patches, ("encoder.pos_embedding", (tokens * h,))]
        # Nobody needs the gradient of an image, so that backward is no more than forward.
        once = products(patches, _VIT_PATCHES)
        kept = Kept(0.0, 2.0 * _VIT_PATCHES * 3 * 16 * 16 + tokens * h)  # the image, and a mask
        found = [Layer("embeddings", gradients("embeddings", shapes), once, once, kept=kept)]
        for i in range(self.blocks):
            heads = [*norm("ln_1", h), *linear("in_proj", h, 3 * h), *linear("out_proj", h, h)]
            mlp = [*norm("ln_2", h), *linear("mlp.0", h, 4 * h), *linear("mlp.3", 4 * h, h)]
            names = f"encoder.{i}.self_attention", f"encoder.{i}.mlp"
            found += block(names, (heads, mlp), tokens, h)
        head = [*norm("ln", h), *linear("head", h, _VIT_CLASSES)]
        ends = Kept(2.0 * tokens * h, 2.0 * (tokens + 1) * h)
        return [*found, layer("heads", head, 1, kept=ends)]


class _Architecture(NamedTuple):
    """`layers` for sequences of so many tokens; `usual` tokens in training, `longest` possible."""

    layers: Callable[[int], list[Layer]]
    usual: int
    longest: int
    shape: Decoder | None = None


def _decoder(shape: Decoder, longest: int = 0) -> _Architecture:
    return _Architecture(shape.layers, shape.sequence, longest or shape.sequence, shape)


def _gpt2(blocks: int, width: int) -> _Architecture:
    found = Gpt2(blocks, width)
    return _Architecture(found.layers, GPT2_POSITIONS, GPT2_POSITIONS, found.shape)


_TABLE: Mapping[str, _Architecture] = {
    "bert-base": _Architecture(Bert(12, 768).layers, 128, BERT_POSITIONS),
    "bert-large": _Architecture(Bert(24, 1024).layers, 128, BERT_POSITIONS),
    "gpt2": _gpt2(12, 768),
    "gpt2-medium": _gpt2(24, 1024),
    "gpt2-large": _gpt2(36, 1280),
    "gpt2-xl": _gpt2(48, 1600),
    **{name: _decoder(*figures) for name, figures in DECODERS.items()},
    "t5-base": _Architecture(T5(12, 768, 768, 3072, 12).layers, 512, 512),
    "t5-large": _Architecture(T5(24, 1024, 1024, 4096, 16).layers, 512, 512),
    "t5-3b": _Architecture(T5(24, 1024, 4096, 16384, 32).layers, 512, 512),
    "vit-b-16": _Architecture(Vit(12, 768).layers, VIT_TOKENS, VIT_TOKENS),
    "vit-l-16": _Architecture(Vit(24, 1024).layers, VIT_TOKENS, VIT_TOKENS),
}

NAMES = tuple(_TABLE)


def longest(name: str) -> int:
    """Tokens of the longest sequence that the model takes."""
    return _TABLE[name].longest


def of_sequences(name: str) -> bool:
    """Whether the length of a sample can be chosen; the number of an image's patches cannot."""
    return not name.startswith("vit")


def transformer(name: str, sequence: int | None = None) -> Model:
    """The model of that name; a sample is a sequence of `sequence` tokens, or an image."""
    found = _TABLE[name]
    tokens = sequence or found.usual
    shown = name if sequence is None else f"{name},sequence={sequence}"
    return Model(shown, tuple(found.layers(tokens)), tokens if of_sequences(name) else 0)


class Sequences(NamedTuple):
    """A decoder that reads sequences of so many tokens."""

    name: str
    shape: Decoder
    tokens: int

    @property
    def model(self) -> Model:
        """The model by layers."""
        return Model(self.name, tuple(self.shape.layers(self.tokens)), self.tokens)


def decoder(name: str, sequence: int | None = None) -> Sequences | None:
    """The decoder of that name; None if the model is none."""
    found = _TABLE[name]
    shown = name if sequence is None else f"{name},sequence={sequence}"
    return Sequences(shown, found.shape, sequence or found.usual) if found.shape else None
