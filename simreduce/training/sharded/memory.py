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
from itertools import accumulate
from operator import add
from typing import NamedTuple

from simreduce import dtypes
from simreduce.training.sharded.collectives import ShardedMethod
from simreduce.training.sharded.settings import (
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
)
from simreduce.training.step import Memory
from simreduce.workload import Workload


def replicated_memory(workload: Workload, sharding: Sharding) -> Memory:
    """Return the memory where every device holds all, in the list's dtypes or `sharding`'s."""
    params = grads = states = 0
    for gradient in workload.gradients:
        param, reduce = sharding.wire(gradient.dtype)
        params += dtypes.SIZES[param] * gradient.elements
        grads += dtypes.SIZES[reduce] * gradient.elements
        states += state_bytes(sharding.optimizer, param) * gradient.elements
    return Memory(params, grads, states, peak=params + grads + states)


class Shares(NamedTuple):
    """Units that `group` ranks share by a method, with the dtypes of all-gathers and reductions."""

    method: str
    units: tuple[Unit, ...]
    group: int
    param_dtype: int
    reduce_dtype: int
    optimizer: str

    @property
    def kept(self) -> tuple[int, int, int]:
        """Bytes of parameters, gradients and optimizer states that a device holds all the time."""
        whole = sum(unit.elements for unit in self.units)
        shard = sum(unit.padded(self.group) // self.group for unit in self.units)
        param, reduce = dtypes.SIZES[self.param_dtype], dtypes.SIZES[self.reduce_dtype]
        if self.method in (FSDP, HSDP):
            return MASTER * shard, MASTER * shard, OPTIMIZERS[self.optimizer] * shard
        states = state_bytes(self.optimizer, self.param_dtype) * shard
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
        size = dtypes.SIZES[dtype]
        return [unit.padded(self.group) * size for unit in self.units]

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
