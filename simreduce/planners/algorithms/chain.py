"""The pipelined chain: every rank passes chunks on to its neighbour.

k chunks of S/k take (n-2+k)(a + S/(kB)) to the end of the chain, any n; the best chunk is sqrt(S a
B / (n-2)) and takes (sqrt((n-2)a) + sqrt(S/B))^2, nearly S/B. An all-reduce sums towards the first
rank and sends the total back, both at once: nearly 2 S/B, as every port between the ends carries S
twice.
"""

from __future__ import annotations

import numpy as np

from simreduce.planners.algorithms import tree
from simreduce.planners.algorithms.tree_shape import Tree


def _chain(n: int, root: int) -> list[Tree]:
    """From the root on, past the last position to the first."""
    node = np.arange(n)
    return [Tree(parent=np.maximum(node - 1, 0), place=(root + node) % n)]


all_reduce, reduce, broadcast = tree.collectives(_chain)
