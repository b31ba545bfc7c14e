"""Bytes of parameters, gradients and optimizer states on a device.

With m bytes of optimizer states for a parameter (Adam: two float32 moments and, beside parameters
of another dtype, a float32 master), p and g bytes of a parameter and of a gradient, and N ranks
that share P parameters (Rajbhandari et al. 2020, section 5; theirs is p = g = 2, m = 12):

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

from collections.abc import Iterable

from simreduce import dtypes
from simreduce.training.sharded.collectives import ShardedMethod
from simreduce.training.sharded.schedule import most_gathered
from simreduce.training.sharded.settings import (
    FSDP,
    HSDP,
    MASTER,
    OPTIMIZERS,
    ZERO1,
    ZERO2,
    Sharding,
    state_bytes,
)
from simreduce.training.step import Memory
from simreduce.workload import Workload


def replicated_memory(workload: Workload, sharding: Sharding) -> Memory:
    """Where every device holds all; the dtypes are the list's, or those of `sharding`."""
    params = grads = states = 0
    for gradient in workload.gradients:
        param, reduce = sharding.wire(gradient.dtype)
        params += dtypes.SIZES[param] * gradient.elements
        grads += dtypes.SIZES[reduce] * gradient.elements
        states += state_bytes(sharding.optimizer, param) * gradient.elements
    return Memory(params, grads, states, peak=params + grads + states)


def kept(method: ShardedMethod) -> tuple[int, int, int]:
    """Bytes of parameters, gradients and optimizer states that a device holds all the time."""
    whole = sum(unit.elements for unit in method.units)
    shard = sum(unit.padded(method.group) // method.group for unit in method.units)
    param, reduce = dtypes.SIZES[method.param_dtype], dtypes.SIZES[method.reduce_dtype]
    optimizer = method.sharding.optimizer
    if method.method in (FSDP, HSDP):
        return MASTER * shard, MASTER * shard, OPTIMIZERS[optimizer] * shard
    states = state_bytes(optimizer, method.param_dtype) * shard
    if method.method == ZERO1:
        return param * whole, reduce * whole, states
    if method.method == ZERO2:
        return param * whole, reduce * shard, states
    return param * shard, reduce * shard, states


def gathered_sizes(method: ShardedMethod) -> list[int]:
    """Bytes that each unit takes while it is gathered; 0 where parameters are never freed."""
    if method.method in (ZERO1, ZERO2):
        return [0] * len(method.units)
    size = dtypes.SIZES[method.param_dtype]
    return [unit.padded(method.group) * size for unit in method.units]


def gradient_sizes(method: ShardedMethod) -> list[int]:
    """Bytes of each unit's gradients from its backward pass to its reduction; 0 where there is
    always room for them.
    """
    if method.method == ZERO1:
        return [0] * len(method.units)
    size = dtypes.SIZES[method.param_dtype]
    return [unit.padded(method.group) * size for unit in method.units]


def measure_memory(
    method: ShardedMethod,
    gathered: Iterable[tuple[float, int]],
    unreduced: Iterable[tuple[float, int]],
) -> Memory:
    """`gathered` and `unreduced` are changes in bytes, with their times."""
    gathered, unreduced = list(gathered), list(unreduced)
    always = kept(method)
    return Memory(
        *always,
        gathered=_most(gathered),
        gathered_limit=most_gathered(
            method.instructions, method.units, gathered_sizes(method), method.sharding
        ),
        unreduced=_most(unreduced),
        peak=sum(always) + _most([*gathered, *unreduced]),
    )


def _most(changes: list[tuple[float, int]]) -> int:
    """The largest sum; at one time, what is freed goes first."""
    held = most = 0
    for _, change in sorted(changes):
        held += change
        most = max(most, held)
    return most
