"""Gradient lists by name, from a file, or inline.

* a shipped model: `resnet50`, `vgg16`, ...; of a transformer also for other sequences,
  `bert-base,sequence=384`
* `bytes:64M` (powers of 1024) or `bytes:64MB`: one gradient; `bytes:64M,dtype=float16`
* a CSV file with the columns `name`, `elements` or `shape` (`7x7x3x64`), and optionally `dtype`
* a TOML file with `[[gradients]]` tables of the same keys (`shape = [7, 7, 3, 64]`), or with
  `[[layers]]`, which have such
  gradients and their work (`model_file.py`)

Every fault in a file is reported at once, with its line or index.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from simreduce import dtypes, units
from simreduce.errors import InputError, WorkloadError, did_you_mean, shown
from simreduce.textfiles import csv_rows, exists, parse_toml, read_text, toml_rows
from simreduce.workload import convolutional, transformers
from simreduce.workload.model import Model, of_list
from simreduce.workload.model_file import read_model
from simreduce.workload.workload import Gradient, Workload

_KEYS = ("name", "elements", "shape", "dtype")


def shipped() -> list[str]:
    """Names of the models that come with simreduce."""
    return sorted((*convolutional.NAMES, *transformers.NAMES))


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
    """What `text` names: with layers where those are known."""
    model = _model(text)
    if model is not None:
        return model
    if text.startswith("bytes:"):
        return _inline(text)
    path = Path(text)
    if path.suffix not in (".csv", ".toml") and not exists(text):
        near = did_you_mean(text, shipped()) or f"; shipped: {', '.join(shipped())}"
        raise WorkloadError(
            f"no workload {shown(text)}{near}; a file ends in .csv or .toml, one gradient is 'bytes:64M'"
        )
    content, problems = read_text(path, WorkloadError), list[str]()
    if path.suffix != ".toml":
        return _rows(text, _csv_rows(text, content, problems), "", problems)
    document = parse_toml(text, content, WorkloadError)
    if "layers" in document and "gradients" in document:
        raise WorkloadError(
            f"{text}: give either layers, with their gradients in them, or gradients"
        )
    if _has_layers(document):
        return read_model(text, document, _KEYS, _gradient)
    title, rows = toml_rows(
        text, document, "gradients", _KEYS, "name and elements or shape", problems
    )
    return _rows(text, rows, title, problems)


def _has_layers(document: Mapping[str, object]) -> bool:
    """Whether a TOML file is a model by layer, if misspelt."""
    return "gradients" not in document and any(
        k == "layers" or did_you_mean(k, ["layers"]) for k in document
    )


def _model(text: str) -> Model | None:
    """The shipped model that `text` names, if it names one."""
    if text in convolutional.NAMES:
        return convolutional.convolutional(text)
    name, *options = text.split(",")
    if name not in transformers.NAMES:
        return None
    problems, sequence, most = [], None, transformers.longest(name)
    for option in options:
        key, _, value = option.partition("=")
        if key != "sequence":
            near = did_you_mean(key, ["sequence"])
            problems.append(f"{text}: unknown option {key!r}{near}; only sequence= is known")
        elif not value.isdecimal() or len(value) > 9 or not 1 <= int(value) <= most:
            problems.append(f"{text}: sequence={value}: a whole number of tokens from 1 to {most}")
        else:
            sequence = int(value)
    if problems:
        raise WorkloadError(problems)
    return transformers.transformer(name, sequence)


def _inline(text: str) -> Workload:
    size_text, *options = text.removeprefix("bytes:").split(",")
    problems, dtype, nbytes = [], 0, 0
    try:
        nbytes = units.cli_size(size_text)
    except ValueError as error:
        problems.append(f"{text}: {error}")
    for option in options:
        key, _, value = option.partition("=")
        if key != "dtype":
            problems.append(
                f"{text}: unknown option {key!r}{did_you_mean(key, ['dtype'])}; only dtype= is known"
            )
            continue
        try:
            dtype = dtypes.code(value)
        except InputError as error:
            problems += [f"{text}: {p}" for p in error.problems]
    if nbytes % dtypes.SIZES[dtype]:
        problems.append(
            f"{text}: {nbytes} bytes are not a whole number of {dtypes.NAMES[dtype]} elements"
        )
    if problems:
        raise WorkloadError(problems)
    return Workload(text, (Gradient("gradient", nbytes // dtypes.SIZES[dtype], dtype),))


def _csv_rows(
    source: str, content: str, problems: list[str]
) -> list[tuple[str, Mapping[str, object]]]:
    rows = csv_rows(source, content, _KEYS, "name,elements,dtype", WorkloadError, problems)
    return [(place, _cells(row)) for place, row in rows]


def _cells(row: Mapping[str, str]) -> dict[str, object]:
    """What is not empty, numbers read."""
    cells: dict[str, object] = {k: v for k, v in row.items() if v != ""}
    if "elements" in cells:
        cells["elements"] = _number(row["elements"])
    if "shape" in cells:
        cells["shape"] = [_number(part) for part in row["shape"].split("x")]
    return cells


def _number(text: str) -> int | str:
    return int(text) if text.isdecimal() and len(text) < 20 else text


def _rows(
    source: str,
    rows: Sequence[tuple[str, Mapping[str, object]]],
    title: str = "",
    problems: Sequence[str] = (),
) -> Workload:
    """The list, if it has none of the `problems` found so far and no others."""
    problems = [*problems]
    gradients = []
    for index, (place, row) in enumerate(rows):
        faults, gradient = _gradient(row, index)
        problems += [f"{source}: {place}: {fault}" for fault in faults]
        gradients.append(gradient)
    if problems:
        raise WorkloadError(problems)
    return replace(Workload(source, tuple(gradients)), name=title or source)


def _gradient(row: Mapping[str, object], index: int) -> tuple[list[str], Gradient]:
    faults, elements, dtype = [], 0, 0
    shape, count = row.get("shape"), row.get("elements")
    if (shape is None) == (count is None):
        faults.append("give elements or shape, one of the two")
    key, given = ("elements", count) if shape is None else ("shape", shape)
    dims = given if key == "shape" and isinstance(given, list) else [given]
    whole = [d for d in dims if isinstance(d, int) and not isinstance(d, bool) and d >= 0]
    if len(whole) == len(dims):
        elements = math.prod(whole)
    elif given is not None:
        faults.append(f"{key}: {shown(given)} is not made of whole numbers from 0")
    name = _text(row, "name", f"gradient{index}", faults)
    try:
        dtype = dtypes.code(_text(row, "dtype", "float32", faults))
    except InputError as error:
        faults += [f"dtype: {p}" for p in error.problems]
    return faults, Gradient(name, elements, dtype)


def _text(row: Mapping[str, object], key: str, default: str, faults: list[str]) -> str:
    value = row.get(key, default)
    if isinstance(value, str):
        return value
    faults.append(f"{key}: expected text, not {shown(value)}")
    return default
