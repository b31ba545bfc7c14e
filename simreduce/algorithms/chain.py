"""The pipelined chain: every rank passes chunks on to its neighbour.

k chunks of S/k take (n-2+k)(a + S/(kB)) to the end of the chain, any n; the best chunk is sqrt(S a
B / (n-2)) and takes (sqrt((n-2)a) + sqrt(S/B))^2, nearly S/B. An all-reduce sums towards the first
rank and sends the total back, both at once: nearly 2 S/B, as every port between the ends carries S
twice.
"""

from __future__ import annotations

import numpy as np

from simreduce.algorithms import tree
from simreduce.algorithms.family import Knobs
from simreduce.algorithms.tree_shape import Tree
from simreduce.plan import PlanBuilder, Values


def all_reduce(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """Sums come up the chain to its first position, totals go back down it."""
    return tree.all_reduce(b, values, knobs, [_chain(values.shape[1])])


def reduce(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """Sums come up the chain to the root."""
    return tree.reduce(b, values, knobs, [_chain(values.shape[1], knobs.root)])


def broadcast(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """What the root gives goes down the chain."""
    return tree.broadcast(b, values, knobs, [_chain(values.shape[1], knobs.root)])


def _chain(n: int, root: int = 0) -> Tree:
    """From the root on, past the last position to the first."""
    node = np.arange(n)
    return Tree(parent=np.maximum(node - 1, 0), place=(root + node) % n)
