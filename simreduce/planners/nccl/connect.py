"""Channels of all nodes together, as the connector joins them: rings and double binary trees."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np

from simreduce.computing.arrays import Ints
from simreduce.planners.nccl.channel_search import TREE, graphs_of
from simreduce.planners.nccl.choice import Machine, NcclPlan, plan
from simreduce.planners.nccl.environment import DEFAULTS, Settings
from simreduce.planners.nccl.library import library_of
from simreduce.planners.nccl.orders import Channel
from simreduce.planners.synthesis.trees import parents, second_tree


def ring_orders(machine: Machine, settings: Settings = DEFAULTS) -> tuple[tuple[int, ...], ...]:
    """The ranks in ring order, for each running channel: node after node."""
    at = plan(machine, settings)
    bases = _bases(at)
    return tuple(
        tuple(
            base + gpu for node, base in enumerate(bases) for gpu in _of(at, node, "ring", i).gpus
        )
        for i in (c % at.graphs.ring.count for c in range(at.model.channels))
    )


def tree_parents(machine: Machine, settings: Settings = DEFAULTS) -> tuple[tuple[int, ...], ...]:
    """The parent of each rank, -1 for the root, for each running channel.

    Inside a node the GPUs are a chain. Between nodes the first GPUs of the chains are one tree for
    the first half of the channels, and the other of the double tree for the second half; a second
    child hangs on the second GPU of its parent node, unless the tree is plain.
    """
    at = plan(machine, settings)
    bases, count = _bases(at), at.graphs.tree.count
    balanced = at.graphs.tree.pattern == TREE
    shapes = double_tree(at.facts.nodes)
    found = []
    for channel in range(at.model.channels):
        tree, above_gpu, served = shapes[channel // count % 2], [-1] * at.facts.n, set[int]()
        for node, (base, above) in enumerate(zip(bases, tree, strict=True)):
            gpus = _of(at, node, "tree", channel % count).gpus
            if above >= 0:
                there = _of(at, above, "tree", channel % count).gpus
                # Of a balanced tree the second GPU serves the second child.
                second = balanced and len(there) > 1 and above in served
                above_gpu[base + gpus[0]] = bases[above] + there[second]
            served.add(above)
            for parent, gpu in pairwise(gpus):
                above_gpu[base + gpu] = base + parent
        found.append(tuple(above_gpu))
    return tuple(found)


def double_tree(nodes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two binary trees of nodes as parents, -1 for the root: of an even number none has children in
    both. The second is the first mirrored, or shifted by one where the number is odd.
    """
    up = parents(nodes)

    def tree(place: Ints) -> tuple[int, ...]:
        found = np.full(nodes, -1)
        found[place[1:]] = place[up[1:]]
        return tuple(found.tolist())

    return tree(np.arange(nodes)), tree(second_tree(nodes))


def _bases(at: NcclPlan) -> list[int]:
    """The first rank of each node."""
    return [0, *accumulate(len(box.gpus) for box in at.facts.boxes)][:-1]


def _of(at: NcclPlan, node: int, pattern: str, channel: int) -> Channel:
    """A channel of a node; nodes that differ have channels of their own."""
    graphs = graphs_of(at.facts, at.settings, library_of(at.facts).search, at.facts.boxes[node])
    return (graphs.ring if pattern == "ring" else graphs.tree).channels[channel]
