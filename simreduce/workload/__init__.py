"""Gradients to reduce, in order, with names, elements and dtype; and the models they belong to.

A model is given layer by layer.

The gradient list.

A model as back-propagation sees it: layers, each with its gradients and its work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from simreduce import dtypes, units
from simreduce.errors import WorkloadError


@dataclass(frozen=True, slots=True)
class Gradient:
    """One gradient: `elements` of the dtype with code `dtype` (see `simreduce.dtypes`)."""

    name: str
    elements: int
    dtype: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of one device's copy."""
        return self.elements * dtypes.SIZES[self.dtype]


MOST_BYTES = 2**50
"""More than any device holds; addresses and times of repeated steps stay far from the ends of their
types.
"""


@dataclass(frozen=True, slots=True, repr=False)
class Workload:
    """Gradients in the order in which the framework lists its variables.

    Those of a recorded job are whole buckets, as finer ones are not known. Then `finest` is the
    size in bytes below which no other buckets can be made of them; else it is 0.
    """

    name: str
    gradients: tuple[Gradient, ...]
    finest: int = 0

    def __post_init__(self) -> None:
        if not self.gradients:
            raise WorkloadError(f"{self.name}: there is no gradient to reduce")
        if self.nbytes > MOST_BYTES:
            raise WorkloadError(f"{self.name}: more than 1 PiB of gradients")

    def __repr__(self) -> str:
        count = units.plural(len(self.gradients), "gradient")
        return f"<Workload {self.name}: {count}, {units.format_size(self.nbytes)}>"

    @property
    def elements(self) -> int:
        """Elements of all gradients."""
        return sum(g.elements for g in self.gradients)

    @property
    def nbytes(self) -> int:
        """Bytes of all gradients of one device: the S of algbw = S / time."""
        return sum(g.nbytes for g in self.gradients)


class Kept(NamedTuple):
    """Bytes of activations that backward needs of a layer, for one sample: in 16 bits of
    transformers, in float32 of image models.

    `input` is what it reads. `scores` are those of attention by itself, softmax and its dropout,
    which fused attention does not keep; `others` are all the rest. `core` is the work of attention
    by itself in FLOPs, which makes the scores again. These are bytes of fused kernels; `program`
    has the ops of plain PyTorch (`workload.autograd`).
    """

    input: float = 0.0
    others: float = 0.0
    scores: float = 0.0
    core: float = 0.0
    program: tuple[str | int, ...] = ()


ACTIVATION_SOURCES = ("given", "estimated", "not_counted")
"""Where the bytes of activations come from: the user, the model's architecture, or nowhere."""


@dataclass(frozen=True, slots=True)
class Layer:
    """`gradients` exist once the layer's backward pass is done. `forward` and `backward` are FLOPs
    of one sample, two for a multiplication and an addition; 0, and not `counted`, where nobody did.
    `kept` is None where nobody counted activations. A convolution has a `window` of that height,
    width and stride.
    """

    name: str
    gradients: tuple[Gradient, ...]
    forward: float = 0.0
    backward: float = 0.0
    counted: bool = True
    kept: Kept | None = None
    window: tuple[int, int, int] | None = None

    @property
    def flops(self) -> float:
        """FLOPs of both passes."""
        return self.forward + self.backward


@dataclass(frozen=True, slots=True)
class Model:
    """Layers in the order of the forward pass. Their gradients, one after another, are the
    framework's list, with `finest` as a `Workload` has it. A sample has `tokens` tokens; 0 if it
    has none, or nobody says.
    """

    name: str
    layers: tuple[Layer, ...]
    tokens: int = 0
    finest: int = 0

    @property
    def workload(self) -> Workload:
        """The gradient list."""
        gradients = tuple(g for layer in self.layers for g in layer.gradients)
        return Workload(self.name, gradients, self.finest)

    @property
    def forward(self) -> float:
        """FLOPs of one sample's forward pass."""
        return sum(layer.forward for layer in self.layers)

    @property
    def flops(self) -> float:
        """FLOPs of one sample, both passes; 0 if nobody counted them."""
        return sum(layer.flops for layer in self.layers)

    @property
    def uncounted(self) -> tuple[Layer, ...]:
        """Layers whose work is not known."""
        return tuple(layer for layer in self.layers if not layer.counted)


def of_list(workload: Workload) -> Model:
    """A gradient list as a model: every gradient is a layer, whose work is not known."""
    return Model(
        workload.name, tuple(Layer(g.name, (g,), counted=False) for g in workload.gradients)
    )


def in_dtype(model: Model, dtype: int) -> Model:
    """The model with all gradients in the dtype of that code."""
    return replace(model, layers=tuple(
        replace(layer, gradients=tuple(replace(g, dtype=dtype) for g in layer.gradients))
        for layer in model.layers
    ))  # fmt: skip
