"""The binomial tree."""

from __future__ import annotations

import math

import pytest

from simreduce.errors import StrategyError
from tests.planners.algorithms.boxes import added, compiled, sent, tasks_of
from tests.planners.algorithms.transfers import formulas, transfers

EDGES_OF_SEVEN = [(1, 0), (2, 0), (3, 2), (4, 0), (5, 4), (6, 4)]
"""(child, parent)."""


def test_each_rank_hangs_below_itself_without_its_lowest_bit():
    plan = compiled("all_reduce", "binomial_tree", tasks_of(7), 10)
    hops = [hop for child, parent in EDGES_OF_SEVEN for hop in ((child, parent), (parent, child))]
    children = [3, 0, 1, 0, 2, 0, 0]

    assert {(f"n0.gpu{a}", f"n0.gpu{b}", 10): 1 for a, b in hops} == transfers(plan)
    assert {
        f"n0.gpu{d}": (children[d] + (d > 0), 10 * (children[d] + (d > 0))) for d in range(7)
    } == sent(plan)
    assert {"n0.gpu0": 30, "n0.gpu2": 10, "n0.gpu4": 20} == added(plan)


def test_the_root_hears_from_its_largest_subtree_last():
    plan = compiled("reduce", "binomial_tree", tasks_of(4), 10)

    assert "((x0+x1)+(x2+x3))" == formulas(plan)[len(plan) - 1]


@pytest.mark.parametrize("n", [2, 8, 11])
def test_the_root_adds_the_tensor_log_n_times(n):
    plan = compiled("reduce", "binomial_tree", tasks_of(n), 10, root=1)

    assert 10 * math.ceil(math.log2(n)) == added(plan)["n0.gpu1"]
    assert 10 * (n - 1) == sum(added(plan).values())


def test_it_sends_no_chunks():
    with pytest.raises(StrategyError, match="sends no chunks"):
        compiled("all_reduce", "binomial_tree+chunk=8", tasks_of(4), 10)
