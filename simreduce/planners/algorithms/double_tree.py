"""Two pipelined binary trees, half of the data each (Sanders, Speck and Traeff 2009), in NCCL's
form.

A rank with two children in one tree is a leaf of the other, so that no port carries more than S
down and S up: with the best chunk a broadcast or a reduction is nearly S/B, an all-reduce nearly 2
S/B, and the depth of a tree is about log2 n.

The odd nodes of the tree are leaves, the even ones have two children; node 0 is on top and has
one. An all-reduce puts the ranks into the second tree mirrored for even n, shifted by one for odd n
(where the first rank has one child in each tree). A root is on top of both trees, and what is
below it is mirrored or shifted, as NCCL does with all.
"""

from __future__ import annotations

import numpy as np

from simreduce.computing.arrays import Ints
from simreduce.planners.algorithms import tree
from simreduce.planners.algorithms.tree_shape import Tree


def parents(n: int) -> Ints:
    """Node v has its lowest bit set, and the next one up instead of it in its parent; that one is
    not set if the parent would be n or more.
    """
    node = np.arange(n)
    bit = node & -node
    above = (node ^ bit) | (bit << 1)
    return np.where(above < n, above, node ^ bit)


def second_tree(n: int) -> Ints:
    """The places of the second tree's nodes: odd nodes are where even ones are in the first."""
    node = np.arange(n)
    return (node + 1) % n if n % 2 else node[::-1]


def _free(n: int) -> list[Tree]:
    return [Tree(parents(n), place) for place in (np.arange(n), second_tree(n))]


def _reroot(n: int, root: int) -> list[Tree]:
    places = np.arange(n), np.array([0, *(1 + second_tree(n - 1))])
    return [Tree(parents(n), (root + place) % n) for place in places]


all_reduce, reduce, broadcast = tree.collectives(_reroot, _free)
