"""Measured times of what a GPU computes beside predictions, and the constants they amount to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from math import prod
from statistics import median
from typing import NamedTuple

from simreduce.errors import InputError
from simreduce.files.published.compute import (
    ATTENTION,
    EMPTY,
    HOST,
    LAYERS,
    MOVES,
    PRODUCT,
    TimedCompute,
)
from simreduce.training.mesh.compute import LOSS, NORM, PLAIN, RESIDUAL, SOFTMAX, Kernels
from simreduce.training.mesh.gpus import GPUS, Gpu, gpu_of
from simreduce.training.mesh.job import MeshJob
from simreduce.training.mesh.parts import Parts
from simreduce.training.mesh.ways import Mesh
from simreduce.workload.architectures.decoder import Decoder

_BYTES = {
    "residual": RESIDUAL[0], "times": RESIDUAL[0], "copy": 4.0, "silu": 4.0, "dropout": 5.0,
    "softmax": SOFTMAX[0], "loss": LOSS[0], "adamw": 28.0,
    "gelu": PLAIN[0], "gelu_backward": PLAIN[1],
    "layer_norm": NORM[0], "rms_norm": NORM[0], "layer_norm_backward": 6.0,
    "rms_norm_backward": 6.0,
}  # fmt: skip
"""Of an element. Backward, a norm by itself reads its input and a gradient and writes one; Adam
reads a parameter, its gradient and two moments in 32 bits, and writes three of these.
"""
_PARTS = {  # what large calls of a group determine, and the largest part of a rate that they reach
    PRODUCT.format(16): "products",
    PRODUCT.format(8): "products8",
    ATTENTION: "attention",
    MOVES: "memory",
}
_TIMES = {EMPTY: "kernel", HOST: "host"}


class ComputePoint(NamedTuple):
    """What was timed, and the seconds that are predicted."""

    timed: TimedCompute
    predicted: float

    @property
    def error(self) -> float:
        """By what part the prediction is too long."""
        return self.predicted / self.timed.seconds - 1.0


class ComputeGroup(NamedTuple):
    """What was timed of a GPU, of one group."""

    points: Sequence[ComputePoint]

    @property
    def timed(self) -> TimedCompute:
        """The first."""
        return self.points[0].timed

    @property
    def median(self) -> float:
        """Half of the errors are below this."""
        return median(abs(point.error) for point in self.points)

    @property
    def worst(self) -> float:
        """The largest error."""
        return max(abs(point.error) for point in self.points)

    @property
    def bias(self) -> float:
        """The median of signed errors: above 0, predictions are too long."""
        return median(point.error for point in self.points)

    @property
    def constant(self) -> str | None:
        """The key of a `compute` file that the group determines."""
        return (_PARTS | _TIMES).get(self.timed.group)

    @property
    def now(self) -> float | None:
        """What it is: a part, or seconds."""
        return getattr(_gpu(self.timed.gpu), self.constant) if self.constant else None

    @property
    def fits(self) -> float | None:
        """What it would have to be, for half of the predictions to be too long."""
        if self.now is None:
            return None
        scale = median(point.predicted / point.timed.seconds for point in self.points)
        return self.now / scale if self.timed.group in _TIMES else self.now * scale


def predict_compute(timed: Iterable[TimedCompute]) -> list[ComputePoint]:
    """Each as it is predicted by the model of meshes; InputError if a GPU is not known."""
    return [ComputePoint(each, _seconds(each)) for each in timed]


def group_compute(points: Iterable[ComputePoint]) -> list[ComputeGroup]:
    """The groups of each GPU, in order."""
    found: dict[tuple[str, str], list[ComputePoint]] = {}
    for point in points:
        found.setdefault((point.timed.gpu, point.timed.group), []).append(point)
    return [ComputeGroup(group) for group in found.values()]


@cache
def _gpu(model: str) -> Gpu:
    found = gpu_of(model)
    if found is None:
        raise InputError(f"no GPU {model!r}; known are {', '.join(GPUS)}")
    return found


def _seconds(timed: TimedCompute) -> float:
    gpu, shape = _gpu(timed.gpu), timed.shape
    kernels = Kernels(gpu, timed.bits)
    if timed.group == EMPTY:
        return gpu.kernel
    if timed.group == HOST:
        return gpu.host
    if timed.group == MOVES:
        return kernels.moves(float(prod(shape)), (_BYTES[timed.kind], 0.0)).forward
    if timed.group == ATTENTION:
        batch, tokens, heads, width = shape
        causal = "causal" in timed.kind
        found = kernels.fused_attention(batch * tokens, tokens, heads * width, causal=causal)
        return found.forward if timed.kind.endswith("forward") else found.inputs
    if timed.group == LAYERS:
        return _layers(gpu, *shape, forward=timed.kind == "layers_forward")
    rows, columns, inner = shape
    return kernels.product(rows, columns, inner)


def _layers(
    gpu: Gpu, count: int, tokens: int, width: int, heads: int, groups: int, inner: int,
    *, forward: bool,
) -> float:  # fmt: skip
    shape = Decoder(count, width, heads, groups, width // heads, inner, 1, tokens)
    job = MeshJob(shape, Mesh(), gpu, 1, 1, tokens, "1f1b", 1, (count,))
    parts = Parts(job)
    found = parts.attention.times + parts.feed_forward.times
    return count * (found.forward if forward else found.seconds)
