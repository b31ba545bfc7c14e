"""Gradient lists and models by name, from a file, or inline; models are also written.

* a shipped model: `resnet50`, `vgg16`, ...; of a transformer also for other sequences,
  `bert-base,sequence=384`
* a decoder by its figures: `transformer:layers=48,hidden=8192,heads=64,vocab=51200`
* `bytes:64M` (powers of 1024) or `bytes:64MB`: one gradient; `bytes:64M,dtype=float16`
* a CSV file with the columns `name`, `elements` or `shape` (`7x7x3x64`), and optionally `dtype`
* a TOML file with `[[gradients]]` tables of the same keys, or with `[[layers]]`, which have such
  gradients and their work
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simreduce import dtypes, units
from simreduce.errors import WorkloadError, did_you_mean, quote
from simreduce.files.formats import (
    LINE,
    WORK,
    Faults,
    Field,
    FieldValues,
    Format,
    ListOf,
    TablesOf,
    inside,
    read_csv,
    text_of,
    toml_text,
    whole,
)
from simreduce.files.textfiles import exists, parse_toml, read_text
from simreduce.workload import decoder, image_models
from simreduce.workload.decoder import DECODERS, EXAMPLE, STATED, read_shape
from simreduce.workload.workload import Gradient, Layer, Model, Workload, of_list

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
    if "layers" in document and "gradients" in document:
        faults.add("", "give either layers, with their gradients in them, or gradients")
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
        if table["name"] in names:
            faults.add(f"{place}.name", f"a second layer {table['name']!r}")
        names.add(table["name"])
        if "backward" in table.given and "forward" not in table.given:
            faults.add(f"{place}.backward", "needs forward beside it")
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


def model_text(model: Model, about: Iterable[str] = ()) -> str:
    """Return the text of a model's file, which reads back as the same layers.

    Lines `about` the model come first.
    """
    layers = [_layer_table(layer) for layer in model.layers]
    return toml_text({"title": model.name, "layers": layers}, about)


def _layer_table(layer: Layer) -> dict[str, Any]:
    table: dict[str, Any] = {"name": layer.name}
    if layer.counted:
        table |= {key: units.exact_work(getattr(layer, key)) for key in ("forward", "backward")}
    if layer.gradients:
        table["gradients"] = [
            {"name": each.name, "elements": each.elements}
            | ({"dtype": dtypes.NAMES[each.dtype]} if each.dtype else {})
            for each in layer.gradients
        ]
    return table


def shipped() -> list[str]:
    """Names of the models that come with simreduce."""
    return sorted((*image_models.NAMES, *decoder.ARCHITECTURES))


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
    if text in image_models.NAMES:
        return image_models.convolutional(text)
    if text.startswith(STATED):
        return _stated(text).model
    name, *options = text.split(",")
    if name not in decoder.ARCHITECTURES:
        return None
    faults, sequence, most = Faults(text), None, decoder.ARCHITECTURES[name].longest
    if options and not decoder.of_sequences(name):
        faults.add("", f"{name} reads images, and takes no options")
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
