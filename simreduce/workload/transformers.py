"""BERT and GPT-2: parameters in the order in which PyTorch registers them, work by the length of a
sequence.

BERT (Devlin et al. 2018) is the encoder with its pooler, without the heads of pretraining; GPT-2
(Radford et al. 2019) ties its output to the word embedding, whose gradient is complete only when
back-propagation is at the input again. Work: two FLOPs per weight and token in matrix products, 4
s^2 h per block and sequence of s tokens for the two products of attention; twice that backward.
Look-ups, norms and activations are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from simreduce.workload.model import Layer, Model
from simreduce.workload.workload import Gradient


class _Shape(NamedTuple):
    """Of a model: blocks, width, words, positions, and the sequence that is usual in training."""

    blocks: int
    width: int
    words: int
    positions: int
    sequence: int


_TABLE: Mapping[str, _Shape] = {
    "bert-base": _Shape(12, 768, 30522, 512, 128),
    "bert-large": _Shape(24, 1024, 30522, 512, 128),
    "gpt2": _Shape(12, 768, 50257, 1024, 1024),
}

NAMES = tuple(_TABLE)


def longest(name: str) -> int:
    """Tokens of the longest sequence that the model takes."""
    return _TABLE[name].positions


def transformer(name: str, sequence: int | None = None) -> Model:
    """One of `NAMES`; a sample is a sequence of so many tokens."""
    shape = _TABLE[name]
    tokens = sequence or shape.sequence
    layers = _gpt2(shape, tokens) if name.startswith("gpt") else _bert(shape, tokens)
    return Model(name if sequence is None else f"{name},sequence={sequence}", tuple(layers))


def _layer(
    name: str, shapes: Sequence[tuple[str, tuple[int, ...]]], tokens: int, more: float = 0.0
) -> Layer:
    """`shapes` by the name of a parameter; those of two dimensions are multiplied with `tokens`
    vectors. `more` FLOPs.
    """
    gradients = tuple(Gradient(f"{name}.{path}", prod(shape)) for path, shape in shapes)
    forward = more + sum(2.0 * prod(shape) * tokens for _, shape in shapes if len(shape) == 2)
    return Layer(name, gradients, forward, 2 * forward)


def _linear(path: str, inputs: int, outputs: int) -> list[tuple[str, tuple[int, ...]]]:
    return [(f"{path}.weight", (inputs, outputs)), (f"{path}.bias", (outputs,))]


def _norm(path: str, width: int) -> list[tuple[str, tuple[int, ...]]]:
    return [(f"{path}.weight", (width,)), (f"{path}.bias", (width,))]


def _bert(shape: _Shape, s: int) -> list[Layer]:
    h = shape.width
    tables = (
        Gradient("embeddings.word.weight", shape.words * h),
        Gradient("embeddings.position.weight", shape.positions * h),
        Gradient("embeddings.token_type.weight", 2 * h),
        Gradient("embeddings.LayerNorm.weight", h),
        Gradient("embeddings.LayerNorm.bias", h),
    )
    layers = [Layer("embeddings", tables)]
    for i in range(shape.blocks):
        projections = [
            p for name in ("query", "key", "value", "output") for p in _linear(name, h, h)
        ]
        layers += [
            _layer(
                f"layer.{i}.attention", [*projections, *_norm("LayerNorm", h)], s, 4.0 * s * s * h
            ),
            _layer(
                f"layer.{i}.mlp",
                [
                    *_linear("intermediate", h, 4 * h),
                    *_linear("output", 4 * h, h),
                    *_norm("LayerNorm", h),
                ],
                s,
            ),
        ]
    return [*layers, _layer("pooler", _linear("dense", h, h), 1)]


def _gpt2(shape: _Shape, s: int) -> list[Layer]:
    h = shape.width
    tables = (Gradient("wte.weight", shape.words * h), Gradient("wpe.weight", shape.positions * h))
    layers = [Layer("embeddings", tables)]
    for i in range(shape.blocks):
        attention = [*_norm("ln", h), *_linear("c_attn", h, 3 * h), *_linear("c_proj", h, h)]
        mlp = [*_norm("ln", h), *_linear("c_fc", h, 4 * h), *_linear("c_proj", 4 * h, h)]
        layers += [
            _layer(f"h.{i}.attention", attention, s, 4.0 * s * s * h),
            _layer(f"h.{i}.mlp", mlp, s),
        ]
    head = 2.0 * shape.words * h * s
    norm = tuple(Gradient(f"ln_f.{path}", h) for path in ("weight", "bias"))
    return [*layers, Layer("head", norm, head, 2 * head)]
