"""What a PyTorch module does in a training step, on the meta device: shapes are followed, nothing
is computed and no parameter is stored.

FLOPs are those of PyTorch's own counter: two for a multiplication and an addition, in matrix
products, convolutions and attention. Started by `simreduce_validate.model`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from simreduce import dtypes
from simreduce.errors import InputError, quote
from simreduce.workload import Gradient, Layer, Model
from simreduce_validate.models.users import made, theirs
from simreduce_validate.running.serve import serve

_META = torch.device("meta")


def read(text: str, shapes: Sequence[tuple[tuple[int, ...], str]]) -> tuple[Model, list[str], str]:
    """The layers of the module that the function `text` returns, for samples of these shapes, what
    is to be said of it, and what counted.
    """
    with _META:
        module = made(text, torch.nn.Module, "torch.nn.Module")
    module = module.to(_META).train()
    trained = [each for each in module.parameters() if each.requires_grad]
    if not trained:
        raise InputError(f"{text}: gives a module without parameters to train")
    if not shapes:
        raise InputError(f"{text}: a PyTorch module does not say what it reads: give --input SHAPE")
    usual = trained[0].dtype
    inputs = [
        torch.empty((1, *shape), dtype=getattr(torch, dtype) if dtype else usual, device=_META)
        for shape, dtype in shapes
    ]
    model, notes = traced(module, inputs, text)
    return model, notes, f"PyTorch {torch.__version__}, one sample"


def traced(module: Any, inputs: Sequence[Any], text: str) -> tuple[Model, list[str]]:
    """Its layers, in order of their first call: modules with parameters or work of their own."""
    names = {each: name for name, each in module.named_modules()}
    called: list[str] = []

    def note(each: Any, _: Any) -> None:
        if names[each] not in called:
            called.append(names[each])

    hooks = [each.register_forward_pre_hook(note) for each in names]
    with FlopCounterMode(display=False) as counter, theirs(text), _META:
        results = module(*inputs)
        forward = _own(counter, module, called)
        sums = [each.float().sum() for each in _tensors(results) if each.is_floating_point()]
        if not sums:
            raise InputError(f"{text}: gives nothing that could be derived")
        torch.stack(sums).sum().backward()
        both = _own(counter, module, called)
    for hook in hooks:
        hook.remove()
    gradients, notes = _gradients(module, called)
    layers = [
        Layer(
            name or type(module).__name__,
            tuple(gradients.get(name, ())),
            float(forward[name]),
            float(both[name] - forward[name]),
        )
        for name in called
        if gradients.get(name) or both[name]
    ]
    order = [parameter for parameter, each in module.named_parameters() if each.grad is not None]
    if order != [g.name for layer in layers for g in layer.gradients]:
        notes.append("its parameters are registered in another order than they are used in")
    return Model(type(module).__name__, tuple(layers)), notes


def _tensors(results: Any) -> list[Any]:
    leaves, _ = torch.utils._pytree.tree_flatten(  # noqa: SLF001 - what PyTorch's own tools use
        dict(results) if isinstance(results, Mapping) else results
    )
    return [each for each in leaves if isinstance(each, torch.Tensor)]


def _own(counter: Any, module: Any, called: Sequence[str]) -> dict[str, int]:
    """FLOPs of each called module without those of the modules in it."""
    top = type(module).__name__
    counts = {key: sum(ops.values()) for key, ops in counter.get_flop_counts().items()}
    total = {name: counts.get(f"{top}.{name}", 0) for name in called if name}
    total[""] = counts["Global"] if counts else 0
    own = dict(total)
    for name, flops in total.items():
        parent = name
        while parent:  # lists of modules are called by nobody
            parent = parent.rpartition(".")[0]
            if parent in total:
                own[parent] -= flops
                break
    return own


def _gradients(module: Any, called: Sequence[str]) -> tuple[dict[str, list[Gradient]], list[str]]:
    """By the first module called that has the parameter, or else the nearest that has it inside,
    and what has none. nn.MultiheadAttention, for one, never calls its `out_proj`.
    """
    holders: dict[int, str] = {}
    modules = dict(module.named_modules())
    for name in called:
        for parameter in modules[name].parameters(recurse=False):
            holders.setdefault(id(parameter), name)
    for name in sorted(called, key=lambda each: each.count(".") + bool(each), reverse=True):
        for parameter in modules[name].parameters():
            holders.setdefault(id(parameter), name)
    found: dict[str, list[Gradient]] = {}
    notes = []
    for name, parameter in module.named_parameters():
        if parameter.grad is None:
            if parameter.requires_grad:
                notes.append(f"{name}: it has no gradient, and is left out")
            continue
        kind = str(parameter.dtype).removeprefix("torch.")
        if kind not in dtypes.NAMES:
            raise InputError(f"{name}: gradients of {quote(kind)} cannot be reduced")
        gradient = Gradient(name, parameter.numel(), dtypes.code(kind))
        found.setdefault(holders[id(parameter)], []).append(gradient)
    return found, notes


if __name__ == "__main__":
    serve({"read": read})
