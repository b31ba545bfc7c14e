"""The binomial tree: in every step each rank that has the data sends it to one that has not,
through a single port.

ceil(log2 n)(a + S/B) down, the same up, any n: node v hangs below v without its lowest bit, and
nodes from n on are left out. A node sends to its largest subtree first and hears from it last, so
that a step is never waited for.
"""

from __future__ import annotations

import numpy as np

from simreduce.algorithms import tree
from simreduce.algorithms.family import Knobs
from simreduce.algorithms.tree_shape import Tree
from simreduce.plan import PlanBuilder, Values


def all_reduce(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """Sums climb to the first position, then the total descends."""
    return tree.all_reduce(b, values, Knobs(knobs.channel), [binomial(values.shape[1])])


def reduce(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """Sums climb to the root."""
    return tree.reduce(b, values, Knobs(knobs.channel), [binomial(values.shape[1], knobs.root)])


def broadcast(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """What the root gives descends."""
    knobs = Knobs(knobs.channel, root=knobs.root)
    return tree.broadcast(b, values, knobs, [binomial(values.shape[1], knobs.root)])


def binomial(n: int, root: int = 0) -> Tree:
    """Nodes v to v + (lowest bit of v) - 1 are the subtree of v, as far as they exist."""
    node = np.arange(n)
    return Tree(parent=node & (node - 1), place=(root + node) % n, turns=True)
