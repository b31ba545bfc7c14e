"""The memory of a training step: activations; parameters, gradients and optimizer states.

What a GPU holds of activations, and what it computes again for less:

A pass ends its forward part with all that backward needs of all layers. A policy drops some of it
and makes it again, block by block, on the way back:

    none         everything is kept
    selective    attention by itself (softmax and its dropout) is made again
    full         of each block only its input is kept; its forward pass runs again
    every N      the same of each Nth block, and others keep everything
    op           attention and, but for every second one, products without a bias keep what they
                 give; all else of a block runs again

The last two are torchtitan's `selective` (`torchtitan/distributed/activation_checkpoint.py`, 0.2.2:
`selective_ac_option` of a number or "op"; from 0.3 on "op" alone).
These are the words of Megatron-LM (`--recompute-granularity`) and of Korthikanti et al. 2022,
Reducing Activation Recomputation in Large Transformer Models (https://arxiv.org/abs/2205.05198),
whose rules `workload.decoder` counts by. What is made again of one block is there while that
block computes backward; the last layers, with the logits, are gone by then.

These are the kernels of Megatron-LM. Plain PyTorch keeps more, which `ModelRun` counts op by op
(`workload.autograd`), with when it is most: `pass_moments`.

Fused attention (FlashAttention; PyTorch's scaled_dot_product_attention) writes no scores to memory
and makes them again in its own backward kernel (Dao et al. 2022, FlashAttention,
https://arxiv.org/abs/2205.14135). It is the default: it is that of Megatron Core and of Hugging
Face's Transformers (https://huggingface.co/docs/transformers/main/attention_interface).

Image models keep what batch norms, ReLUs and poolings need (`workload.loader`).

NCCL's communicators hold buffers beside what PyTorch allocates (`buffers_of_calls`). Not counted:
those of meshes and of RCCL, and workspaces of cuDNN, which nobody measured.

Parameters, gradients and optimizer states, with m bytes of optimizer states for a parameter (Adam:
two float32 moments and, beside parameters of another dtype, a float32 master), p and g bytes of a
parameter and of a gradient, and N ranks that share P parameters (Rajbhandari et al. 2020, section
5; theirs is p = g = 2, m = 12):

    ddp              p P    + g P    + m P
    zero1            p P    + g P    + m P/N
    zero2            p P    + g P/N  + m P/N
    zero3            p P/N  + g P/N  + m P/N
    fsdp, hsdp       4 P/N  + 4 P/N  + (m - master) P/N

PyTorch keeps shards of parameters and gradients in float32: they are the masters. What a step
gathers, and gradients that it has not reduced yet, come on top, for as long as they are there.
`zero2`, `zero3`, `fsdp` and `hsdp` hold shards of gradients from the first pass on.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import add
from typing import NamedTuple

from simreduce import dtypes
from simreduce.engine.setup import Setup
from simreduce.errors import InputError, near_or_all, quote
from simreduce.planners.nccl.buffers import held_bytes
from simreduce.planners.strategy import Strategy
from simreduce.topology import Folded
from simreduce.training.eager import AMP, BF16, COMPILED, EAGER, MEGATRON
from simreduce.training.sharded import (
    BLOCKS,
    FSDP,
    HSDP,
    MASTER,
    OPTIMIZERS,
    ZERO1,
    ZERO2,
    Sharding,
    Unit,
    most_gathered,
    state_bytes,
    wrap,
)
from simreduce.training.sharded.collectives import ALL_REDUCE, REDUCE_SCATTER, ShardedMethod
from simreduce.training.step import ESTIMATED, UNCOUNTED, Activations, Memory, PassMoment
from simreduce.workload import Model, Workload
from simreduce.workload.autograd import Saved, Tape, saved_by

NONE, SELECTIVE, FULL = POLICIES = ("none", "selective", "full")
OP = "op"
_EVERY = re.compile(r"every ([1-9][0-9]{0,3})")
FUSED, UNFUSED = ATTENTIONS = ("fused", "unfused")


def read_policy(value: object) -> str:
    """The policy of a step's `recompute`; ValueError for others."""
    known = (*POLICIES, OP)
    if isinstance(value, str) and (value in known or _EVERY.fullmatch(value)):
        return value
    near = near_or_all(str(value), (*known, "every 2"))
    raise ValueError(f"unknown policy {quote(value)}{near}")


def policy_of(policy: str, block: int) -> str:
    """The policy of a block, counted from 0."""
    found = _EVERY.fullmatch(policy)
    return policy if not found else NONE if (block + 1) % int(found[1]) else FULL


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
    for number, block in enumerate(blocks):
        own = policy_of(policy, number)
        for i in block if own != NONE else ():
            inputs = layers[i].input if i == block[0] else 0.0
            kept[i] = layers[i].others if own == SELECTIVE else inputs
        dropped = [whole[i] - kept[i] for i in block]
        again = max(again, sum(dropped) if own == FULL else max(dropped))
    last = max((i for block in blocks for i in block), default=-1) + 1
    return sum(kept[:last]) + max(sum(kept[last:]), again)


class ModelRun(NamedTuple):
    """How a model runs in a step, by the words of `[step]`: what it keeps depends on it."""

    kernels: str = EAGER
    precision: str = AMP
    recompute: str = NONE
    attention: str = FUSED

    def saved(self, model: Model) -> list[Saved]:
        """What PyTorch keeps of each layer for one sample; [] where nobody counted one."""
        kept = [layer.kept.program for layer in model.layers if layer.kept and layer.kept.program]
        if self.kernels == MEGATRON or len(kept) < len(model.layers):
            return []
        ways = {
            "amp": self.precision == AMP,
            "half": self.precision == BF16,
            "compiled": self.kernels == COMPILED,
            "fused": self.attention == FUSED,
        }
        return [saved_by(program, Tape(**ways)) for program in kept]

    def activations(self, model: Model, batch: int, passes: int = 1) -> Activations:
        """The activations of a batch; gradients of earlier `passes` of a step stay there."""
        if layers := self.saved(model):
            moments = pass_moments(model, batch, layers, self.recompute)
            found = Activations(max(each.kept for each in moments), ESTIMATED, moments)
            return found.with_gradients() if passes > 1 else found
        each = estimate_activations(model, self.recompute, self.attention)
        return UNCOUNTED if each is None else Activations(round(batch * each), ESTIMATED)


def pass_moments(
    model: Model, batch: int, layers: Sequence[Saved], policy: str = NONE
) -> tuple[PassMoment, ...]:
    """The moments of a backward pass at which a GPU may hold most.

    They are the loss's backward, with gradients of all logits; each layer's, which makes its
    gradients while the tensors of that layer and those below it are there; and the optimizer's
    step.
    """
    kept = [batch * (each.kept - each.logits) for each in layers]
    casts, again = [each.casts for each in layers], [0] * len(layers)
    for number, unit in enumerate(_blocks(model) if policy != NONE else ()):
        block, own = unit.layers, policy_of(policy, number)
        whole = sum(kept[i] + casts[i] for i in block)
        for i in block if own != NONE else ():
            scores = batch * layers[i].scores
            again[i] = scores if own == SELECTIVE else whole
            inputs = batch * layers[i].input if i == block[0] else 0
            inputs += batch * layers[i].given if own == OP else 0
            kept[i], casts[i] = (kept[i] - scores, casts[i]) if own == SELECTIVE else (inputs, 0)
    elements = [sum(gradient.elements for gradient in layer.gradients) for layer in model.layers]
    lost = batch * sum(each.logits + each.gradients for each in layers)
    loss = PassMoment("the backward pass of the loss", sum(kept), sum(casts), lost)
    found = [loss] if lost else []
    for i in reversed(range(len(layers))):
        # What flows back is as large as what the layer kept, and comes and goes; so do gradients
        # of converted parameters.
        passing = 2 * batch * layers[i].largest + layers[i].casts
        found.append(
            PassMoment(
                f"the backward pass of {model.layers[i].name}",
                sum(kept[: i + 1]) + again[i] + passing,
                sum(casts[: i + 1]),
                part=sum(elements[i:]) / sum(elements),
            )
        )
    return (*found, PassMoment("the step of the optimizer", part=1.0))


def repeated(model: Model, policy: str) -> list[float]:
    """The part of each layer's forward pass that runs again. InputError if that is not known."""
    if policy == NONE:
        return [0.0] * len(model.layers)
    if policy not in (SELECTIVE, OP):
        units = enumerate(_blocks(model))
        inside = {i for n, unit in units if policy_of(policy, n) == FULL for i in unit.layers}
        return [float(i in inside) for i in range(len(model.layers))]
    known = [layer.kept.core for layer in model.layers if layer.kept]
    if len(known) < len(model.layers) or not any(known):
        raise InputError(f"{model.name}: nobody counted the work of attention by itself")
    work = zip(known, (layer.forward for layer in model.layers), strict=True)
    cores = [core / forward if forward else 0.0 for core, forward in work]
    if policy == SELECTIVE:
        return cores
    inside = {i for unit in _blocks(model) for i in unit.layers}
    parts = [saved.part for saved in ModelRun().saved(model)]
    if not parts or any("experts" in layer.kept.program for layer in model.layers if layer.kept):
        raise InputError(f"{model.name}: nobody counted what op by op runs again")
    shares = enumerate(zip(cores, parts, strict=True))
    return [(1.0 - core) * part if i in inside else 0.0 for i, (core, part) in shares]


def _blocks(model: Model) -> list[Unit]:
    """The blocks of a model. InputError if it has none."""
    try:
        return [unit for unit in wrap(model, BLOCKS) if not unit.root]
    except InputError:
        raise InputError(
            f"{model.name}: its blocks are not known: no name of a layer has a number between "
            "dots, as h.0.mlp has"
        ) from None


def buffers_of_calls(
    setup: Setup, strategy: Strategy | None, calls: Iterable[tuple[str, int]], sharding: Sharding,
    group: int = 0,
) -> int:  # fmt: skip
    """Bytes of NCCL's buffers on a GPU, whose step has these `calls`, collectives with their bytes;
    0 where others carry them.

    All ranks are a communicator; with a `group`, all-reduces have one of the replicas of a shard,
    and the others one of so many GPUs. Of two `streams` reductions have their own. PyTorch first
    broadcasts the parameters, by rings (`planners.nccl.buffers`).
    """
    if strategy is None or not strategy.reduced_by_nccl:
        return 0
    shards = replicas = setup
    if group and not isinstance(setup.machine, Folded):
        some = range(group), range(0, setup.layout.n, group)
        shards, replicas = (setup.but(part=setup.layout.only(ranks)) for ranks in some)
    how = strategy.algorithm, strategy.nccl.protocol
    taken = defaultdict[tuple[Setup, str], set[str]](set)
    for collective, nbytes in dict.fromkeys(calls):
        at = replicas if collective == ALL_REDUCE else shards
        alone = (collective == ALL_REDUCE and group) or (
            collective == REDUCE_SCATTER and sharding.streams == 2
        )
        algorithm = at.call(nbytes, collective, *how).algorithm
        taken[at, collective if alone else ""] |= {"ring", algorithm}
    return sum(
        int(held_bytes(at.communicator, algorithms).max())
        for (at, _), algorithms in taken.items()
    )  # fmt: skip


def replicated_memory(workload: Workload, sharding: Sharding) -> Memory:
    """Return the memory where every device holds all, in the list's dtypes or `sharding`'s."""
    params = grads = states = 0
    for gradient in workload.gradients:
        param, reduce = sharding.wire(gradient.dtype)
        params += dtypes.SIZES[param] * gradient.elements
        grads += dtypes.SIZES[reduce] * gradient.elements
        state = state_bytes(sharding.optimizer, param, pure=sharding.pure)
        states += state * gradient.elements
    return Memory(params, grads, states, peak=params + grads + states)


class Shares(NamedTuple):
    """Units that `group` ranks share by a method, with the dtypes of all-gathers and reductions."""

    method: str
    units: tuple[Unit, ...]
    group: int
    param_dtype: int
    reduce_dtype: int
    optimizer: str
    pure: bool = False

    @property
    def kept(self) -> tuple[int, int, int]:
        """Bytes of parameters, gradients and optimizer states that a device holds all the time."""
        whole = sum(unit.elements for unit in self.units)
        shard = sum(unit.padded(self.group) // self.group for unit in self.units)
        param, reduce = dtypes.SIZES[self.param_dtype], dtypes.SIZES[self.reduce_dtype]
        states = state_bytes(self.optimizer, self.param_dtype, pure=self.pure) * shard
        if self.method in (FSDP, HSDP) and not self.pure:
            return MASTER * shard, MASTER * shard, OPTIMIZERS[self.optimizer] * shard
        if self.method == ZERO1:
            return param * whole, reduce * whole, states
        if self.method == ZERO2:
            return param * whole, reduce * shard, states
        return param * shard, reduce * shard, states

    @property
    def gathered(self) -> list[int]:
        """Bytes that each unit takes while it is gathered; 0 where parameters are never freed."""
        return self._of_units(self.param_dtype, ZERO1, ZERO2)

    @property
    def gradients(self) -> list[int]:
        """Bytes of each unit's gradients from its backward pass to its reduction.

        0 where there is always room for them. FSDP converts them to the dtype of the reduction
        first, and holds those.
        """
        wider = max(self.param_dtype, self.reduce_dtype, key=dtypes.SIZES.__getitem__)
        return self._of_units(wider if self.method in (FSDP, HSDP) else self.param_dtype, ZERO1)

    def _of_units(self, dtype: int, *without: str) -> list[int]:
        if self.method in without:
            return [0] * len(self.units)
        return [unit.padded(self.group) * dtypes.SIZES[dtype] for unit in self.units]

    @property
    def least(self) -> Memory:
        """A lower bound of a device's memory.

        It counts what the device keeps, the root unit, and another unit's gathered parameters with
        the gradients that its backward pass makes of them.
        """
        gathered, gradients = self.gathered, self.gradients
        of_units = zip(self.units, gathered, strict=True)
        blocks = [0 if unit.root else size for unit, size in of_units]
        roots = sum(gathered) - sum(blocks)
        passing = max(map(add, blocks, gradients), default=0)
        return Memory(
            *self.kept,
            gathered=roots + max(blocks, default=0),
            unreduced=max(gradients, default=0),
            peak=sum(self.kept) + roots + passing,
        )


def shares_of(method: ShardedMethod) -> Shares:
    """Return the shares that the ranks of a method hold."""
    return Shares(
        method.method,
        method.units,
        method.group,
        method.param_dtype,
        method.reduce_dtype,
        method.sharding.optimizer,
        method.sharding.pure,
    )


def measure_memory(
    method: ShardedMethod,
    gathered: Iterable[tuple[float, int]],
    unreduced: Iterable[tuple[float, int]],
) -> Memory:
    """`gathered` and `unreduced` are changes in bytes, with their times."""
    gathered, unreduced, shares = list(gathered), list(unreduced), shares_of(method)
    always = shares.kept
    return Memory(
        *always,
        gathered=_most(gathered),
        gathered_limit=most_gathered(
            method.instructions, method.units, shares.gathered, method.sharding
        ),
        unreduced=_most(unreduced),
        # Also a pass that takes no time holds its unit and the gradients that it makes.
        peak=max(shares.least.peak, sum(always) + _most([*gathered, *unreduced])),
    )


def _most(changes: list[tuple[float, int]]) -> int:
    """The largest sum; at one time, what is freed goes first."""
    return max(accumulate((change for _, change in sorted(changes)), initial=0))
