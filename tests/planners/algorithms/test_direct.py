"""Everybody sends to everybody at once: `direct` part by part, `one_shot` everything."""

from __future__ import annotations

from itertools import permutations

import pytest

from simreduce.plan import Kind, verify
from tests.planners.algorithms.boxes import compiled, tasks_of
from tests.planners.algorithms.transfers import formulas, transfers


@pytest.mark.parametrize("n", [1, 2, 5, 8])
@pytest.mark.parametrize("collective", ["reduce", "broadcast"])
def test_every_root(collective, n):
    for root in range(n):
        plan = compiled(collective, "direct", tasks_of(n), 9, root=root)
        pairs = [
            (root, i) if collective == "broadcast" else (i, root) for i in range(n) if i != root
        ]

        assert [] == verify(plan)
        assert {(f"n0.gpu{a}", f"n0.gpu{b}", 9): 1 for a, b in pairs} == transfers(plan)


def test_parts_go_to_their_ranks():
    """All pairs once, and for an all-reduce once more with the sums."""
    pairs = {(f"n0.gpu{a}", f"n0.gpu{b}", 5) for a, b in permutations(range(4), 2)}

    for collective in ("reduce_scatter", "all_gather", "all_to_all"):
        assert dict.fromkeys(pairs, 1) == transfers(compiled(collective, "direct", tasks_of(4), 20))
    assert dict.fromkeys(pairs, 2) == transfers(compiled("all_reduce", "direct", tasks_of(4), 20))


@pytest.mark.parametrize("name", ["direct", "one_shot"])
def test_sums_are_in_rank_order_everywhere(name):
    """So that all ranks get the same bits."""
    plan = compiled("all_reduce", name, tasks_of(3), 3)
    held = formulas(plan)

    assert {"(x0+x1+x2)"} == {held[op] for op in range(len(plan)) if plan.kind[op] == Kind.ADD}


@pytest.mark.slow
def test_a_million_copies():
    """A port of 1,024 ranks each."""
    plan = compiled("all_to_all", "direct", tasks_of(1024), 1 << 20)

    assert 1024 * 1023 == plan.transfers
    assert [] == verify(plan)
