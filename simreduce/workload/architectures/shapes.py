"""The parts of every transformer: named shapes of parameters, and a layer of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from simreduce.workload.workload import Gradient, Kept, Layer

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


def attention(queries: float, keys: float, width: float) -> float:
    """FLOPs of the two products of attention over vectors of that width, all heads together."""
    return 4.0 * queries * keys * width


def layer(
    name: str, shapes: Shapes, tokens: float, more: float = 0.0, kept: Kept | None = None
) -> Layer:
    """A layer of `shapes` over `tokens` vectors, with `more` FLOPs besides its matrix products."""
    forward = more + products(shapes, tokens)
    return Layer(name, gradients(name, shapes), forward, 2 * forward, kept=kept)


HEAD = 64
"""The width of a head of `block`, in all sizes of its models."""


def block(
    names: tuple[str, str], parts: tuple[Shapes, Shapes], tokens: float, width: int
) -> list[Layer]:
    """Attention, and a feed-forward part four times as wide, with their parameters.

    They have dropout and keep 13 s h + 5 a s^2 and 21 s h, their norms included.
    """
    core = attention(tokens, tokens, width)
    scores = 5 * (width // HEAD) * tokens**2
    kept = Kept(2 * tokens * width, 13 * tokens * width, scores, core)
    wide = Kept(2 * tokens * width, 21 * tokens * width)
    return [
        layer(names[0], parts[0], tokens, core, kept),
        layer(names[1], parts[1], tokens, kept=wide),
    ]


def kept_by_head(tokens: float, width: int, words: int) -> Kept:
    """What the last norm, the output and the loss keep: 4 s h, and logits in float32, 4 s V."""
    return Kept(2 * tokens * width, 4 * tokens * (width + words))
