"""What a PyTorch module does in a training step, on the meta device: shapes are followed, nothing
is computed and no parameter is stored.

FLOPs are two for a multiplication and an addition, in matrix products, convolutions and attention,
by PyTorch's own formulas. Started by `simreduce_validate.model`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from simreduce import dtypes
from simreduce.errors import InputError, quote
from simreduce.workload import Gradient, Layer, Model
from simreduce_validate.models.torch_counting import Counted
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
    """Its layers, in order of use: modules with parameters or work of their own. Gradients stand in
    the reverse of the order in which autograd makes them.
    """
    ready: list[int] = []
    hooks = [
        each.register_post_accumulate_grad_hook(lambda tensor: ready.append(id(tensor)))
        for each in module.parameters()
        if each.requires_grad
    ]
    counted = Counted(module)
    with counted.mode, theirs(text), _META:
        results = module(*inputs)
        sums = [each.float().sum() for each in _tensors(results) if each.is_floating_point()]
        if not sums:
            raise InputError(f"{text}: gives nothing that could be derived")
        torch.stack(sums).sum().backward()
    counted.remove()
    for hook in hooks:
        hook.remove()
    made_at = {tensor: place for place, tensor in enumerate(ready)}
    gradients, notes = _gradients(module, counted.called, made_at)
    called = _in_order_of_use(counted.called, gradients, module, made_at)
    layers = [
        Layer(
            name or type(module).__name__,
            tuple(gradients.get(name, ())),
            float(counted.forward[name]),
            float(counted.backward[name]),
        )
        for name in called
        if gradients.get(name) or counted.forward[name] or counted.backward[name]
    ]
    holders = {gradient.name: layer.name for layer in layers for gradient in layer.gradients}
    registered = [holders[name] for name, _ in module.named_parameters() if name in holders]
    if [*dict.fromkeys(registered)] != [*dict.fromkeys(holders.values())]:
        notes.append("its parameters are registered in another order than they are used in")
    return Model(type(module).__name__, tuple(layers)), notes


def _in_order_of_use(
    called: Sequence[str],
    gradients: Mapping[str, Sequence[Gradient]],
    module: Any,
    made_at: Mapping[int, int],
) -> list[str]:
    """The called modules. One that has parameters of its own and calls others stands where autograd
    makes the last of its gradients: nobody knows when it used them.
    """
    parameters = dict(module.named_parameters())
    last = {
        name: max(made_at[id(parameters[gradient.name])] for gradient in own)
        for name, own in gradients.items()
    }
    calling = [
        name for name in last
        if any(each != name and (not name or each.startswith(f"{name}.")) for each in called)
    ]  # fmt: skip
    order = [name for name in called if name not in calling]
    for name in calling:
        later = (i for i, each in enumerate(order) if each in last and last[each] < last[name])
        order.insert(next(later, len(order)), name)
    return order


def _tensors(results: Any) -> list[Any]:
    leaves, _ = torch.utils._pytree.tree_flatten(  # noqa: SLF001 - what PyTorch's own tools use
        dict(results) if isinstance(results, Mapping) else results
    )
    return [each for each in leaves if isinstance(each, torch.Tensor)]


def _gradients(
    module: Any, called: Sequence[str], made_at: Mapping[int, int]
) -> tuple[dict[str, list[Gradient]], list[str]]:
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
    notes, trained = [], []
    for name, parameter in module.named_parameters():
        if id(parameter) in made_at:
            trained.append((name, parameter))
        elif parameter.requires_grad:
            notes.append(f"{name}: it has no gradient, and is left out")
    for name, parameter in sorted(trained, key=lambda each: -made_at[id(each[1])]):
        kind = str(parameter.dtype).removeprefix("torch.")
        if kind not in dtypes.NAMES:
            raise InputError(f"{name}: gradients of {quote(kind)} cannot be reduced")
        gradient = Gradient(name, parameter.numel(), dtypes.code(kind))
        found.setdefault(holders[id(parameter)], []).append(gradient)
    return found, notes


if __name__ == "__main__":
    serve({"read": read})
