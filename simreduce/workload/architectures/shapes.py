"""The parts of every transformer: named shapes of parameters, and a layer of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from simreduce.workload.model import Kept, Layer
from simreduce.workload.workload import Gradient

Shapes = list[tuple[str, tuple[int, ...]]]
"""Parameters by name, in the order of their registration."""


def linear(path: str, inputs: int, outputs: int, *, bias: bool = True) -> Shapes:
    """A fully connected part."""
    weight = (f"{path}.weight", (inputs, outputs))
    return [weight, (f"{path}.bias", (outputs,))] if bias else [weight]


def norm(path: str, width: int) -> Shapes:
    """A norm with scale and shift."""
    return [(f"{path}.weight", (width,)), (f"{path}.bias", (width,))]


def scale(path: str, width: int) -> Shapes:
    """A norm with nothing but a scale."""
    return [(f"{path}.weight", (width,))]


def gradients(name: str, shapes: Sequence[tuple[str, tuple[int, ...]]]) -> tuple[Gradient, ...]:
    """The gradients of the parameters of `name`."""
    return tuple(Gradient(f"{name}.{path}", prod(shape)) for path, shape in shapes)


def products(shapes: Sequence[tuple[str, tuple[int, ...]]], tokens: float) -> float:
    """FLOPs of the products of all two-dimensional shapes with so many vectors."""
    return sum(2.0 * prod(shape) * tokens for _, shape in shapes if len(shape) == 2)


def attention(queries: float, keys: float, width: int) -> float:
    """FLOPs of the two products of attention over vectors of that width, all heads together."""
    return 4.0 * queries * keys * width


def layer(
    name: str, shapes: Shapes, tokens: float, more: float = 0.0, kept: Kept | None = None
) -> Layer:
    """A layer of `shapes` over `tokens` vectors, with `more` FLOPs besides its matrix products."""
    forward = more + products(shapes, tokens)
    return Layer(name, gradients(name, shapes), forward, 2 * forward, kept=kept)


def kept_by_attention(tokens: float, width: int, heads: int) -> Kept:
    """What attention of a block with dropout keeps, its norm included: 13 s h + 5 a s^2."""
    core = attention(tokens, tokens, width)
    return Kept(2 * tokens * width, 13 * tokens * width, 5 * heads * tokens**2, core)


def kept_by_mlp(tokens: float, width: int) -> Kept:
    """What a feed-forward part four times as wide keeps, its norm included: 21 s h."""
    return Kept(2 * tokens * width, 21 * tokens * width)


def kept_by_head(tokens: float, width: int, words: int) -> Kept:
    """What the last norm, the output and the loss keep: 4 s h, and logits in float32, 4 s V."""
    return Kept(2 * tokens * width, 4 * tokens * (width + words))
