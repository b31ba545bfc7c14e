"""Gradient lists by name, from a file, or inline.

* a shipped model: `resnet50`, `vgg16`, ...
* `bytes:64M` (powers of 1024) or `bytes:64MB`: one gradient; `bytes:64M,dtype=float16`
* a CSV file with the columns `name`, `elements` or `shape` (`7x7x3x64`), and optionally `dtype`
* a TOML file with `[[gradients]]` tables of the same keys (`shape = [7, 7, 3, 64]`)

Every fault in a file is reported at once, with its line or index.
"""

from __future__ import annotations

import csv
import math
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path

from simreduce import dtypes, units
from simreduce.errors import InputError, WorkloadError, did_you_mean
from simreduce.workload.workload import Gradient, Workload

_KEYS = ("name", "elements", "shape", "dtype")
_MODELS = resources.files("simreduce.workload") / "models"


def shipped() -> list[str]:
    """Names of the models that come with simreduce."""
    return sorted(p.name.removesuffix(".csv") for p in _MODELS.iterdir() if p.name.endswith(".csv"))


def load_workload(text: str) -> Workload:
    """The gradient list that `text` names; WorkloadError lists every fault."""
    if text.startswith("bytes:"):
        return _inline(text)
    if text in shipped():
        return _rows(text, _csv_rows(text, (_MODELS / f"{text}.csv").read_text("utf-8")))
    path = Path(text)
    if path.suffix not in (".csv", ".toml") and not path.exists():
        near = did_you_mean(text, shipped()) or f"; shipped: {', '.join(shipped())}"
        raise WorkloadError(
            f"no workload {text!r}{near}; a file ends in .csv or .toml, one gradient is 'bytes:64M'"
        )
    content = _read(path)
    rows = _toml_rows(text, content) if path.suffix == ".toml" else _csv_rows(text, content)
    return _rows(text, rows)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path}: not UTF-8 text (byte {error.start})") from None


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
        problems.append(f"{text}: {nbytes} bytes are not a whole number of {dtypes.NAMES[dtype]} elements")
    if problems:
        raise WorkloadError(problems)
    return Workload(text, (Gradient("gradient", nbytes // dtypes.SIZES[dtype], dtype),))


def _csv_rows(source: str, content: str) -> list[tuple[str, Mapping[str, object]]]:
    lines = [(i, line) for i, line in enumerate(content.splitlines(), 1) if line.strip() and line[0] != "#"]
    if not lines:
        raise WorkloadError(f"{source}: empty; the first line names the columns: name,elements,dtype")
    header, *rows = csv.reader(line for _, line in lines)
    problems = _unknown(source, f"line {lines[0][0]}", header)
    parsed: list[tuple[str, Mapping[str, object]]] = []
    for (number, _), row in zip(lines[1:], rows, strict=True):
        place = f"line {number}"
        if len(row) != len(header):
            problems.append(f"{source}: {place}: {len(row)} fields where the header has {len(header)}")
            continue
        cells: dict[str, object] = {k: v for k, v in zip(header, row, strict=True) if v != ""}
        for key in cells.keys() & {"elements"}:
            cells[key] = int(text) if (text := str(cells[key])).isdecimal() else text
        if "shape" in cells:
            parts = str(cells["shape"]).split("x")
            cells["shape"] = [int(p) if p.isdecimal() else p for p in parts]
        parsed.append((place, cells))
    if problems:
        raise WorkloadError(problems)
    return parsed


def _toml_rows(source: str, content: str) -> list[tuple[str, Mapping[str, object]]]:
    try:
        document = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise WorkloadError(f"{source}: {error}") from None
    tables = document.pop("gradients", None)
    document.pop("title", None)
    problems = [f"{source}: unknown key {k!r}{did_you_mean(k, ['title', 'gradients'])}" for k in document]
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        problems.append(f"{source}: gradients: expected [[gradients]] tables with name and elements or shape")
        tables = []
    rows = [(f"gradients[{i}]", table) for i, table in enumerate(tables)]
    for place, table in rows:
        problems += _unknown(source, place, table)
    if problems:
        raise WorkloadError(problems)
    return rows


def _unknown(source: str, place: str, keys: Iterable[str]) -> list[str]:
    return [f"{source}: {place}: unknown key {k!r}{did_you_mean(k, _KEYS)}" for k in keys if k not in _KEYS]


def _rows(source: str, rows: list[tuple[str, Mapping[str, object]]]) -> Workload:
    problems: list[str] = []
    gradients = []
    for index, (place, row) in enumerate(rows):
        faults, gradient = _gradient(row, index)
        problems += [f"{source}: {place}: {fault}" for fault in faults]
        gradients.append(gradient)
    if problems:
        raise WorkloadError(problems)
    return Workload(source, tuple(gradients))


def _gradient(row: Mapping[str, object], index: int) -> tuple[list[str], Gradient]:
    faults, elements, dtype = [], 0, 0
    shape, count = row.get("shape"), row.get("elements")
    if (shape is None) == (count is None):
        faults.append("give elements or shape, one of the two")
    key, given = ("elements", count) if shape is None else ("shape", shape)
    dims = given if isinstance(given, list) else [given]
    whole = [d for d in dims if isinstance(d, int) and not isinstance(d, bool) and d >= 0]
    if len(whole) == len(dims):
        elements = math.prod(whole)
    elif given is not None:
        faults.append(f"{key}: {given!r} is not made of whole numbers from 0")
    try:
        dtype = dtypes.code(str(row.get("dtype", "float32")))
    except InputError as error:
        faults += error.problems
    return faults, Gradient(str(row.get("name", f"gradient{index}")), elements, dtype)
