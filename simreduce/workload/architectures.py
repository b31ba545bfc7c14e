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
from functools import partial
from typing import NamedTuple

from simreduce.workload.decoder import (
    DECODERS,
    GPT2_POSITIONS,
    Decoder,
    attention,
    block,
    gpt2_layers,
    gpt2_shape,
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


def _bert(blocks: int, h: int, tokens: int) -> list[Layer]:
    """A BERT model of `blocks` blocks and a width of `h`, for sequences of `tokens` tokens.

    Devlin et al. 2018: the encoder with its pooler, without the heads of pretraining.
    """
    tables = [
        ("word.weight", (_BERT_WORDS, h)),
        ("position.weight", (BERT_POSITIONS, h)),
        ("token_type.weight", (2, h)),
        *norm("LayerNorm", h),
    ]
    kept = Kept(0.0, 3.0 * tokens * h)  # its norm and its dropout
    found = [Layer("embeddings", gradients("embeddings", tables), kept=kept)]
    for i in range(blocks):
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


def _t5(blocks: int, h: int, projected: int, inner: int, heads: int, tokens: int) -> list[Layer]:
    """A T5 model of width `h` for inputs of `tokens` tokens.

    `projected` is the width of all heads together, `inner` the width of the feed-forward part.

    Raffel et al. 2020, the first version: encoder and decoder share one table of words with the
    output; the first block of either has the table of relative positions. A sample is what the
    encoder reads. The decoder writes 114 tokens for 512, as in pre-training with 15 % of the text
    masked in spans of three tokens, and in proportion for other lengths.
    """

    def attend(name: str, queries: float, keys: float, *, positions: bool = False) -> Layer:
        ends = [*linear("q", h, projected, bias=False), *linear("o", projected, h, bias=False)]
        of_keys = [part for each in "kv" for part in linear(each, h, projected, bias=False)]
        # Flat, because it is looked up and not multiplied.
        table = [("relative_attention_bias", (_T5_BUCKETS * heads,))] * positions
        core = attention(queries, keys, projected)
        forward = products(ends, queries) + products(of_keys, keys) + core
        shapes = [ends[0], *of_keys, ends[1], *table, *scale("layer_norm", h)]
        kept = Kept(
            2.0 * queries * h,
            queries * (5.0 * h + 4.0 * projected) + 4.0 * keys * projected,
            5.0 * heads * queries * keys,
            core,
        )
        return Layer(name, gradients(name, shapes), forward, 2 * forward, kept=kept)

    def feed_forward(name: str, tokens: float) -> Layer:
        parts = [*linear("wi", h, inner, bias=False), *linear("wo", inner, h, bias=False)]
        kept = Kept(2.0 * tokens * h, 5.0 * tokens * (h + inner))
        return layer(name, [*parts, *scale("layer_norm", h)], tokens, kept=kept)

    written = tokens * _T5_WRITTEN
    table = gradients("shared", [("weight", (_T5_WORDS, h))])
    found = [Layer("shared", table, kept=Kept(0.0, (tokens + written) * h))]
    for i in range(blocks):
        found += [
            attend(f"encoder.block.{i}.self", tokens, tokens, positions=i == 0),
            feed_forward(f"encoder.block.{i}.mlp", tokens),
        ]
    ends = Kept(2.0 * tokens * h, 4.0 * tokens * h)  # and what decoders read
    found.append(layer("encoder.final", scale("layer_norm", h), tokens, kept=ends))
    for i in range(blocks):
        found += [
            attend(f"decoder.block.{i}.self", written, written, positions=i == 0),
            attend(f"decoder.block.{i}.cross", written, tokens),
            feed_forward(f"decoder.block.{i}.mlp", written),
        ]
    head = 2.0 * _T5_WORDS * h * written
    last, kept = scale("layer_norm", h), kept_by_head(written, h, _T5_WORDS)
    return [*found, layer("decoder.final", last, written, head, kept)]


_VIT_CLASSES = 1000
_VIT_PATCHES = (224 // 16) ** 2
VIT_TOKENS = _VIT_PATCHES + 1


def _vit(blocks: int, h: int, tokens: int) -> list[Layer]:
    """A ViT model of `blocks` blocks and a width of `h`, for an image of `tokens` tokens.

    Dosovitskiy et al. 2020, as torchvision has them: images of 224 x 224 in patches of 16 x 16,
    1000 classes. A sample is an image: 196 patches and the token of the class.
    """
    patches = linear("conv_proj", 3 * 16 * 16, h)
    shapes = [("class_token", (h,)), *patches, ("encoder.pos_embedding", (tokens * h,))]
    # Nobody needs the gradient of an image, so that backward is no more than forward.
    once = products(patches, _VIT_PATCHES)
    kept = Kept(0.0, 2.0 * _VIT_PATCHES * 3 * 16 * 16 + tokens * h)  # the image, and a mask
    found = [Layer("embeddings", gradients("embeddings", shapes), once, once, kept=kept)]
    for i in range(blocks):
        heads = [*norm("ln_1", h), *linear("in_proj", h, 3 * h), *linear("out_proj", h, h)]
        mlp = [*norm("ln_2", h), *linear("mlp.0", h, 4 * h), *linear("mlp.3", 4 * h, h)]
        names = f"encoder.{i}.self_attention", f"encoder.{i}.mlp"
        found += block(names, (heads, mlp), tokens, h)
    head = [*norm("ln", h), *linear("head", h, _VIT_CLASSES)]
    ends = Kept(2.0 * tokens * h, 2.0 * (tokens + 1) * h)
    return [*found, layer("heads", head, 1, kept=ends)]


class Architecture(NamedTuple):
    """`layers` for sequences of so many tokens; `usual` tokens in training, `longest` possible."""

    layers: Callable[[int], list[Layer]]
    usual: int
    longest: int
    shape: Decoder | None = None


def _gpt2(blocks: int, width: int) -> Architecture:
    layers, shape = partial(gpt2_layers, blocks, width), gpt2_shape(blocks, width)
    return Architecture(layers, GPT2_POSITIONS, GPT2_POSITIONS, shape)


ARCHITECTURES: Mapping[str, Architecture] = {
    "bert-base": Architecture(partial(_bert, 12, 768), 128, BERT_POSITIONS),
    "bert-large": Architecture(partial(_bert, 24, 1024), 128, BERT_POSITIONS),
    "gpt2": _gpt2(12, 768),
    "gpt2-medium": _gpt2(24, 1024),
    "gpt2-large": _gpt2(36, 1280),
    "gpt2-xl": _gpt2(48, 1600),
    **{
        name: Architecture(shape.layers, shape.sequence, longest, shape)
        for name, (shape, longest) in DECODERS.items()
    },
    "t5-base": Architecture(partial(_t5, 12, 768, 768, 3072, 12), 512, 512),
    "t5-large": Architecture(partial(_t5, 24, 1024, 1024, 4096, 16), 512, 512),
    "t5-3b": Architecture(partial(_t5, 24, 1024, 4096, 16384, 32), 512, 512),
    "vit-b-16": Architecture(partial(_vit, 12, 768), VIT_TOKENS, VIT_TOKENS),
    "vit-l-16": Architecture(partial(_vit, 24, 1024), VIT_TOKENS, VIT_TOKENS),
}


def of_sequences(name: str) -> bool:
    """Whether the length of a sample can be chosen; the number of an image's patches cannot."""
    return not name.startswith("vit")


def transformer(name: str, sequence: int | None = None) -> Model:
    """The model of that name; a sample is a sequence of `sequence` tokens, or an image."""
    tokens = sequence or ARCHITECTURES[name].usual
    layers = tuple(ARCHITECTURES[name].layers(tokens))
    shown = name if sequence is None else f"{name},sequence={sequence}"
    return Model(shown, layers, tokens if of_sequences(name) else 0)


class Sequences(NamedTuple):
    """A decoder that reads sequences of so many tokens."""

    name: str
    shape: Decoder
    tokens: int

    @property
    def model(self) -> Model:
        """The model by layers."""
        return Model(self.name, tuple(self.shape.layers(self.tokens)), self.tokens)
