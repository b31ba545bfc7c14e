"""Broadcast by scatter and all-gather."""

from __future__ import annotations

from tests.planners.algorithms.boxes import added, compiled, sent, tasks_of
from tests.planners.algorithms.transfers import transfers


def test_the_parts_of_a_subtree_travel_together():
    """Six ranks from rank 1 on: 4 parts to the second half, then 2, then 1; and 5 of each part
    round the ring.
    """
    plan = compiled("broadcast", "scatter_all_gather", tasks_of(6), 60, root=1)
    dealt = {(0, 4): 20, (0, 2): 20, (0, 1): 10, (2, 3): 10, (4, 5): 10}
    expected = {(f"n0.gpu{(v + 1) % 6}", f"n0.gpu{(v + 2) % 6}", 10): 5 for v in range(6)}
    for (a, b), size in dealt.items():
        key = (f"n0.gpu{(a + 1) % 6}", f"n0.gpu{(b + 1) % 6}", size)
        expected[key] = expected.get(key, 0) + 1

    assert expected == transfers(plan)
    assert {} == added(plan)
    assert (8, 100) == sent(plan)["n0.gpu1"]
