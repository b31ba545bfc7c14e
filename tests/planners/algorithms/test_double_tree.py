"""The double binary tree."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from simreduce.planners.algorithms import trees as double_tree
from tests.planners.algorithms.boxes import added, compiled, seconds, sent, switch, tasks_of
from tests.planners.algorithms.transfers import transfers

ROOTED = ("reduce", "broadcast")
NCCL_14 = {8: 0, 4: 8, 12: 8, 2: 4, 6: 4, 10: 12, 1: 2, 3: 2, 5: 6, 7: 6, 9: 10, 11: 10, 13: 12}
"""The tree that NCCL's source draws for 14 ranks, by child."""


def test_the_first_tree_is_nccls():
    assert NCCL_14 == {v: p for v, p in enumerate(double_tree.parents(14).tolist()) if v}


def test_the_second_tree_is_mirrored_or_shifted():
    """Halves of ten elements on six ranks (mirrored) and five (shifted)."""
    six = {(1, 2), (2, 4), (3, 2), (4, 0), (5, 4)}
    five = {(1, 2), (2, 4), (3, 2), (4, 0)}
    expected = {
        6: (six, {(5 - c, 5 - p) for c, p in six}),
        5: (five, {((c + 1) % 5, (p + 1) % 5) for c, p in five}),
    }
    for n, trees in expected.items():
        plan = compiled("all_reduce", "double_tree", tasks_of(n), 10)
        hops = Counter(
            (f"n0.gpu{a}", f"n0.gpu{b}", 5)
            for tree in trees
            for c, p in tree
            for a, b in ((c, p), (p, c))
        )

        assert hops == transfers(plan)


def _children(n, places):
    """By rank, its children in each tree."""
    return [np.bincount(place[double_tree.parents(n)[1:]], minlength=n) for place in places]


@pytest.mark.parametrize("n", range(2, 70))
def test_inner_ranks_of_one_tree_are_leaves_of_the_other(n):
    """But for the first of an odd number of ranks, which has one child in each."""
    one, other = _children(n, (np.arange(n), double_tree.second_tree(n)))
    both = np.flatnonzero((one > 0) & (other > 0))

    assert ([0] if n % 2 else []) == both.tolist()
    assert (one + other).max() <= 2


@pytest.mark.parametrize("n", range(2, 70))
def test_below_a_root_too(n):
    root = n // 3
    one, other = _children(n, [tree.place for tree in double_tree._reroot(n, root)])
    both = np.flatnonzero((one > 0) & (other > 0))

    assert [root] == both.tolist()
    assert [1, 1] == [int(one[root]), int(other[root])]
    assert (one + other).max() <= 2


@pytest.mark.parametrize("n", [4, 7, 12])
def test_no_rank_sends_or_adds_more_than_the_theory(n):
    """All-reduce: 2S a port, S added; broadcast: S a port."""
    everyone = compiled("all_reduce", "double_tree", tasks_of(n), 100)
    down = compiled("broadcast", "double_tree", tasks_of(n), 100, root=n - 1)
    up = compiled("reduce", "double_tree", tasks_of(n), 100, root=n - 1)

    assert 200 == max(elements for _, elements in sent(everyone).values())
    assert 100 == max(elements for _, elements in sent(down).values())
    assert 100 == max(elements for _, elements in sent(up).values())
    assert {100} == {max(added(plan).values()) for plan in (everyone, up)}
    assert 100 * (n - 1) == sum(added(everyone).values()) == sum(added(up).values())
    assert 2 * 100 * (n - 1) == sum(elements for _, elements in sent(everyone).values())


@pytest.mark.parametrize("n", [2, 3, 4, 8, 9, 16, 17])
@pytest.mark.parametrize("chunks", [1, 3, 40])
@pytest.mark.parametrize("collective", ROOTED)
def test_one_way_it_takes_no_more_than_a_step_a_level_and_chunk(collective, n, chunks):
    """(d-1+k)(a + S/(kB)) at most: a flow has no less than half a port for half of the data. The
    depth below a root is that of a tree of n-1, floor(log2(n-1)) + 1.
    """
    a, b, size, depth = 2e-6, 5e9, 8 * 10**5 * chunks, (n - 1).bit_length() if n > 2 else 1
    took = seconds(collective, f"double_tree+chunk={4 * 10**5}", switch(n, 2000, 5000), size // 4)

    assert size / b < took <= (depth - 1 + chunks) * (a + size / (chunks * b)) * (1 + 1e-9)


@pytest.mark.parametrize("n", [2, 3, 4, 8, 9, 16])
@pytest.mark.parametrize("chunks", [3, 40])
def test_both_ways_it_takes_no_more_than_a_step_a_level_and_chunk(n, chunks):
    """A flow has no less than a quarter of a port."""
    a, b, size, depth = 2e-6, 5e9, 8 * 10**5 * chunks, math.ceil(math.log2(n))
    took = seconds("all_reduce", f"double_tree+chunk={4 * 10**5}", switch(n, 2000, 5000), size // 4)

    assert size / b < took <= (2 * depth - 1 + chunks) * (a + 2 * size / (chunks * b)) * (1 + 1e-9)
