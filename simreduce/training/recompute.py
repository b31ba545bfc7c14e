"""Activations of a training step: what a GPU holds of them, and what it computes again for less.

A pass ends its forward part with all that backward needs of all layers. A policy drops some of it
and makes it again, block by block, on the way back:

    none         everything is kept
    selective    attention by itself (softmax and its dropout) is made again
    full         of each block only its input is kept; its forward pass runs again

These are the words of Megatron-LM (`--recompute-granularity`) and of Korthikanti et al. 2022,
Reducing Activation Recomputation in Large Transformer Models (https://arxiv.org/abs/2205.05198),
whose rules `workload.architectures` counts by. What is made again of one block is there while that
block computes backward; the last layers, with the logits, are gone by then.

Fused attention (FlashAttention; PyTorch's scaled_dot_product_attention) writes no scores to memory
and makes them again in its own backward kernel (Dao et al. 2022, FlashAttention,
https://arxiv.org/abs/2205.14135). It is the default: it is that of Megatron Core and of Hugging
Face's Transformers (https://huggingface.co/docs/transformers/main/attention_interface).

Image models keep what batch norms, ReLUs and poolings need (`workload.image_models`).

Not counted: buffers of communication, workspaces, fragments of the allocator, copies in float32.
"""

from __future__ import annotations

from simreduce.errors import InputError
from simreduce.training.sharded.settings import BLOCKS, Unit, wrap
from simreduce.workload import Model

NONE, SELECTIVE, FULL = POLICIES = ("none", "selective", "full")
FUSED, UNFUSED = ATTENTIONS = ("fused", "unfused")


def estimate_activations(model: Model, policy: str = NONE, attention: str = FUSED) -> float | None:
    """Bytes of one sample's activations, at most at once; None where the model does not say."""
    layers = [layer.kept for layer in model.layers if layer.kept]
    if len(layers) < len(model.layers):
        return None
    whole = [each.others + (each.scores if attention == UNFUSED else 0.0) for each in layers]
    if policy == NONE:
        return sum(whole)
    blocks = [unit.layers for unit in _blocks(model)]
    kept, again = list(whole), 0.0
    for block in blocks:
        for i in block:
            inputs = layers[i].input if i == block[0] else 0.0
            kept[i] = layers[i].others if policy == SELECTIVE else inputs
        dropped = [whole[i] - kept[i] for i in block]
        again = max(again, sum(dropped) if policy == FULL else max(dropped))
    last = max((i for block in blocks for i in block), default=-1) + 1
    return sum(kept[:last]) + max(sum(kept[last:]), again)


def repeated(model: Model, policy: str) -> list[float]:
    """The part of each layer's forward pass that runs again. InputError if that is not known."""
    if policy == NONE:
        return [0.0] * len(model.layers)
    if policy == FULL:
        inside = {i for unit in _blocks(model) for i in unit.layers}
        return [float(i in inside) for i in range(len(model.layers))]
    known = [layer.kept.core for layer in model.layers if layer.kept]
    if len(known) < len(model.layers) or not any(known):
        raise InputError(f"{model.name}: nobody counted the work of attention by itself")
    work = zip(known, (layer.forward for layer in model.layers), strict=True)
    return [core / forward if forward else 0.0 for core, forward in work]


def _blocks(model: Model) -> list[Unit]:
    """The blocks of a model. InputError if it has none."""
    try:
        return [unit for unit in wrap(model, BLOCKS) if not unit.root]
    except InputError:
        raise InputError(
            f"{model.name}: its blocks are not known: no name of a layer has a number between "
            "dots, as h.0.mlp has"
        ) from None
