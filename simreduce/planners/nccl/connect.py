"""Channels of all nodes together, as the connector joins them: rings and double binary trees."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from simreduce.planners.nccl.channel_search import TREE, Channel, graphs_of
from simreduce.planners.nccl.choice import Machine, NcclPlan, plan
from simreduce.planners.nccl.environment import DEFAULTS, Settings
from simreduce.planners.nccl.library import library_of


def ring_orders(machine: Machine, settings: Settings = DEFAULTS) -> tuple[tuple[int, ...], ...]:
    """The ranks in ring order, for each running channel: node after node."""
    at = plan(machine, settings)
    channels = at.graphs.ring.channels
    bases = _bases(at)
    return tuple(
        tuple(
            base + gpu for node, base in enumerate(bases) for gpu in _of(at, node, "ring", i).gpus
        )
        for i in (c % len(channels) for c in range(at.model.channels))
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
        tree = shapes[channel // count % 2]
        parents = [-1] * at.facts.n
        seconds = _second_children(tree)
        for node, base in enumerate(bases):
            gpus = _of(at, node, "tree", channel % count).gpus
            above = tree[node]
            if above >= 0:
                there = _of(at, above, "tree", channel % count).gpus
                # Of a balanced tree the second GPU serves the second child.
                second = balanced and len(there) > 1 and node in seconds
                parents[base + gpus[0]] = bases[above] + there[second]
            for parent, gpu in pairwise(gpus):
                parents[base + gpu] = base + parent
        found.append(tuple(parents))
    return tuple(found)


def _second_children(tree: Sequence[int]) -> set[int]:
    """The nodes that are not their parent's first child."""
    seen: set[int] = set()
    found = set()
    for node, parent in enumerate(tree):
        if parent in seen:
            found.add(node)
        seen.add(parent)
    return found


def double_tree(nodes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two binary trees of nodes as parents, -1 for the root: of an even number none has children in
    both. The second is the first mirrored, or shifted by one where the number is odd.
    """
    first = [_parent(node, nodes) for node in range(nodes)]
    second = [-1] * nodes
    for node in range(nodes):
        place = nodes - 1 - node if nodes % 2 == 0 else (node - 1) % nodes
        above = first[place]
        if above >= 0:
            second[node] = nodes - 1 - above if nodes % 2 == 0 else (above + 1) % nodes
    return tuple(first), tuple(second)


def _parent(node: int, nodes: int) -> int:
    """The lowest bit cleared and the next set, if there is such a node."""
    if node == 0:
        return -1
    bit = node & -node
    above = (node ^ bit) | (bit << 1)
    return above if above < nodes else node ^ bit


def _bases(at: NcclPlan) -> list[int]:
    bases = [0]
    for box in at.facts.boxes:
        bases.append(bases[-1] + len(box.gpus))
    return bases[:-1]


def _of(at: NcclPlan, node: int, pattern: str, channel: int) -> Channel:
    """A channel of a node; nodes that differ have channels of their own."""
    graphs = graphs_of(at.facts, at.settings, library_of(at.facts).search, at.facts.boxes[node])
    return (graphs.ring if pattern == "ring" else graphs.tree).channels[channel]
