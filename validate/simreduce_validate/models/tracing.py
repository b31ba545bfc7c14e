"""What a Keras model does in a training step, from the graph that TensorFlow makes of it: nothing
is computed.

Ops belong to the innermost call of a layer that made them, and an op of the backward pass to the op
whose gradient it is. So layers that are called twice, models within models and layers of one's own
need no rule. Started by `simreduce_validate.model`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from math import prod
from typing import Any

import tensorflow as tf
from tensorflow import keras

from simreduce import dtypes
from simreduce.errors import InputError
from simreduce.workload import Gradient, Layer, Model
from simreduce_validate.models.products import FlopCount, needed, work_of
from simreduce_validate.models.source import load
from simreduce_validate.models.users import theirs
from simreduce_validate.running.serve import serve

_GRADIENTS = "simreduce_backward"
"""What tf.gradients puts its ops under."""


class _Calls:
    """Which layers were being called when each op of a graph was made."""

    def __init__(self, graph: Any) -> None:
        self._graph, self._number = graph, 0
        self._stack: list[tuple[int, str]] = []
        self._runs: list[tuple[int, tuple[tuple[int, str], ...]]] = []

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        """While the layer of that name is called."""
        if (
            tf.compat.v1.get_default_graph() is not self._graph
        ):  # in the body of a loop: that is one op here
            yield
            return
        self._number += 1
        self._stack.append((self._number, name))
        self._note()
        try:
            yield
        finally:
            self._stack.pop()
            self._note()

    def _note(self) -> None:
        self._runs.append((len(self._graph.get_operations()), tuple(self._stack)))

    def runs(self) -> Iterator[_Run]:
        """In order of time."""
        operations = self._graph.get_operations()
        ends = [begin for begin, _ in self._runs[1:]] + [len(operations)]
        for (begin, stack), end in zip(self._runs, ends, strict=True):
            if stack and begin < end:
                yield _Run(stack, operations[begin:end])


@contextmanager
def _note_calls(calls: _Calls) -> Iterator[None]:
    """Every call of a layer is noted; Keras tells nobody of them otherwise, and names of scopes are
    not those of layers.
    """
    original = keras.Layer.__call__

    def noted(layer: Any, *args: Any, **kwargs: Any) -> Any:
        with calls.within(layer.name):
            return original(layer, *args, **kwargs)

    keras.Layer.__call__ = noted
    try:
        yield
    finally:
        keras.Layer.__call__ = original


def traced(model: Any, inputs: Any) -> tuple[Model, list[str]]:
    """Its layers in the order of the forward pass, and what is to be said of them. `inputs` are the
    `TensorSpec`s of one sample.

    A layer that is called again, or goes on after it has called others, is another layer, `NAME#2`.
    What has neither products nor a variable that is read there first is left out.
    """
    if not getattr(model, "inputs", None):  # it has no variables before its first call
        model(
            keras.tree.map_structure(
                lambda spec: keras.KerasTensor(spec.shape, spec.dtype.name), inputs
            )
        )
    variables = list(model.trainable_variables)
    graph, sums, gradients, runs = _step(model, inputs, variables)
    notes = []
    for variable, gradient in zip(variables, gradients, strict=True):
        if gradient is None:
            notes.append(f"{variable.path}: it has no gradient, and is left out")
        elif isinstance(gradient, tf.IndexedSlices):
            notes.append(f"{variable.path}: its gradient is some rows, and counts as all of them")
    place = {op.name: number for number, run in enumerate(runs) for op in run.ops}
    for op in needed(keras.tree.flatten([sums, [_dense(g) for g in gradients if g is not None]])):
        source, work = place.get(op.name), work_of(op)
        if source is not None:
            runs[source].forward += work
            continue
        source = _source(op.name, place)
        if source is not None:
            runs[source].backward += work
        elif work.flops or work.uncounted:
            notes.append(f"{op.name}: {op.type} of no layer: not counted")
    readers = _readers(graph, place)
    for variable, gradient in zip(variables, gradients, strict=True):
        if gradient is not None:
            own = Gradient(variable.path, prod(variable.shape), dtypes.code(gradient.dtype.name))
            runs[readers[id(variable.value.handle)]].gradients.append(own)
    layers, uncounted = _layers([run for run in runs if run.matters], model.name)
    return Model(model.name, tuple(layers)), [*uncounted, *notes]


@dataclass
class _Run:
    """What the innermost of some calls, outermost first, made before another began or it ended."""

    calls: tuple[tuple[int, str], ...]
    ops: Sequence[Any]
    forward: FlopCount = field(default_factory=FlopCount)
    backward: FlopCount = field(default_factory=FlopCount)
    gradients: list[Gradient] = field(default_factory=list)

    @property
    def matters(self) -> bool:
        """Whether it is a layer of its own."""
        both = self.forward + self.backward
        return bool(both.flops or both.uncounted or self.gradients)

    def name(self, model: str) -> str:
        """The layers of the calls, without the outermost, which is the model."""
        return "/".join(name for _, name in self.calls[1:]) or model


def _step(
    model: Any, inputs: Any, variables: Sequence[Any]
) -> tuple[Any, list[Any], list[Any], list[_Run]]:
    """The graph of a training step, the sums that it derives, their gradients and the runs of the
    forward pass.
    """
    found: list[tuple[list[Any], list[Any], list[_Run]]] = []

    def step(given: Any) -> None:
        calls = _Calls(tf.compat.v1.get_default_graph())
        with _note_calls(calls):
            results = keras.tree.flatten(model(given, training=True))
        sums = [
            tf.reduce_sum(tf.cast(each, tf.float32)) for each in results if each.dtype.is_floating
        ]
        runs = list(calls.runs())
        found.append(
            (sums, tf.gradients(sums, [v.value for v in variables], name=_GRADIENTS), runs)
        )

    graph = tf.function(step, autograph=False).get_concrete_function(inputs).graph
    return graph, *found[-1]


def _readers(graph: Any, place: Mapping[str, int]) -> dict[int, int]:
    """The run that reads a variable first, by the id of its handle: once its backward pass is done
    the gradient is complete.
    """
    handles = {inner.name: id(outer) for outer, inner in graph.captures}
    found: dict[int, int] = {}
    for op in graph.get_operations():
        for tensor in op.inputs:
            if tensor.name in handles and op.name in place:
                found.setdefault(handles[tensor.name], place[op.name])
    return found


def _source(name: str, place: Mapping[str, int]) -> int | None:
    """The run whose op the gradient op `name` is about: they are called `SCOPE/OP_grad/...`."""
    inner, end = name.removeprefix(f"{_GRADIENTS}/"), 0
    while inner != name and (end := inner.find("_grad", end + 1)) > 0:
        if inner[:end] in place:
            return place[inner[:end]]
    return None


def _dense(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _layers(runs: Sequence[_Run], model: str) -> tuple[list[Layer], list[str]]:
    """Runs of one call with nothing between them are one layer; and what is not counted in it."""
    layers, notes, names = [], [], Counter[str]()
    for _, group in groupby(runs, key=lambda run: run.calls[-1]):
        same = list(group)
        name = same[0].name(model)
        names[name] += 1
        if names[name] > 1:
            name += f"#{names[name]}"
        forward, backward = (
            sum(passes, FlopCount())
            for passes in zip(*((r.forward, r.backward) for r in same), strict=True)
        )
        gradients = tuple(gradient for run in same for gradient in run.gradients)
        both = forward + backward
        counted = both.flops > 0 or not both.uncounted
        layers.append(Layer(name, gradients, float(forward.flops), float(backward.flops), counted))
        notes += [
            f"{name}: {count} x {what}: not counted" for what, count in both.uncounted.items()
        ]
    return layers, notes


def specs(model: Any, shapes: Sequence[tuple[tuple[int, ...], str]]) -> Any:
    """What one sample is: the model's own inputs, with `shapes` (and dtypes, "" for the model's) in
    their order if they are given. InputError if that leaves anything open.
    """
    own = getattr(model, "inputs", None) or []
    if not own:
        if not shapes:
            raise InputError(
                f"{model.name}: it does not say what it takes; give the shape of a sample, "
                f"--input 224x224x3"
            )
        given = [tf.TensorSpec([1, *shape], dtype or "float32") for shape, dtype in shapes]
        return given[0] if len(given) == 1 else given
    if shapes and len(shapes) != len(own):
        raise InputError(
            f"{model.name}: {len(shapes)} --input, and it takes {len(own)}: {_show(own)}"
        )
    found = []
    for tensor, (shape, dtype) in zip(
        own, shapes or [(tuple(t.shape[1:]), "") for t in own], strict=True
    ):
        fits = len(shape) == len(tensor.shape) - 1 and all(
            a in (None, b) for a, b in zip(tensor.shape[1:], shape, strict=True)
        )
        if not fits or None in shape:
            raise InputError(
                f"{model.name}: it takes {_show(own)}; give the shape of each by --input, such "
                f"as 224x224x3"
            )
        found.append(tf.TensorSpec([1, *shape], dtype or tensor.dtype))
    return (
        found[0]
        if isinstance(model, keras.Sequential)
        else keras.tree.pack_sequence_as(model.input, found)
    )


def _show(tensors: Sequence[Any]) -> str:
    """Names and shapes of a sample, ? for what is open."""
    return ", ".join(
        f"{t.name} ({'x'.join('?' if n is None else str(n) for n in t.shape[1:])})" for t in tensors
    )


def read(text: str, shapes: Sequence[tuple[tuple[int, ...], str]]) -> tuple[Model, list[str], str]:
    """The model that `text` names, by layer; what is to be said of it, and what a sample is, with
    which versions.
    """
    model = load(text, shapes[0][0] if len(shapes) == 1 else None)
    inputs = specs(model, shapes)
    with theirs(text):
        found, notes = traced(model, inputs)
    sample = ", ".join(
        f"{'x'.join(map(str, s.shape[1:]))} {s.dtype.name}" for s in keras.tree.flatten(inputs)
    )
    return (
        found,
        notes,
        f"a sample is {sample}; TensorFlow {tf.__version__}, Keras {keras.__version__}",
    )


if __name__ == "__main__":
    serve({"read": read})
