"""NCCL's trees: a chain in every machine, and across them the double binary tree.

The first GPU of a machine's chain stands beside the NIC of its channel. Half of the channels climb
one tree of machines and half the other (`double_tree`), in which the inner machines of the first
are leaves, so that no NIC carries more than the tensor twice each way. A machine by itself is a
chain.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simreduce.algorithms.double_tree import parents, second_tree
from simreduce.algorithms.nccl_lanes import STEP, join, lanes, pieces
from simreduce.algorithms.tree import down, up
from simreduce.algorithms.tree_shape import Tree
from simreduce.arrays import Ints
from simreduce.layouts import Decision
from simreduce.plan import PlanBuilder, Values


def all_reduce(
    b: PlanBuilder,
    given: Values,
    ways: Sequence[Sequence[Sequence[int]]],
    how: Decision,
    after: Sequence[int],
) -> Values:
    """The sum on every rank; `ways` by channel and machine."""
    n, machines = len(given), len(ways[0])
    orders = [np.arange(machines), second_tree(machines)] if machines > 1 else [np.arange(1)]
    trees = [_tree(way, order) for order in orders for way in ways]
    made = []
    for tree, lane in lanes(trees, how.channels):
        share = lane.share(given)
        count = pieces(given, lane.of, STEP[how.protocol], 3 * n * min(lane.of, 8))
        own = share[tree.place].cut(count).swapaxes(0, 1)[None]
        sums = up(b, own, tree, lane.channel, after)
        made.append(down(b, sums, tree, lane.channel)[0, :, np.argsort(tree.place), None])
    return join(b, [each.swapaxes(0, 1) for each in made])


def _tree(way: Sequence[Sequence[int]], order: Ints) -> Tree:
    """The tree of ranks in which machine `order[i]` is node i of the binary tree."""
    size = np.array([len(way[machine]) for machine in order])
    first = np.cumsum(size) - size
    parent = np.arange(size.sum()) - 1
    parent[first] = first[parents(len(order))]
    return Tree(parent, np.concatenate([way[machine] for machine in order]))
