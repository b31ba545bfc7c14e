"""The binomial tree: in every step each rank that has the data sends it to one that has not,
through a single port.

ceil(log2 n)(a + S/B) down, the same up, any n: node v hangs below v without its lowest bit, and
nodes from n on are left out. A node sends to its largest subtree first and hears from it last, so
that a step is never waited for.
"""

from __future__ import annotations

import numpy as np

from simreduce.planners.algorithms import tree
from simreduce.planners.algorithms.tree_shape import Tree


def binomial(n: int, root: int = 0) -> Tree:
    """Nodes v to v + (lowest bit of v) - 1 are the subtree of v, as far as they exist."""
    node = np.arange(n)
    return Tree(parent=node & (node - 1), place=(root + node) % n, turns=True)


all_reduce, reduce, broadcast = tree.collectives(lambda n, root: [binomial(n, root)])
