"""Gradient lists and models by name, from a file, or inline; models are also written.

* a shipped model: `resnet50`, `vgg16`, ...; of a transformer also for other sequences,
  `bert-base,sequence=384`
* a decoder by its figures: `transformer:layers=48,hidden=8192,heads=64,vocab=51200`
* `bytes:64M` (powers of 1024) or `bytes:64MB`: one gradient; `bytes:64M,dtype=float16`
* a CSV file with the columns `name`, `elements` or `shape` (`7x7x3x64`), and optionally `dtype`
* a TOML file with `[[gradients]]` tables of the same keys, or with `[[layers]]`, which have such
  gradients and their work

The image models of tf_cnn_benchmarks: its trainable variables, in the order of their creation,
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

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import prod
from pathlib import Path

from simreduce import dtypes, units
from simreduce.errors import WorkloadError, did_you_mean, quote
from simreduce.files import exists, parse_toml, read_text
from simreduce.files.formats import (
    LINE,
    WORK,
    Field,
    FieldValues,
    Format,
    ListOf,
    TablesOf,
    text_of,
    whole,
)
from simreduce.files.formats.syntax import Faults, inside, read_csv
from simreduce.workload import Gradient, Kept, Layer, Model, Workload, decoder, of_list
from simreduce.workload.decoder import DECODERS, EXAMPLE, STATED, read_shape

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
        self._maxima = 0  # places of maxima that a pooling before it keeps

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
        # torchvision's ResNets have the stride in the next convolution
        wider = stride**2 if self.norm and activated and kernel == (1, 1) else 1
        self._layer(
            path, shapes, self.size**2, bool(self.norm) + activated, wider, (*kernel, stride)
        )

    def pool(self, kernel: int, stride: int, *, padded: bool = False) -> None:
        """A pooling by a window of that size and stride."""
        mean = kernel == self.size
        self._shrink(kernel, stride, padded=padded)
        self._read = self._elements
        self._maxima = 0 if mean else self._elements

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
        self, name: str, shapes: Mapping[str, Sequence[int]], positions: int, buffers: int,
        wider: int = 1, window: tuple[int, int, int] | None = None,
    ) -> None:  # fmt: skip
        """A layer, which keeps so many buffers of what it gives."""
        gradients = tuple(Gradient(path, prod(shape)) for path, shape in shapes.items())
        program = (
            "image", self._read, self._elements * wider, buffers, self._maxima,
            gradients[0].elements, int(not self.layers),
        )  # fmt: skip
        read = _WIDTH * (self._read + buffers * self._elements)
        kept = Kept(others=read, program=program)
        self._read = self._maxima = 0
        forward = 2.0 * gradients[0].elements * positions
        backward = 2 * forward if self.layers else forward
        self.layers.append(Layer(name, gradients, forward, backward, kept=kept, window=window))


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


_COUNT = whole(0)


def _one_of_two(table: FieldValues, faults: Faults, place: str) -> None:
    if len(table.given & {"elements", "shape"}) != 1:
        faults.add(place, "give elements or shape, one of the two")


GRADIENT = Format(
    "gradients",
    "A gradient, with either its elements or its shape.",
    Field("name", LINE, "Its name, different from all others.", default_words="`gradient0`, ..."),
    Field("elements", _COUNT, "How many elements it has."),
    Field("shape", ListOf(_COUNT), "The sizes of its dimensions; in CSV `7x7x3x64`."),
    Field("dtype", text_of(dtypes.code, f"one of {', '.join(dtypes.NAMES)}", "float16"),
          "The type of its elements.", 0, default_words="`float32`"),
    check=_one_of_two,
)  # fmt: skip
_LAYER = Format(
    "layers",
    "A layer, whose gradients are complete when its backward pass is done, after those of all"
    " layers below it. A layer that a model calls twice is two layers; the first has the"
    " gradients.",
    Field("name", LINE, "Its name, different from all others.", required=True),
    Field("forward", WORK, "Work of one sample's forward pass, two operations for a multiplication"
          " and an addition.", default_words="not counted"),
    Field("backward", WORK, "Work of one sample's backward pass.", default_words="twice `forward`"),
    Field("gradients", TablesOf(GRADIENT), "Its gradients."),
)  # fmt: skip
_TITLE = Field("title", LINE, "The name in reports.", default_words="the file's path")
GRADIENTS = Format(
    "gradient list",
    "The gradients of a model in the framework's order, as TOML; or as CSV with the keys of a"
    " gradient as columns.",
    _TITLE,
    Field("gradients", TablesOf(GRADIENT), "The gradients.", required=True),
)
MODEL = Format(
    "model",
    "The layers of a model in the order of the forward pass. `simreduce model` writes such files"
    " of Keras models.",
    _TITLE,
    Field("layers", TablesOf(_LAYER), "The layers.", required=True),
)
_EXAMPLE = "name,elements,dtype"
_MOST_GRADIENTS = 100_000
"""Ten times the gradients of the largest models. Reading a line takes 35 us."""


def read_file(text: str) -> Model | Workload:
    """The model or gradient list of the file at `text`; WorkloadError lists every fault."""
    content = read_text(Path(text), WorkloadError)
    faults = Faults(text)
    if Path(text).suffix != ".toml":
        rest = sum(bool(line.strip()) and line[0] != "#" for line in content.split("\n"))
        if rest - 1 > _MOST_GRADIENTS:  # reading them all would take long
            raise WorkloadError(
                f"{text}: {rest - 1:,} gradients, where at most {_MOST_GRADIENTS:,} are read; "
                "let one gradient stand for those that are packed together"
            )
        rows = read_csv(content, GRADIENT.keys, _EXAMPLE, faults, WorkloadError)
        tables = [(place, GRADIENT.read(_cells(row), faults, place)) for place, row in rows]
        return _list("", text, tables, faults)
    document = parse_toml(text, content, WorkloadError)
    faults.check(
        not {"layers", "gradients"} <= document.keys(),
        "",
        "give either layers, with their gradients in them, or gradients",
    )
    faults.raise_any(WorkloadError)
    if _has_layers(document):
        return _model(text, MODEL.read(document, faults), faults)
    values = GRADIENTS.read(document, faults)
    tables = [(f"gradients[{i}]", each) for i, each in enumerate(values["gradients"] or ())]
    return _list(values["title"] or "", text, tables, faults)


def _has_layers(document: Mapping[str, object]) -> bool:
    """Whether a TOML file is a model by layer, if misspelt."""
    return "gradients" not in document and any(
        key == "layers" or did_you_mean(key, ["layers"]) for key in document
    )


def _cells(row: Mapping[str, str]) -> dict[str, object]:
    """The cells that are not empty, with numbers in place of their digits."""
    cells: dict[str, object] = {key: text for key, text in row.items() if text != ""}
    if "elements" in cells:
        cells["elements"] = _number(row["elements"])
    if "shape" in cells:
        cells["shape"] = [_number(part) for part in row["shape"].split("x")]
    return cells


def _number(text: str) -> int | str:
    return int(text) if text.isdecimal() and len(text) < 20 else text


def _list(
    title: str, source: str, tables: list[tuple[str, FieldValues]], faults: Faults
) -> Workload:
    names: set[str] = set()
    gradients = [_gradient(table, i, names, faults, p) for i, (p, table) in enumerate(tables)]
    faults.raise_any(WorkloadError)
    return replace(Workload(source, tuple(gradients)), name=title or source)


def _gradient(
    table: FieldValues, index: int, names: set[str], faults: Faults, place: str
) -> Gradient:
    name = table["name"] if table["name"] is not None else f"gradient{index}"
    faults.check(name not in names, inside(place, "name"), f"a second gradient {name!r}")
    names.add(name)
    count = table["elements"] if table["shape"] is None else math.prod(table["shape"])
    return Gradient(name, count or 0, table["dtype"])


def _model(source: str, values: FieldValues, faults: Faults) -> Model:
    layers: list[Layer] = []
    names, of_gradients = set[str](), set[str]()
    count = itertools.count()
    for i, table in enumerate(values["layers"] or ()):
        place = f"layers[{i}]"
        faults.check(
            table["name"] not in names, f"{place}.name", f"a second layer {table['name']!r}"
        )
        names.add(table["name"])
        faults.check(
            "backward" not in table.given or "forward" in table.given,
            f"{place}.backward",
            "needs forward beside it",
        )
        gradients = tuple(
            _gradient(each, next(count), of_gradients, faults, f"{place}.gradients[{j}]")
            for j, each in enumerate(table["gradients"] or ())
        )
        forward, backward = table["forward"] or 0.0, table["backward"]
        backward = 2 * forward if backward is None else backward
        counted = "forward" in table.given
        layers.append(Layer(str(table["name"]), gradients, forward, backward, counted))
    faults.raise_any(WorkloadError)
    model = Model(source, tuple(layers))
    model.workload  # noqa: B018 - raises for what no workload can be
    return replace(model, name=values["title"] or source)


def shipped() -> list[str]:
    """Names of the models that come with simreduce."""
    return sorted((*NAMES, *decoder.ARCHITECTURES))


def load_model(text: str) -> Model:
    """The model that `text` names; of a file or `bytes:`, every gradient is a layer. WorkloadError
    lists every fault.
    """
    found = _load(text)
    return found if isinstance(found, Model) else of_list(found)


def load_workload(text: str) -> Workload:
    """The gradient list that `text` names; WorkloadError lists every fault."""
    found = _load(text)
    return found.workload if isinstance(found, Model) else found


def _load(text: str) -> Model | Workload:
    """The model that `text` names, or the gradient list where its layers are not known."""
    model = _load_model(text)
    if model is not None:
        return model
    if text.startswith("bytes:"):
        return _inline(text)
    if Path(text).suffix not in (".csv", ".toml") and not exists(text):
        near = did_you_mean(text, shipped()) or f"; shipped: {', '.join(shipped())}"
        forms = (
            "a file ends in .csv or .toml, one gradient is 'bytes:64M', a decoder by its figures "
            f"{quote(EXAMPLE)}"
        )
        raise WorkloadError(f"no workload {quote(text)}{near}; {forms}")
    return read_file(text)


def _load_model(text: str) -> Model | None:
    """The shipped model that `text` names, if it names one."""
    if text in NAMES:
        return convolutional(text)
    if text.startswith(STATED):
        return _stated(text).model
    name, *options = text.split(",")
    if name not in decoder.ARCHITECTURES:
        return None
    faults, sequence, most = Faults(text), None, decoder.ARCHITECTURES[name].longest
    faults.check(
        not options or decoder.of_sequences(name), "", f"{name} reads images, and takes no options"
    )
    faults.raise_any(WorkloadError)
    for value in _values(options, "sequence", faults):
        if not value.isdecimal() or len(value) > 9 or not 1 <= int(value) <= most:
            words = f"must be a whole number of tokens from 1 to {most}"
            faults.add("sequence", f"{words}, got {quote(value)}")
        else:
            sequence = int(value)
    faults.raise_any(WorkloadError)
    return decoder.transformer(name, sequence)


def _stated(text: str) -> decoder.Sequences:
    shape = read_shape(text)
    return decoder.Sequences(text, shape, shape.sequence)


def load_decoder(text: str) -> decoder.Sequences:
    """The decoder that `text` names or states; WorkloadError if it is none."""
    if text.startswith(STATED):
        return _stated(text)
    model = load_model(text)
    known = decoder.ARCHITECTURES.get(text.partition(",")[0])
    if known is None or known.shape is None:
        words = "is no decoder of equal blocks, which a mesh could divide"
        raise WorkloadError(f"{text} {words}; such are {', '.join(DECODERS)}, and {EXAMPLE}")
    return decoder.Sequences(model.name, known.shape, model.tokens)


def _values(options: list[str], key: str, faults: Faults) -> list[str]:
    """The values of `key=value`, the only option."""
    pairs = [option.partition("=") for option in options]
    faults.unknown("", [name for name, _, _ in pairs], [key])
    return [value for name, _, value in pairs if name == key]


def _inline(text: str) -> Workload:
    size, *options = text.removeprefix("bytes:").split(",")
    faults, dtype = Faults(text), 0
    nbytes = faults.attempt("", units.cli_size, size)
    faults.check(nbytes != 0, "", "a gradient has at least one element, and this has 0 bytes")
    for value in _values(options, "dtype", faults):
        dtype = faults.attempt("", dtypes.code, value) or 0
    count, rest = divmod(nbytes or 0, dtypes.SIZES[dtype])
    if rest:
        of_dtype = f"a whole number of {dtypes.NAMES[dtype]} elements"
        faults.add("", f"{nbytes} bytes are not {of_dtype}")
    faults.raise_any(WorkloadError)
    return Workload(text, (Gradient("gradient", count, dtype),))
