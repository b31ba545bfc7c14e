"""Rings and double binary trees over all nodes."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, strategies as st

from simreduce.planners.nccl import facts, ring_orders, tree_parents
from simreduce.planners.synthesis.trees import double_tree
from simreduce.topology import load_topology


def _depth(parents, node):
    depth = 0
    while parents[node] >= 0:
        node, depth = parents[node], depth + 1
    return depth


@given(st.integers(1, 600))
def test_double_binary_trees(nodes):
    """Both reach all nodes from one root, are as deep as log2, and have two children at most; of an
    even number none has children in both, of an odd one only the first.
    """
    trees = double_tree(nodes)
    inner = []
    for parents in trees:
        assert [-1] == [p for p in parents if p < 0]
        assert max(_depth(parents, v) for v in range(nodes)) <= math.ceil(math.log2(nodes) or 0) + 1
        children = Counter(p for p in parents if p >= 0)
        assert max(children.values(), default=0) <= 2
        inner.append(set(children))
    both = inner[0] & inner[1]
    assert both == set() if nodes % 2 == 0 and nodes > 2 else len(both) <= 1


def test_the_first_tree_of_eight_nodes():
    """Node 0 on top with one child, the odd ones below."""
    assert double_tree(8)[0] == (-1, 2, 4, 2, 0, 6, 4, 6)
    assert double_tree(4) == ((-1, 2, 0, 2), (1, 3, 1, -1))


@pytest.mark.parametrize("machine", ["dgx1v", "dgx-a100x2", "dgx-h100x3", "alpsx5", "p4dx4"])
def test_rings_and_trees_of_all_ranks(machine):
    """Every ring has every rank once and crosses from node to node; every tree has one root."""
    topology = load_topology(machine)
    known = facts(topology)
    rings, trees = ring_orders(topology), tree_parents(topology)

    assert len(rings) == len(trees)
    local = known.n // known.nodes
    for ring in rings:
        assert sorted(ring) == list(range(known.n))
        crossings = sum(
            a // local != b // local for a, b in zip(ring, (*ring[1:], ring[0]), strict=True)
        )
        assert crossings == (known.nodes if known.nodes > 1 else 0)
    for parents in trees:
        assert parents.count(-1) == 1
        assert all(_depth(parents, rank) <= known.n for rank in range(known.n))
        assert max(Counter(p for p in parents if p >= 0).values()) <= 3
