"""The pipelined binary tree."""

from __future__ import annotations

import pytest

from tests.planners.algorithms.boxes import added, compiled, seconds, sent, switch, tasks_of
from tests.planners.algorithms.transfers import transfers

ROOTED = ("reduce", "broadcast")
EDGES_OF_SIX = [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2)]
"""(child, parent)."""


@pytest.mark.parametrize("n", [2, 4, 5, 6, 8, 12, 16, 31])
@pytest.mark.parametrize("collective", ROOTED)
@pytest.mark.parametrize("chunks", [1, 7])
def test_any_other_takes_no_longer_than_the_next_full_one(collective, n, chunks):
    a, b, size, depth = 2e-6, 5e9, 4 * 10**5 * chunks, n.bit_length() - 1
    took = seconds(collective, f"binary_tree+chunk={4 * 10**5}", switch(n, 2000, 5000), size // 4)
    step = a + 2 * size / (chunks * b)

    assert (
        (depth - 1) * (a + size / (chunks * b)) + size / b
        < took
        <= (depth - 1 + chunks) * step * (1 + 1e-9)
    )


@pytest.mark.parametrize("n", [7, 8, 15])
@pytest.mark.parametrize("chunks", [5, 40])
def test_both_phases_of_an_all_reduce_are_pipelined(n, chunks):
    """A port with two children carries 3S each way: 3 S/B, and no more than all steps with a third
    of a port each.
    """
    a, b, size, depth = 2e-6, 5e9, 4 * 10**5 * chunks, n.bit_length() - 1
    took = seconds("all_reduce", f"binary_tree+chunk={4 * 10**5}", switch(n, 2000, 5000), size // 4)

    assert (
        3 * size / b < took <= (2 * depth - 1 + chunks) * (a + 3 * size / (chunks * b)) * (1 + 1e-9)
    )


def test_the_children_of_v_are_2v_plus_1_and_2v_plus_2():
    plan = compiled("all_reduce", "binary_tree+chunk=20", tasks_of(6), 10)
    hops = [hop for child, parent in EDGES_OF_SIX for hop in ((child, parent), (parent, child))]
    children = [2, 2, 1, 0, 0, 0]

    assert {(f"n0.gpu{a}", f"n0.gpu{b}", 5): 2 for a, b in hops} == transfers(plan)
    assert {
        f"n0.gpu{d}": (2 * (children[d] + (d > 0)), 10 * (children[d] + (d > 0))) for d in range(6)
    } == sent(plan)
    assert {f"n0.gpu{d}": 10 * children[d] for d in range(3)} == added(plan)


def test_a_root_takes_the_place_of_the_first_rank():
    plan = compiled("broadcast", "binary_tree", tasks_of(6), 10, root=4)
    expected = {
        (f"n0.gpu{(parent + 4) % 6}", f"n0.gpu{(child + 4) % 6}", 10): 1
        for child, parent in EDGES_OF_SIX
    }

    assert expected == transfers(plan)
