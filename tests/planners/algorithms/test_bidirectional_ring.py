"""The ring both ways round at once."""

from __future__ import annotations

import pytest

from tests.planners.algorithms.boxes import added, compiled, seconds, sent, switch, tasks_of
from tests.planners.algorithms.transfers import transfers

ROUNDS = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}


@pytest.mark.parametrize("n", [3, 4, 7, 16])
@pytest.mark.parametrize("collective", ROUNDS)
def test_on_links_both_ways_round_it_has_twice_the_bandwidth_of_a_ring(collective, n):
    """(n-1)(a + S/(2nB)) a round."""
    a, b, size = 3e-6, 7e9, 4 * 2 * n * 12345
    machine = switch(n, 3000, 7000, "ring")

    assert ROUNDS[collective] * (n - 1) * (a + size / (2 * n * b)) == pytest.approx(
        seconds(collective, "bidirectional_ring", machine, size // 4), rel=1e-9
    )
    assert ROUNDS[collective] * (n - 1) * (a + size / (n * b)) == pytest.approx(
        seconds(collective, "ring", machine, size // 4), rel=1e-9
    )


@pytest.mark.parametrize("n", [2, 3, 6, 8])
@pytest.mark.parametrize("collective", ROUNDS)
def test_every_rank_sends_half_of_every_step_to_each_neighbour(collective, n):
    plan = compiled(collective, "bidirectional_ring", tasks_of(n), 2 * n * 10)
    steps = ROUNDS[collective] * (n - 1)
    each_way = {}
    for d in range(n):
        for way in (1, -1):
            pair = (f"n0.gpu{d}", f"n0.gpu{(d + way) % n}", 10)
            each_way[pair] = each_way.get(pair, 0) + steps

    assert each_way == transfers(plan)
    assert {f"n0.gpu{d}": (2 * steps, 20 * steps) for d in range(n)} == sent(plan)
    assert (
        {} if collective == "all_gather" else {f"n0.gpu{d}": 20 * (n - 1) for d in range(n)}
    ) == added(plan)
