"""What the tree families share."""

from __future__ import annotations

import numpy as np
import pytest

from simreduce.errors import StrategyError
from simreduce.plan import Contract, PlanBuilder, Promise, verify
from simreduce.planners.algorithms.planner import Knobs
from simreduce.planners.algorithms.trees import (
    BINARY_TREE,
    BINOMIAL_TREE,
    CHAIN,
    DOUBLE_TREE,
    Tree,
    scatter_all_gather,
)
from tests.planners.algorithms.boxes import compiled, tasks_of


@pytest.mark.parametrize("family", [CHAIN, BINARY_TREE, DOUBLE_TREE])
def test_groups_may_have_intervals_of_their_own(family):
    """Two groups of three, with 7 and 12 elements in chunks of at most 5."""
    b = PlanBuilder([f"gpu{i}" for i in range(6)])
    lo, hi = np.repeat([0, 7], 3), np.repeat([7, 19], 3)
    given = b.inputs(np.arange(6), lo, hi).reshape(2, 3)
    b.outputs(family["all_reduce"](b, given, Knobs(chunk=5)))
    promises = [
        Promise(d, *interval, 0, frozenset(group))
        for group, interval in (((0, 1, 2), (0, 7)), ((3, 4, 5), (7, 19)))
        for d in group
    ]
    plan = b.finish(Contract.of("all_reduce", promises))

    assert [] == verify(plan)
    assert 5 >= max(size for _, _, size in plan.copies())


@pytest.mark.parametrize(
    "broadcast",
    [
        *(family["broadcast"] for family in (CHAIN, BINARY_TREE, DOUBLE_TREE, BINOMIAL_TREE)),
        scatter_all_gather,
    ],
)
def test_a_broadcast_asks_of_others_only_where_they_are(broadcast):
    b = PlanBuilder([f"gpu{i}" for i in range(4)])
    root = b.input(2, 0, 9)
    device = np.arange(4)
    nothing = b.inputs(device, 0, 0)
    given = nothing.with_ops(np.where(device == 2, root.op, nothing.op)).view(
        np.zeros(4, dtype=np.int64), np.where(device == 2, 9, 0)
    )
    b.outputs(broadcast(b, given.reshape(1, 4), Knobs(chunk=2, root=2)))

    assert [] == verify(b.finish(Contract.broadcast(range(4), [(0, 9, 0)], 2)))


def test_levels_are_the_nodes_by_depth():
    tree = Tree(np.array([0, 2, 0, 2, 3]), np.arange(5))

    assert [[2], [1, 3], [4]] == [level.tolist() for level in tree.levels()]
    assert [] == Tree(np.array([0]), np.array([0])).levels()


def test_a_node_with_turns_adds_what_comes_one_by_one():
    parent = np.array([0, 0, 1, 1, 1, 2])

    def sums(*, turns):
        found = Tree(parent, parent, turns=turns).sums(parent)
        return [(parents.tolist(), [term.tolist() for term in terms]) for parents, terms in found]

    assert [([0, 1, 2], [[0, 2, 5]]), ([0, 1], [[1, 3]]), ([1], [[4]])] == sums(turns=True)
    assert [([2], [[5]]), ([0], [[0], [1]]), ([1], [[2], [3], [4]])] == sums(turns=False)


@pytest.mark.parametrize("name", ["chain", "binary_tree", "double_tree"])
def test_chunks_are_nearly_equal_and_no_larger_than_asked(name):
    """100 elements in chunks of at most 30: 4 of 25, or 2 of 25 of each half."""
    plan = compiled("broadcast", f"{name}+chunk=120", tasks_of(5), 100)

    assert {25} == {size for _, _, size in plan.copies()}
    assert 16 == plan.transfers


def test_a_chunk_has_at_least_one_element():
    plan = compiled("broadcast", "chain+chunk=1", tasks_of(3), 5)

    assert {1} == {size for _, _, size in plan.copies()}


@pytest.mark.parametrize("name", ["chain", "binary_tree", "double_tree"])
def test_chunks_too_small_to_plan_are_refused(name):
    with pytest.raises(StrategyError, match="larger chunks"):
        compiled("all_reduce", f"{name}+chunk=4", tasks_of(8), 2**28)
