"""Transformers by their architecture: parameters in the order in which PyTorch registers them, work
by the length of a sequence.

One file per family: `bert`, `decoder` (equal blocks of causal attention), `gpt2`, `t5`, `vit`.
`decoder` also has the figures of decoders by name, and reads those of others.
Work: two FLOPs per weight and token in matrix products, and in attention four per pair of
tokens and unit of width; twice that backward. A causal mask saves nothing, as in the counts that
are published. Look-ups, norms and activations are not counted.

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

from simreduce.workload.architectures import bert, gpt2, t5, vit
from simreduce.workload.architectures.decoder import DECODERS, Decoder
from simreduce.workload.workload import Layer, Model


class _Architecture(NamedTuple):
    """`layers` for sequences of so many tokens; `usual` tokens in training, `longest` possible."""

    layers: Callable[[int], list[Layer]]
    usual: int
    longest: int
    shape: Decoder | None = None


def _decoder(shape: Decoder, longest: int = 0) -> _Architecture:
    return _Architecture(shape.layers, shape.sequence, longest or shape.sequence, shape)


def _gpt2(blocks: int, width: int) -> _Architecture:
    found = gpt2.Gpt2(blocks, width)
    return _Architecture(found.layers, gpt2.POSITIONS, gpt2.POSITIONS, found.shape)


_TABLE: Mapping[str, _Architecture] = {
    "bert-base": _Architecture(bert.Bert(12, 768).layers, 128, bert.POSITIONS),
    "bert-large": _Architecture(bert.Bert(24, 1024).layers, 128, bert.POSITIONS),
    "gpt2": _gpt2(12, 768),
    "gpt2-medium": _gpt2(24, 1024),
    "gpt2-large": _gpt2(36, 1280),
    "gpt2-xl": _gpt2(48, 1600),
    **{name: _decoder(*figures) for name, figures in DECODERS.items()},
    "t5-base": _Architecture(t5.T5(12, 768, 768, 3072, 12).layers, 512, 512),
    "t5-large": _Architecture(t5.T5(24, 1024, 1024, 4096, 16).layers, 512, 512),
    "t5-3b": _Architecture(t5.T5(24, 1024, 4096, 16384, 32).layers, 512, 512),
    "vit-b-16": _Architecture(vit.Vit(12, 768).layers, vit.TOKENS, vit.TOKENS),
    "vit-l-16": _Architecture(vit.Vit(24, 1024).layers, vit.TOKENS, vit.TOKENS),
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
