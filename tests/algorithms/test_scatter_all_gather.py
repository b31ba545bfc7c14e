"""Broadcast by scatter and all-gather."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings, strategies as st

from tests.algorithms.boxes import added, compiled, seconds, sent, switch, tasks_of
from tests.algorithms.transfers import transfers


@pytest.mark.parametrize("n", [*range(1, 18), 24, 31, 33, 64])
@settings(max_examples=5)
@given(st.integers(0, 10**7), st.integers(1, 400_000), st.integers(1, 10**5))
def test_it_takes_the_steps_of_a_tree_and_of_a_ring(n, delay, rate, part):
    """(ceil(log2 n) + n-1) a + 2(n-1)/n S/B, any n."""
    a, b, size = delay * 1e-9, rate * 1e6, 4 * n * part

    assert (math.ceil(math.log2(n)) + n - 1) * a + 2 * (n - 1) / n * size / b == pytest.approx(
        seconds("broadcast", "scatter_all_gather", switch(n, delay, rate), size // 4), rel=1e-9
    )


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
