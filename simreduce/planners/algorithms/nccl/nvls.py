"""NVLS: NVSwitches sum and multicast (NVLink SHARP); across machines, trees join them (NVLSTree).

In a machine of g GPUs each is the head of an equal part. The switch sums what all hold of it and
gives the sum to the head, which sends it back to be multicast to all. A port carries the tensor
once and a part of it besides, each way: t = a + S (1 + 1/g)/B, so the bus bandwidth is
2B (g-1)/(g+1). Before the sums go back, the heads of all machines reduce them over the double
binary tree of machines, each over its own NIC. Chunks of 16 KiB to 128 KiB on every channel for
every head follow one another.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simreduce import dtypes
from simreduce.errors import NotFoldable, StrategyError
from simreduce.plan import PlanBuilder, Values
from simreduce.plan.channels import merged_channel
from simreduce.planners.algorithms.climb import down, up
from simreduce.planners.algorithms.double_tree import parents, second_tree
from simreduce.planners.algorithms.nccl.lanes import chunk_count
from simreduce.planners.algorithms.tree_shape import Tree
from simreduce.planners.layouts import Decision, Layout

_LOOPS = (64, 1 << 16), (8, 1 << 15), (2, 1 << 14)
_LOOPS_ACROSS = (4, 1 << 16), (1, 1 << 15)
"""Bytes of a chunk where fewer loops of longer ones would do; on one machine or across several."""

Box = tuple[int, list[int]]
"""A device that is a switch, and places of ranks that it links."""


def boxes(layout: Layout, ranks: Sequence[int]) -> list[Box]:
    """A switch that sums for each machine, or one for all of them."""
    if layout.machines > 1:
        raise NotFoldable("machines have different places in NCCL's tree")
    place = {rank: i for i, rank in enumerate(ranks)}
    names, found = layout.devices, []
    whole = [each for each in layout.reducers if {*ranks} <= {*each.ranks}]
    tasks = [ranks] if whole else [[r for r in task if r in place] for task in layout.tasks]
    for task in filter(None, tasks):
        near = [each for each in layout.reducers if {*task} <= {*each.ranks}]
        if not near:
            raise StrategyError("needs switches that sum and link all GPUs of a machine (NVSwitch)")
        found.append((names.index(near[0].name), [place[rank] for rank in task]))
    if len({len(box[1]) for box in found}) > 1:
        raise StrategyError("needs the same number of GPUs on every machine")
    return found


def all_reduce(
    b: PlanBuilder,
    given: Values,
    found: Sequence[Box],
    how: Decision,
    after: Sequence[int],
    count: int = 0,
) -> Values:
    """The sum on every rank, in `count` pieces or as many as NCCL makes."""
    heads, sums, made = len(found[0][1]), [], []
    mine = slice(how.way, how.way + 1) if how.way >= 0 else slice(heads)
    stages = [merged_channel(stage, how.channels) for stage in range(4)]
    count = count or _chunks(given, len(found), heads * how.channels)
    for switch, places in found:
        own = given[np.array(places[mine])].cut(count)  # by head and piece
        there = np.full(own.shape, switch)
        rose = b.copies(own, there, stream=b.streams(own.device, stages[0]), after=after)
        part = b.adds([rose[head, ...] for head in range(len(own))]).cut(heads).swapaxes(0, 1)[mine]
        sums.append(b.copies(part, own.device, stream=b.streams(own.device, stages[1])))
    across = Values.stack(sums, axis=2)
    across = _across(b, across, max(how.channels // 2, 1)) if len(found) > 1 else across
    for node, (switch, _) in enumerate(found):
        held = across[..., node]
        back = b.copies(held, np.full(held.shape, switch), stream=b.streams(held.device, stages[2]))
        whole = own[:1].on(back.device[:1]).with_ops(b.joins(back.swapaxes(0, 1)).op[None])
        made.append(b.copies(whole, held.device, stream=b.streams(held.device, stages[3])))
    order = np.argsort([place for _, places in found for place in places[mine]])
    return b.joins(Values.concatenate(made)[order])


def _across(b: PlanBuilder, sums: Values, channels: int) -> Values:
    """By head, piece and machine: the sum over all machines, half by each tree of `channels`."""
    machines, made = sums.shape[2], []
    for i, order in enumerate((np.arange(machines), second_tree(machines))):
        tree, channel = Tree(parents(machines), order), merged_channel(4 + i, channels)
        total = up(b, sums.cut(2)[:, :, order, i], tree, channel)
        made.append(down(b, total, tree, channel)[:, :, np.argsort(order)])
    return b.joins(Values.stack(made, axis=3))


def chunk_bytes(nbytes: int, machines: int, at_once: int) -> int:
    """Bytes of NCCL's chunks, `at_once` on all channels of all heads (src/enqueue.cc)."""
    size = 1 << (16 if machines >= 4 else 17)
    for loops, shorter in _LOOPS_ACROSS if machines > 1 else _LOOPS:
        size = min(size, shorter) if nbytes < loops * at_once * size else size
    return size


def _chunks(given: Values, machines: int, at_once: int) -> int:
    nbytes = int(given.elements.max(initial=0)) * dtypes.SIZES[given.dtype]
    chunk, hops = chunk_bytes(nbytes, machines, at_once), 4 * machines.bit_length()
    return chunk_count(-(-nbytes // at_once), chunk, 6 * len(given), hops)
