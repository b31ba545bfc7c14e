"""Models as TOML files: their layers in the order of the forward pass, each with its gradients and
its work.

[[layers]]
name = "conv1"
forward = "236.027904 MFLOP"        # of one sample, two for a multiplication and an addition; left out: nobody counted; "0 FLOP": it takes no time
backward = "236.027904 MFLOP"       # unless given, twice the forward pass
gradients = [
  { name = "conv1/kernel", shape = [7, 7, 3, 64] },
  { name = "conv1/bias", elements = 64, dtype = "float16" },
]

A layer's gradients are complete when its backward pass is done, which comes after those of all
layers below it. What is called twice is two layers, the first of which has the gradients.
`simreduce model` writes such files of Keras models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from simreduce import dtypes, units
from simreduce.errors import WorkloadError, did_you_mean, shown
from simreduce.textfiles import toml_rows, toml_text
from simreduce.workload.model import Layer, Model
from simreduce.workload.workload import Gradient

_KEYS = ("name", "forward", "backward", "gradients")

ReadGradient = Callable[[Mapping[str, object], int], tuple[list[str], Gradient]]
"""The faults of a gradient's table, and the gradient; the number is for one without a name."""


def read_model(
    source: str, document: Mapping[str, Any], keys: Sequence[str], read_gradient: ReadGradient
) -> Model:
    """The model that a file is, whose gradients have `keys`. WorkloadError lists every fault."""
    problems: list[str] = []
    title, rows = toml_rows(source, document, "layers", _KEYS, "name, work and gradients", problems)
    layers: list[Layer] = []
    names: set[str] = set()
    of_gradients: set[str] = set()
    count = 0
    for place, row in rows:
        faults: list[str] = []
        name = row.get("name")
        if not isinstance(name, str):
            faults.append(
                "name: missing" if name is None else f"name: expected text, not {shown(name)}"
            )
        elif name in names:
            faults.append(f"name: a second layer {name!r}")
        names.add(str(name))
        forward = _work(row, "forward", faults) or 0.0
        backward = _work(row, "backward", faults)
        if "backward" in row and "forward" not in row:
            faults.append("backward: without forward")
        gradients = []
        for i, table in enumerate(_tables(row.get("gradients", []), faults)):
            faults += [
                f"gradients[{i}]: unknown key {k!r}{did_you_mean(k, keys)}"
                for k in table
                if k not in keys
            ]
            wrong, gradient = read_gradient(table, count)
            if gradient.name in of_gradients:
                wrong.append(f"name: a second gradient {gradient.name!r}")
            of_gradients.add(gradient.name)
            faults += [f"gradients[{i}]: {fault}" for fault in wrong]
            gradients.append(gradient)
            count += 1
        layers.append(
            Layer(
                str(name),
                tuple(gradients),
                forward,
                2 * forward if backward is None else backward,
                counted="forward" in row,
            )
        )
        problems += [f"{source}: {place}: {fault}" for fault in faults]
    if problems:
        raise WorkloadError(problems)
    model = Model(source, tuple(layers))
    model.workload  # noqa: B018 - raises for what no workload can be
    return replace(model, name=title or source)


def _work(row: Mapping[str, object], key: str, faults: list[str]) -> float | None:
    if key not in row:
        return None
    try:
        return units.work(row[key])
    except ValueError as error:
        faults.append(f"{key}: {error}")
        return None


def _tables(value: Any, faults: list[str]) -> list[dict[str, object]]:
    if isinstance(value, list) and all(isinstance(table, dict) for table in value):
        return value
    faults.append(
        f"gradients: expected a list of tables with name and elements or shape, not {shown(value)}"
    )
    return []


def model_text(model: Model, about: Iterable[str] = ()) -> str:
    """The file of a model, which reads back as the same layers. Lines `about` it stand at the head."""
    lines = [*(f"# {line}".rstrip() for line in about), f"title = {toml_text(model.name)}"]
    for layer in model.layers:
        lines += ["", "[[layers]]", f"name = {toml_text(layer.name)}"]
        if layer.counted:
            lines += [f"forward = {toml_text(units.exact_work(layer.forward))}"]
            lines += [f"backward = {toml_text(units.exact_work(layer.backward))}"]
        if layer.gradients:
            lines += ["gradients = [", *(f"  {_gradient(g)}," for g in layer.gradients), "]"]
    return "\n".join(lines) + "\n"


def _gradient(gradient: Gradient) -> str:
    dtype = f', dtype = "{dtypes.NAMES[gradient.dtype]}"' if gradient.dtype else ""
    return f"{{ name = {toml_text(gradient.name)}, elements = {gradient.elements}{dtype} }}"
