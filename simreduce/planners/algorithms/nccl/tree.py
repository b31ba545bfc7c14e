"""NCCL's trees: a chain in every machine, and across them the double binary tree.

The first GPU of a machine's chain is beside the NIC of its channel. Half of the channels climb
one tree of machines and half the other (`double_tree`), in which the inner machines of the first
are leaves, so that no NIC carries more than the tensor twice each way. A machine by itself is a
chain.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simreduce import dtypes
from simreduce.computing.arrays import Ints
from simreduce.plan import PlanBuilder, Values
from simreduce.plan.channels import JOINED
from simreduce.planners.algorithms.climb import down, up
from simreduce.planners.algorithms.double_tree import parents, second_tree
from simreduce.planners.algorithms.nccl.lanes import chunk_count, join, lanes_of, step_bytes
from simreduce.planners.algorithms.nccl.stream import FEW_WARPS, edges, part_count
from simreduce.planners.algorithms.tree_shape import Tree
from simreduce.planners.layouts import Decision

_PARTS, _OPS = 8, 12_000
"""Parts of a chunk that follow one another, and copies of one collective, about."""

_LOOPS = {
    "simple": ((8, 1 << 17), (4, 1 << 16), (1, 1 << 15)),
    "ll128": ((64, 1 << 17), (16, 1 << 15)),
}
"""Chunks for each hop, and the bytes of a chunk that is not halved for them."""


def all_reduce(
    b: PlanBuilder,
    given: Values,
    ways: Sequence[Sequence[Sequence[int]]],
    how: Decision,
    after: Sequence[int],
    machine: Ints,
) -> Values:
    """The sum on every rank; `ways` by channel and machine."""
    n, machines = len(given), len(ways[0])
    orders = [np.arange(machines), second_tree(machines)] if machines > 1 else [np.arange(1)]
    trees = [_tree(way, order) for order in orders for way in ways]
    nbytes = int(given.elements.max(initial=0)) * dtypes.SIZES[given.dtype]
    chunk, hops = chunk_bytes(how, nbytes, machines, n // machines), 2 * len(trees[0].levels())
    used = min(len(trees), how.channels)
    chunks = chunk_count(-(-nbytes // how.channels), chunk, 2 * (n - 1) * used, hops)
    most = max(min(_PARTS, _OPS // (2 * n * used * chunks)), 1)
    parts, made = part_count(given, how, chunks, most, FEW_WARPS), []
    for tree, lane in lanes_of(how, trees, len(ways)):
        share = lane.share(given)
        own = share[tree.place].cut(chunks).cut(parts).swapaxes(0, 1).swapaxes(1, 2)
        send = edges(b, lane.channel + JOINED, machine[tree.place], tree.parent)
        sums = up(b, own, tree, 0, after, send)
        found = down(b, sums, tree, 0, send)[..., np.argsort(tree.place)]
        made.append(found.reshape(-1, n).swapaxes(0, 1)[..., None])
    return join(b, [each.swapaxes(0, 1) for each in made])


def chunk_bytes(how: Decision, nbytes: int, machines: int, local: int) -> int:
    """Bytes of data in a chunk of NCCL's: a step of the buffer, halved while fewer chunks than the
    hops of a tree ask for would follow one another (NVIDIA/nccl src/enqueue.cc).
    """
    across = machines.bit_length() - 1
    size = step_bytes(how)
    if how.protocol == "ll":
        return size
    if how.protocol == "simple":
        flags, hops = 1.0, float(local - 1 + across)
    else:
        flags, hops = 1 / how.rules.ll128.data, (1 + across + 0.1 * local) / local
        size = round(size * flags)
    for loops, least in _LOOPS[how.protocol]:
        while size > least and nbytes // (how.channels * size) < loops * hops:
            size //= 2
    return int(size / flags)


def _tree(way: Sequence[Sequence[int]], order: Ints) -> Tree:
    """The tree of ranks in which machine `order[i]` is node i of the binary tree."""
    size = np.array([len(way[machine]) for machine in order])
    first = np.cumsum(size) - size
    parent = np.arange(size.sum()) - 1
    parent[first] = first[parents(len(order))]
    return Tree(parent, np.concatenate([way[machine] for machine in order]))
