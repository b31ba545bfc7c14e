"""The pipelined binary tree: a complete tree, filled level by level, whose nodes serve both
children at once.

k chunks of S/k take (d-1+k)(a + 2S/(kB)) down a tree of depth d = floor(log2 n) in which every
inner node has two children (n = 2^(d+1) - 1); any other n takes no longer than the next of these.
With the best chunk a broadcast or a reduction is nearly 2 S/B, as a port carries S for each of two
children, and an all-reduce, both at once, nearly 3 S/B. The tree of Sanders, Speck and Traeff 2009,
section 2.
"""

from __future__ import annotations

import numpy as np

from simreduce.planners.algorithms import tree
from simreduce.planners.algorithms.tree_shape import Tree


def _complete(n: int, root: int) -> list[Tree]:
    """The children of node v are 2v+1 and 2v+2, as in a heap."""
    node = np.arange(n)
    return [Tree(parent=np.maximum(node - 1, 0) // 2, place=(root + node) % n)]


all_reduce, reduce, broadcast = tree.collectives(_complete)
