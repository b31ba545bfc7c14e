"""A model as back-propagation sees it: layers, each with its gradients and its work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from simreduce.workload.workload import Gradient, Workload


class Kept(NamedTuple):
    """Bytes of activations that backward needs of a layer, for one sample: in 16 bits of
    transformers, in float32 of image models.

    `input` is what it reads. `scores` are those of attention by itself, softmax and its dropout,
    which fused attention does not keep; `others` are all the rest. `core` is the work of attention
    by itself in FLOPs, which makes the scores again.
    """

    input: float = 0.0
    others: float = 0.0
    scores: float = 0.0
    core: float = 0.0


ACTIVATION_SOURCES = ("given", "estimated", "not_counted")
"""Where the bytes of activations come from: the user, the model's architecture, or nowhere."""


@dataclass(frozen=True, slots=True)
class Layer:
    """`gradients` exist once the layer's backward pass is done. `forward` and `backward` are FLOPs
    of one sample, two for a multiplication and an addition; 0, and not `counted`, where nobody did.
    `kept` is None where nobody counted activations.
    """

    name: str
    gradients: tuple[Gradient, ...]
    forward: float = 0.0
    backward: float = 0.0
    counted: bool = True
    kept: Kept | None = None

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
