"""`simreduce model`: a Keras or PyTorch model as a workload file of layers, gradients and FLOPs.

simreduce model ResNet50 > resnet50.toml
simreduce model package.module:function --input 128:int32 > mine.toml
simreduce model package.module:function --framework pytorch --input 3x224x224 > mine.toml
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from typing import Any

import click

from simreduce import dtypes, units
from simreduce.app.cli import command
from simreduce.errors import InputError, did_you_mean, quote
from simreduce.files.formats.syntax import Faults, toml_text
from simreduce.workload import Layer, Model
from simreduce_validate.running.backend import check_tensorflow
from simreduce_validate.running.child import Child

TRACING = {
    "keras": "simreduce_validate.models.tracing",
    "pytorch": "simreduce_validate.models.torch_tracing",
}
"""By framework the module of the child that follows a model."""
_SETTINGS = (("CUDA_VISIBLE_DEVICES", ""), ("KERAS_BACKEND", "tensorflow"))


@command(examples="simreduce model ResNet50")
@click.argument("model", metavar="MODEL")
@click.option(
    "--framework",
    default="keras",
    metavar="NAME",
    help=f"Read a model of this framework: {', '.join(TRACING)}; default keras.",
)
@click.option(
    "--input", "inputs", multiple=True, metavar="SHAPE[:DTYPE]",
    help="Shape of a sample, such as 224x224x3, if the model leaves it open; once per input.",
)  # fmt: skip
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=600.0,
    help="Wait this many seconds for the framework to build the model; default 600.",
)
def model(
    faults: Faults, model: str, framework: str, inputs: tuple[str, ...], timeout: float
) -> None:
    """Print the layers of a Keras or PyTorch model, with gradients and FLOPs, as a workload file.

    MODEL is PACKAGE.MODULE:FUNCTION that returns a model; of Keras also a name of
    keras.applications (ResNet50) or a saved .keras file.
    """
    shapes = [faults.attempt("", read_input, text) for text in inputs]
    if framework not in TRACING:
        near = did_you_mean(framework, TRACING)
        faults.add("--framework", f"unknown {quote(framework)}{near}; one of {', '.join(TRACING)}")
    faults.raise_any()
    has_torch = importlib.util.find_spec("torch") is not None
    if framework == "pytorch" and not has_torch:
        raise InputError("a model of PyTorch needs torch: pip install 'simreduce[pytorch]'")
    if framework == "keras":
        try:
            check_tensorflow()
        except InputError as error:
            hint = "; for a PyTorch module, add --framework pytorch" if has_torch else ""
            raise InputError(f"{error}{hint}") from None
    child = Child(TRACING[framework], f"model {model}", (), _SETTINGS)
    try:
        found, notes, about = child.ask("read", model, shapes, seconds=timeout)
    finally:
        child.close()
    for note in notes:
        click.echo(f"{model}: {note}", err=True)
    workload = found.workload
    counts = (
        units.plural(len(found.layers), "layer"),
        units.plural(len(workload.gradients), "gradient"),
        units.plural(workload.elements, "element"),
        units.format_size(workload.nbytes),
    )
    forward, backward = map(units.exact_work, (found.forward, found.flops - found.forward))
    options = [f"--framework {framework}"] * (framework != "keras")
    options += [f"--input {text}" for text in inputs]
    head = [
        f"simreduce model {' '.join([model, *options])}",
        ", ".join(counts),
        f"{forward} forward, {backward} backward; {about}",
        *notes,
    ]
    click.echo(model_text(found, head), nl=False)


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


def read_input(text: str) -> tuple[tuple[int, ...], str]:
    """The shape of a sample and its dtype, which may be ""."""
    shape, _, dtype = text.partition(":")
    if not re.fullmatch(r"[1-9][0-9]{0,8}(x[1-9][0-9]{0,8})*", shape, re.ASCII):
        raise InputError(
            f"--input {text}: write dimensions such as 224x224x3, and a dtype as 128:int32"
        )
    if dtype:
        try:
            dtype = dtypes.NAMES[dtypes.code(dtype)]
        except InputError as error:
            raise InputError(f"--input {text}: {error}") from None
    return tuple(map(int, shape.split("x"))), dtype
