"""The image models of tf_cnn_benchmarks: its trainable variables, in the order of their creation,
for 1001 classes.

Architectures: tensorflow/benchmarks, `scripts/tf_cnn_benchmarks/models` (master 8fb7907). Work is
that of convolutions and of fully connected layers; a backward pass has twice the forward's
(gradients of weights and of inputs), once in the layer that reads the image. Batch norm, pooling
and activations are not counted as work.

Activations that backward needs are counted in float32, in which tf_cnn_benchmarks computes unless
--use_fp16 is set. A convolution keeps what its batch norm reads and what its ReLU gives, which the
next layer reads: 6 buffers of a bottleneck block (Rota Bulo et al. 2018, In-Place Activated
BatchNorm for Memory-Optimized Training of DNNs, https://arxiv.org/abs/1712.02616, figure of the
residual block). Without a batch norm it keeps one. A pooling keeps what it gives. Of models with
branches nothing is counted: where what they give is concatenated, it is copied or not.

A branch of an inception module is written as its convolutions: `64@1x1` is 64 filters of 1x1, `/2`
a stride of 2, `v` no padding, `+` several that read the same and are concatenated, `p` a pooling of
the same stride and padding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import prod

from simreduce.workload.workload import Gradient, Kept, Layer, Model

CLASSES = 1001
_WIDTH = 4
"""Bytes of an activation."""

_CONV = re.compile(r"(p?)(\d*)@(\d+)x(\d+)(?:/(\d+))?(v?)")


class _Net:
    """Builds layer after layer, and keeps the shape (height = width, channels) of what the last one
    gave.
    """

    def __init__(self, size: int, norm: tuple[str, ...]) -> None:
        self.size, self.channels, self.norm, self.scope = size, 3, norm, ""
        self.layers: list[Layer] = []
        self.branched = False
        self._convolutions, self._affine = count(), count()
        self._read = self._elements  # what the next layer reads and no layer before it keeps

    @property
    def _elements(self) -> int:
        return self.size**2 * self.channels

    def conv(
        self, filters: int, kernel: tuple[int, int], stride: int = 1, *, padded: bool = True,
        activated: bool = True,
    ) -> None:  # fmt: skip
        """A convolution, followed by a batch norm or with biases, and by a ReLU if `activated`."""
        number = next(self._convolutions)
        path = f"cg/{self.scope}conv{number}"
        shapes: dict[str, tuple[int, ...]] = {
            f"{path}/conv2d/kernel": (*kernel, self.channels, filters)
        }
        if self.norm:
            shapes |= {f"{path}/batchnorm{number}/{name}": (filters,) for name in self.norm}
        else:
            shapes[f"{path}/biases"] = (filters,)
        self._shrink(kernel[0], stride, padded=padded)
        self.channels = filters
        self._layer(path, shapes, self.size**2, bool(self.norm) + activated)

    def pool(self, kernel: int, stride: int, *, padded: bool = False) -> None:
        """A pooling by a window of that size and stride."""
        self._shrink(kernel, stride, padded=padded)
        self._read = self._elements

    def _shrink(self, kernel: int, stride: int, *, padded: bool) -> None:
        """Shrink the image to what a window of that size and stride leaves of it."""
        self.size = -(-(self.size if padded else self.size - kernel + 1) // stride)

    def affine(self, outputs: int) -> None:
        """A fully connected layer; it reads all there is."""
        path = f"cg/affine{next(self._affine)}"
        inputs = self._elements
        self.size, self.channels = 1, outputs
        shapes = {f"{path}/weights": (inputs, outputs), f"{path}/biases": (outputs,)}
        self._layer(path, shapes, 1, 1)

    def branches(self, *texts: str) -> None:
        """Convolutions side by side, as the head of this file spells them; what they give is
        concatenated.
        """
        size, channels, given, self.branched = self.size, self.channels, 0, True
        for text in texts:
            self.size, self.channels = size, channels
            self.chain(text)
            given += self.channels
        self.channels = given

    def chain(self, text: str) -> None:
        """Convolutions one after another, as the head of this file spells a branch."""
        for siblings in text.split():
            source, total = (self.size, self.channels), 0
            for pooled, filters, height, width, stride, valid in _CONV.findall(siblings):
                self.size, self.channels = source
                if pooled:
                    self.pool(int(height), int(stride or 1), padded=not valid)
                else:
                    kernel = int(height), int(width)
                    self.conv(int(filters), kernel, int(stride or 1), padded=not valid)
                total += self.channels
            self.channels = total

    def _layer(
        self, name: str, shapes: Mapping[str, Sequence[int]], positions: int, buffers: int
    ) -> None:
        """A layer, which keeps so many buffers of what it gives."""
        kept = Kept(others=_WIDTH * (self._read + buffers * self._elements))
        self._read = 0
        gradients = tuple(Gradient(path, prod(shape)) for path, shape in shapes.items())
        forward = 2.0 * gradients[0].elements * positions
        backward = 2 * forward if self.layers else forward
        self.layers.append(Layer(name, gradients, forward, backward, kept=kept))


def _plain(convolutions: str, *outputs: int) -> Callable[[_Net], None]:
    """Convolutions and poolings one after another, then fully connected layers."""

    def build(net: _Net) -> None:
        net.chain(convolutions)
        for each in outputs:
            net.affine(each)

    return build


_ALEXNET = "64@11x11/4v p@3x3/2v 192@5x5 p@3x3/2v 384@3x3 384@3x3 256@3x3 p@3x3/2v"
_VGG16 = " ".join(
    f"{filters}@3x3 " * times + "p@2x2/2v"
    for filters, times in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
)


def _googlenet(net: _Net) -> None:
    net.chain("64@7x7/2 p@3x3/2 64@1x1 192@3x3 p@3x3/2")
    net.scope = "incept_v10/"
    for module in (
        (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), (),
        (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128), (),
        (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
    ):  # fmt: skip
        if not module:
            net.pool(3, 2, padded=True)
            continue
        a, b, c, d, e, f = module
        net.branches(f"{a}@1x1", f"{b}@1x1 {c}@3x3", f"{d}@1x1 {e}@5x5", f"{f}@1x1")
    _classify(net)


def _inception3(net: _Net) -> None:
    net.branches("32@3x3/2v 32@3x3v 64@3x3 p@3x3/2v 80@1x1 192@3x3v p@3x3/2v")
    net.scope = "incept_v3_a0/"
    for pooled in (32, 64, 64):
        net.branches("64@1x1", "48@1x1 64@5x5", "64@1x1 96@3x3 96@3x3", f"{pooled}@1x1")
    net.scope = "incept_v3_b0/"
    net.branches("384@3x3/2v", "64@1x1 96@3x3 96@3x3/2v", "p@3x3/2v")
    net.scope = "incept_v3_c0/"
    for n in (128, 160, 160, 192):
        net.branches(
            "192@1x1",
            f"{n}@1x1 {n}@1x7 192@7x1",
            f"{n}@1x1 {n}@7x1 {n}@1x7 {n}@7x1 192@1x7",
            "192@1x1",
        )
    net.scope = "incept_v3_d0/"
    net.branches("192@1x1 320@3x3/2v", "192@1x1 192@1x7 192@7x1 192@3x3/2v", "p@3x3/2v")
    net.scope = "incept_v3_e0/"
    for _ in range(2):
        net.branches(
            "320@1x1", "384@1x1 384@1x3+384@3x1", "448@1x1 384@3x3 384@1x3+384@3x1", "192@1x1"
        )
    _classify(net)


def _resnet(*blocks: int) -> Callable[[_Net], None]:
    """Version 1: the stride is in a block's first convolution."""

    def build(net: _Net) -> None:
        net.chain("64@7x7/2 p@3x3/2")
        numbers = count()
        for stage, length in enumerate(blocks):
            width = 64 * 2**stage
            for block in range(length):
                net.scope = f"resnet_v1{next(numbers)}/"
                stride = 2 if stage and not block else 1
                size, channels = net.size, net.channels
                if not block:
                    # the shortcut, where the shape changes
                    net.conv(4 * width, (1, 1), stride, activated=False)
                    net.size, net.channels = size, channels
                net.chain(f"{width}@1x1/{stride} {width}@3x3 {4 * width}@1x1")
        _classify(net)

    return build


def _classify(net: _Net) -> None:
    """The mean over the image, and scores."""
    net.pool(net.size, net.size)
    net.affine(CLASSES)


_TABLE: Mapping[str, tuple[Callable[[_Net], None], int, tuple[str, ...]]] = {
    "alexnet": (_plain(_ALEXNET, 4096, 4096, CLASSES), 227, ()),
    "googlenet": (_googlenet, 224, ()),
    "inception3": (_inception3, 299, ("beta",)),
    "resnet50": (_resnet(3, 4, 6, 3), 224, ("gamma", "beta")),
    "resnet101": (_resnet(3, 4, 23, 3), 224, ("gamma", "beta")),
    "resnet152": (_resnet(3, 8, 36, 3), 224, ("gamma", "beta")),
    "trivial": (_plain("", 1, 4096, CLASSES), 227, ()),
    "vgg16": (_plain(_VGG16, 4096, 4096, CLASSES), 224, ()),
}
"""Builder, pixels along an image's edge, and variables of batch norms, by model.

A model without variables of batch norms has biases.
"""

NAMES = tuple(_TABLE)


def convolutional(name: str) -> Model:
    """The model of that name, one of `NAMES`."""
    build, size, norm = _TABLE[name]
    net = _Net(size, norm)
    build(net)
    layers = [replace(each, kept=None if net.branched else each.kept) for each in net.layers]
    return Model(name, tuple(layers))
