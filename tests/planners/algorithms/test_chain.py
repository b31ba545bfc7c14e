"""The pipelined chain."""

from __future__ import annotations

import math

import pytest

from tests.planners.algorithms.boxes import added, compiled, seconds, sent, switch, tasks_of
from tests.planners.algorithms.transfers import transfers


@pytest.mark.parametrize("n", [3, 5, 16])
@pytest.mark.parametrize("chunks", [3, 40])
def test_both_phases_of_an_all_reduce_are_pipelined(n, chunks):
    """Between the ends each port carries S both ways, 2 S/B; no more than all steps with half of a
    port each.
    """
    a, b, size = 2e-6, 5e9, 4 * 10**5 * chunks
    took = seconds("all_reduce", f"chain+chunk={4 * 10**5}", switch(n, 2000, 5000), size // 4)

    assert (
        2 * (n - 1) * a + 2 * size / b
        < took
        <= (2 * (n - 1) - 1 + chunks) * (a + 2 * size / (chunks * b))
    )


def test_each_rank_sends_its_chunks_to_the_one_before_and_back():
    """Ten elements in chunks of at most three: 2, 3, 2, 3."""
    plan = compiled("all_reduce", "chain+chunk=12", tasks_of(4), 10)
    hops = [(a, a - 1) for a in range(1, 4)] + [(a, a + 1) for a in range(3)]

    assert {(f"n0.gpu{a}", f"n0.gpu{b}", size): 2 for a, b in hops for size in (2, 3)} == transfers(
        plan
    )
    assert {f"n0.gpu{d}": (8, 20) if 0 < d < 3 else (4, 10) for d in range(4)} == sent(plan)
    assert {f"n0.gpu{d}": 10 for d in range(3)} == added(plan)


def test_from_a_root_the_chain_goes_past_the_last_rank_to_the_first():
    broadcast = compiled("broadcast", "chain", tasks_of(4), 10, root=2)
    reduce = compiled("reduce", "chain", tasks_of(4), 10, root=2)

    assert {(f"n0.gpu{a}", f"n0.gpu{b}", 10): 1 for a, b in [(2, 3), (3, 0), (0, 1)]} == transfers(
        broadcast
    )
    assert {} == added(broadcast)
    assert {(f"n0.gpu{a}", f"n0.gpu{b}", 10): 1 for a, b in [(3, 2), (0, 3), (1, 0)]} == transfers(
        reduce
    )
    assert {"n0.gpu2": 10, "n0.gpu3": 10, "n0.gpu0": 10} == added(reduce)


@pytest.mark.parametrize("n", [3, 8, 32])
def test_the_chunk_of_the_theory_takes_the_time_of_the_theory(n):
    """(sqrt((n-2)a) + sqrt(S/B))^2, when S/c is a whole number nearly."""
    a, b, size = 1e-6, 25e9, 2**30
    chunk = 4 * round(math.sqrt(size * a * b / (n - 2)) / 4)

    assert (math.sqrt((n - 2) * a) + math.sqrt(size / b)) ** 2 == pytest.approx(
        seconds("broadcast", f"chain+chunk={chunk}", switch(n, 1000, 25000), size // 4), rel=1e-5
    )
